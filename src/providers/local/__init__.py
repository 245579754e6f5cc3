"""Nodes of this computer, each a process group.

A supervisor owns the processes and ends them with the client (`machine_supervisor`), a watchdog ends what a killed
supervisor left. `fleet` and `client` are the client's end, `ssh_server` serves `Local(as_remote=True)`.

Public names: `provider.Local`, `state.living_pools`, `sockets`.
Open first: `machine_supervisor.py`.
"""
