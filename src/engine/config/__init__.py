"""Pools that are defined in files: `outrider.toml`, `pyproject.toml`, and tables of the same form.

`files` finds and reads them, `tables` converts their tables to options of `Pool`, `check` checks a whole file.

Public names: `files.find`, `files.pool_of`, `tables.pool_options`, `check.checked_pool`.
Open first: `files.py`.
"""

__all__ = ["check", "files", "tables"]
