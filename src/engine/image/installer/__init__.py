"""The program that installs an image on a host, by the standard library of the host's Python.

It reads a plan on standard input, and reports its steps on standard output (`protocol`).

Public names: `main.main`, `protocol`.
Open first: `main.py`.
"""
