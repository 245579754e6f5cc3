"""The software of a host: what the host lacks, and how to install it.

`probe` inspects the host, `install_plan` decides (pure), and `bootstrap` sends and starts the program in `installer/`.
`locks` and `hashes` check the user's files, `local_check` compares an image with this computer.

Public names: `install_plan.prepare`, `bootstrap.bootstrap`, `commands.CommandRunner`.
Open first: `install_plan.py`.
"""
