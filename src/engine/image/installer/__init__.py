"""The program that installs an image on a host. It needs only the standard library of the host's Python.

It reads a plan from stdin, and reports its progress on stdout (see `protocol`).

Public names: `main.main`, `protocol`.
Open first: `main.py`.
"""
