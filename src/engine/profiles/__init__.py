"""Profiles in a run's record: the traces of all ranks merged into one trace, and the stragglers.

`traces` converts the trace of one rank to the client's clock, `stragglers` finds the slow ranks that others wait for
(no I/O).

Public names: `merged.merge`, `merged.verdict`, `merged.profiles_in`.
Open first: `merged.py`.
"""
