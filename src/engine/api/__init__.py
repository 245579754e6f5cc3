"""Classes and functions that users declare their work with, and the values that they receive. No I/O.

`compute` makes functions that pools can run, `calls` has pending calls, `settings` checks the options of a pool,
`errors` has every public error. `misuse` detects wrong uses of a pool, `printable` makes text from hosts safe to print.

Public names: `compute.compute`, `calls.Call`, `errors`, `image.Image`, `plugin.Plugin`, `secrets.Secret`,
`volume.Volume`, `settings.Settings`, `checks.refuse`.
Open first: `compute.py`.
"""
