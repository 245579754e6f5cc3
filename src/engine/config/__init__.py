"""Pools that are defined in files: `outrider.toml`, `pyproject.toml` and the header of a script.

`files` finds the configuration file, `tables` converts its tables to options of `Pool`, `check` checks a whole file.

Public names: `files.find`, `files.pool_of`, `tables.pool_options`, `check.checked_pool`.
Open first: `files.py`.
"""
