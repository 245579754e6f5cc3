"""Becoming root, where the user is not, without anybody to type a password.

The agent may run on a Python as old as 3.8.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from .work import Failed


def become(what: str, otherwise: str) -> list[str]:
    """What goes in front of a command for root. ``what`` needs it; ``otherwise``: what one can do instead.

    Raises:
        Failed: the user is not root, and does not become it.
    """
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") is None:
        raise Failed(f"{what} needs root, and there is no sudo", hint=f"log in as root, or {otherwise}")
    asked = subprocess.run(
        ["sudo", "-n", "true"],  # noqa: S607
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
    )
    if asked.returncode != 0:
        raise Failed(
            f"{what} needs root, and sudo asks for a password",
            command="sudo -n true",
            exit_status=asked.returncode,
            log=asked.stderr.decode(errors="replace").splitlines()[-3:],
            hint=f"allow this user sudo without a password, or {otherwise}",
        )
    return ["sudo", "-n"]
