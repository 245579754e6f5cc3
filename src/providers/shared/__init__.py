"""Modules that several providers share, and that know no provider: the journal, locks, SSH logins, options, threads.

`journal` and `pool_lock` record what pools create and who owns a pool, `resource_ownership` decides who owns a
resource. `ssh_config` and `ssh_stops` log in to the user's hosts, through jump hosts; `login_host` runs commands there.
`option_names`, `login_options` and `paths` check options. `threads` and `side_by_side` run calls concurrently. The
engine uses some of these modules, too.

Public names: `journal.Journal`, `pool_lock`, `resource_ownership`, `paths`, `option_names`, `login_options`, `threads`,
`sockets`, `inherited_files`, `local_command`, `ssh_config`, `ssh_stops`, `login_host`.
Open first: `journal.py`.
"""

__all__ = [
    "inherited_files",
    "journal",
    "local_command",
    "login_host",
    "login_options",
    "nvidia_smi",
    "option_names",
    "paths",
    "pool_lock",
    "resource_ownership",
    "side_by_side",
    "sockets",
    "ssh_config",
    "ssh_stops",
    "threads",
    "watching",
]
