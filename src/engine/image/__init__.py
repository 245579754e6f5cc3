"""Preparing the software of a host: finding out what the host lacks, and installing it.

`install_plan` inspects the host and decides what to install, and `bootstrap` sends and starts the program in
`installer/`. `requirements` and `wheels` handle Python packages, `includes` the user's own files, and
`outrider_archive` Outrider's own code. `local_check` compares an image with this computer.

Public names: `install_plan.prepare`, `install_plan.Prepared`, `bootstrap.bootstrap`, `commands.CommandRunner`,
`includes`.
Open first: `install_plan.py`.
"""

__all__ = ["bootstrap", "commands", "includes", "install_plan"]
