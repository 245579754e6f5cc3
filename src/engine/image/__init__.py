"""Preparing the software of a host: finding out what the host lacks, and installing it.

`probe` inspects the host, `install_plan` decides what to install (without I/O on the host), and `bootstrap` sends and
starts the program in `installer/`. `locks` and `hashes` check the user's files, and `local_check` compares an image
with this computer.

Public names: `install_plan.prepare`, `bootstrap.bootstrap`, `commands.CommandRunner`.
Open first: `install_plan.py`.
"""
