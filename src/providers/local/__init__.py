"""The local provider: nodes are process groups on this computer.

A supervisor (`machine_supervisor`) owns the processes and ends them with the client; a watchdog ends everything if the
supervisor is killed. `fleet` and `client` run in the client; `ssh_server` implements `Local(as_remote=True)`.

Public names: `provider.Local`, `state.living_pools`.
Open first: `machine_supervisor.py`.
"""

__all__ = ["provider", "state"]
