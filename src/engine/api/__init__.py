"""Declarations of users and the values that they get, without I/O.

`compute` makes functions that pools can run, `calls` are calls without a result yet, `settings` checks the options of a
pool, `errors` has every public error. `misuse` names wrong uses of a pool, `printable` makes text from hosts safe.

Public names: `compute.compute`, `calls.Call`, `errors`, `image.Image`, `plugin.Plugin`, `secrets.Secret`,
`volume.Volume`, `settings.Settings`, `checks.refuse`.
Open first: `compute.py`.
"""
