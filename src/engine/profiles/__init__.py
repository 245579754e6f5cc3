"""Profiles in a record: the traces of all ranks merged into one, and the stragglers.

`traces` converts a rank's part to the client's clock, `stragglers` finds the ranks that others wait for (no I/O).

Public names: `merged.merge`, `merged.verdict`, `merged.profiles_in`.
Open first: `merged.py`.
"""
