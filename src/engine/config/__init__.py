"""Pools in files: `outrider.toml`, `pyproject.toml` and the header of a script.

`files` finds the file that counts, `tables` turns its tables into options of `Pool`, `check` checks a whole file.

Public names: `files.find`, `files.pool_of`, `tables.pool_options`, `check.checked_pool`.
Open first: `files.py`.
"""
