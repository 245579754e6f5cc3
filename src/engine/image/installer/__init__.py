"""The program that installs an image on a host. It needs only the standard library of the host's Python.

It reads a plan from standard input, and reports its steps on standard output (`protocol`).

Public names: `main.main`, `protocol`.
Open first: `main.py`.
"""
