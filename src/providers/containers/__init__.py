"""Containers as nodes, by Docker or Podman on this computer or on hosts.

`runtime` runs the commands and reads their output and errors; `first_process.sh` keeps a container's lease.

Public names: `provider.Containers`.
Open first: `launcher.py`.
"""
