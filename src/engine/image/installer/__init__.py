"""The program that installs an image on a host. It needs only the standard library of the host's Python.

It reads a plan from stdin, and reports its progress on stdout (see `protocol`). `system` makes the changes that need
root, `environment` provides files and packages, `executor` starts the node's daemon.

Public names: `main.main`, `protocol`.
Open first: `main.py`.
"""

__all__ = ["main", "protocol"]
