"""The classes and functions with which users declare their work, and the types of the values that they get. No I/O.

`compute` makes functions that pools can run, `calls` has pending calls, `settings` checks the options of a pool,
`errors` has all public errors. `misuse` detects wrong uses of a pool, `printable` makes text from hosts safe to print.

Public names: `compute.compute`, `calls.Call`, `calls.gather`, `errors`, `image.Image`, `plugin.Plugin`, `refs.Ref`,
`secrets.Secret`, `volume.Volume`, `settings.Settings`, `instance.InstanceInfo`, `checks.refuse`, `printable.plain`.
Open first: `compute.py`.
"""

__all__ = [
    "accelerators",
    "calls",
    "chaos",
    "checks",
    "compute",
    "errors",
    "html",
    "image",
    "instance",
    "language",
    "misuse",
    "pending_base",
    "plugin",
    "printable",
    "quantities",
    "refs",
    "secrets",
    "settings",
    "signatures",
    "sink",
    "snapshot",
    "task_options",
    "task_stack",
    "tracebacks",
    "volume",
]
