"""Profiles in a record: the traces of all ranks as one, and the straggler.

`traces` puts a rank's part on the client's clock, `stragglers` finds the rank that others wait for (pure).

Public names: `merged.merge`, `merged.verdict`, `merged.profiles_in`.
Open first: `merged.py`.
"""
