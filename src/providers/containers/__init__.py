"""The containers provider: nodes are containers of Docker or Podman, on this computer or on hosts.

`runtime` runs the commands and parses their output and errors; `first_process.sh` enforces a container's lease.

Public names: `provider.Containers`.
Open first: `launcher.py`.
"""
