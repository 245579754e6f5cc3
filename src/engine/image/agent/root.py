"""Run commands as root on a host where nobody can type a password.

The agent runs on Python 3.8 and newer.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from .work import Failed


def become(what: str, otherwise: str) -> list[str]:
    """The prefix of a command that needs root. ``what`` needs it; ``otherwise``: another way out, for the error.

    Raises:
        Failed: the user is not root and has no sudo without a password.
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
