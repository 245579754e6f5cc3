"""The containers provider: nodes are containers of Docker or Podman, on this computer or on other hosts.

`runtime` runs the commands and parses their output and errors; `first_process.sh` is a container's first process, which
ends the container when its lease is over.

Public names: `provider.Containers`. Open first: `launcher.py`.
"""
