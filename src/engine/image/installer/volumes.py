"""Volumes (mounted storage) on the node: install the programs for mounting, and start the volumes' supervisor.

See `outrider.engine.volumes`.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.engine.volumes import mount_path, rclone

from . import apt
from .installation import Failed, Installation, ask, become_root

PACKAGES = {"rclone": "rclone", "fusermount3": "fuse3"}
_FUSE = (10, 229)  # (major, minor) device number of /dev/fuse, from Documentation/admin-guide/devices.txt of Linux


def mount(installation: Installation, plan: Mapping[str, Any]) -> socket.socket | None:
    """Mount the volumes of the plan, and return a socket. None: the plan has no volumes.

    The volumes stay mounted until all copies of the socket are closed.
    """
    volumes: Sequence[Mapping[str, Any]] = plan["volumes"]
    if not volumes:
        return None
    as_user = _user_can_mount([volume["mount"] for volume in volumes])
    if not as_user:
        _install(installation)
    with installation.during("volumes", ", ".join(f"{volume['source']} at {volume['mount']}" for volume in volumes)):
        _check_host()
        become = [] if as_user else become_root("mounting", f"mount below {_home()}, with rclone and fuse3 installed")
        is_root = bool(become) or os.geteuid() == 0
        order = {
            "volumes": volumes,
            "rclone": shutil.which("rclone"),
            "registry": "/run/outrider/volumes" if is_root else f"{plan['cache']}/claims/volumes",
            "cache": plan["cache"],
            "uid": os.getuid(),
            "gid": os.getgid(),
            "login": rclone.inherited(os.environ, _home()),
        }
        return _start_supervisor(installation, [*become, sys.executable, "-I", plan["runtime"], "volumes"], order)


def _home() -> str:
    return os.path.realpath(Path("~").expanduser())


def _user_can_mount(folders: Sequence[str]) -> bool:
    """Return whether this user, without root, can mount volumes at these folders.

    This requires rclone and fuse3, and that the folders are in the user's home folder.
    """
    if os.geteuid() == 0 or any(shutil.which(tool) is None for tool in PACKAGES):
        return False
    below = all(mount_path.is_in(os.path.realpath(folder), _home()) for folder in folders)
    return below and os.access("/dev/fuse", os.R_OK | os.W_OK)


def _install(installation: Installation) -> None:
    lacking = [package for tool, package in PACKAGES.items() if shutil.which(tool) is None]
    if not lacking:
        return
    if shutil.which("apt-get") is None:
        raise Failed(
            f"this host has no {' and no '.join(lacking)}, and no apt to install it by",
            hint="install rclone and fuse3 there, or use a host with Debian or Ubuntu",
        )
    with installation.during("apt", " ".join(lacking)):
        apt.install(installation, lacking)


def _check_host() -> None:
    try:
        status = os.stat("/dev/fuse")  # noqa: PTH116
        is_there = stat.S_ISCHR(status.st_mode) and (os.major(status.st_rdev), os.minor(status.st_rdev)) == _FUSE
    except OSError:
        is_there = False
    if not is_there:
        raise Failed("this host has no /dev/fuse")
    version = rclone.version(ask(["rclone", "version"]).stdout)
    if version < rclone.LEAST:
        has, needs = (".".join(map(str, each)) for each in (version, rclone.LEAST))
        raise Failed(f"its rclone is {has}, and at least {needs} is needed", hint="install a newer one there")


def _start_supervisor(installation: Installation, argv: Sequence[str], order: Mapping[str, Any]) -> socket.socket:
    """Start the volumes' supervisor as a separate process. When all volumes are mounted, return the socket to it."""
    ours, theirs = socket.socketpair()
    installation.held.append(ours)
    with theirs:
        started = ask(argv, stdin=theirs.fileno())
    if started.returncode != 0:
        raise Failed(
            "the supervisor of the volumes did not start",
            exit_status=started.returncode,
            log=f"{started.stdout}{started.stderr}".splitlines(),
            hint="see the lines below; where sudo allows only some commands, it has to allow this Python too",
        )
    ours.sendall(json.dumps(order).encode() + b"\n")
    output = ours.makefile("rb").readline()
    if not output:
        raise Failed("the supervisor of the volumes ended without an answer", hint="see whether it was killed there")
    answer: dict[str, Any] = json.loads(output)
    if answer["is"] != "ready":
        raise Failed(answer["reason"], log=answer["log"])
    return ours
