"""Changes to a node's system, as root or with sudo: missing Debian packages, and volumes (mounted storage).

`install_packages` waits for other programs that install packages. `mount_volumes` installs the programs for mounting,
and starts the volumes' supervisor: see `outrider.engine.volumes`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.engine.volumes import mount_path, rclone

from .installation import Failed, Installation, ask, become_root

_LOCK_S = 300  # seconds to wait for another package installation, such as automatic upgrades of a new machine
_RETRY_S = 2.0
_QUIETLY = ("env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a", "APT_LISTCHANGES_FRONTEND=none")
_OPTIONS = (
    *("-q", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", "-o", "Acquire::Retries=2"),
    *("-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30"),
)
_LOCKED = re.compile(r"could not get lock|unable to (acquire|lock)", re.IGNORECASE)


def missing_packages(packages: Sequence[str]) -> list[str]:
    """Return the packages that are not installed, or not in the requested version."""
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        raise Failed("this host has no apt", hint="Image(apt=...) is for Debian and Ubuntu: leave it out for this host")
    return [package for package in packages if not _is_installed(package)]


def install_packages(installation: Installation, packages: Sequence[str]) -> None:
    become = become_root("apt", f"install by hand: sudo apt-get install {' '.join(packages)}")
    try:
        _apt(installation, become, "update")
    except Failed as failure:  # one of several package sources may be broken, which may not matter for these packages
        installation.line(f"{failure.reason}: trying with the package lists that are there")
    install = ("install", "--yes", "--no-install-recommends", "--", *packages)
    try:
        _apt(installation, become, *install)
    except Failed as failure:
        if not any("dpkg was interrupted" in line for line in failure.log):
            raise
        installation.run([*become, *_QUIETLY, "dpkg", "--configure", "-a"], shown="dpkg --configure -a")
        _apt(installation, become, *install)


def _is_installed(package: str) -> bool:
    name, _, version = package.partition("=")
    form = "${db:Status-Status} ${Version}\n"
    result = ask(["dpkg-query", "--show", "--showformat", form, name.partition("/")[0]])
    states = [line.split(" ") for line in result.stdout.splitlines()]
    return any(state[0] == "installed" and version in ("", state[-1]) for state in states)


def _apt(installation: Installation, become: Sequence[str], *arguments: str) -> None:
    """Run apt-get. If another program holds the lock of the package lists, wait and try again.

    apt itself waits only for the lock of dpkg.
    """
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            installation.run(
                [*become, *_QUIETLY, "apt-get", *_OPTIONS, *arguments], shown=f"apt-get {' '.join(arguments)}"
            )
        except Failed as failure:
            if not any(map(_LOCKED.search, failure.log)) or time.monotonic() > deadline:
                raise
            installation.line("another program holds apt's lock: waiting")
            time.sleep(_RETRY_S)
        else:
            return


VOLUME_PACKAGES = {"rclone": "rclone", "fusermount3": "fuse3"}
_FUSE = (10, 229)  # (major, minor) device number of /dev/fuse, from Documentation/admin-guide/devices.txt of Linux


def mount_volumes(installation: Installation, plan: Mapping[str, Any]) -> socket.socket | None:
    """Mount the volumes of the plan, and return the socket to their supervisor. None: the plan has no volumes.

    The volumes stay mounted until all copies of the socket are closed.
    """
    volumes: Sequence[Mapping[str, Any]] = plan["volumes"]
    if not volumes:
        return None
    as_user = _user_can_mount([volume["mount"] for volume in volumes])
    if not as_user:
        _install_volume_programs(installation)
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
    if os.geteuid() == 0 or any(shutil.which(tool) is None for tool in VOLUME_PACKAGES):
        return False
    below = all(mount_path.is_in(os.path.realpath(folder), _home()) for folder in folders)
    return below and os.access("/dev/fuse", os.R_OK | os.W_OK)


def _install_volume_programs(installation: Installation) -> None:
    lacking = [package for tool, package in VOLUME_PACKAGES.items() if shutil.which(tool) is None]
    if not lacking:
        return
    if shutil.which("apt-get") is None:
        raise Failed(
            f"this host has no {' and no '.join(lacking)}, and no apt to install it by",
            hint="install rclone and fuse3 there, or use a host with Debian or Ubuntu",
        )
    with installation.during("apt", " ".join(lacking)):
        install_packages(installation, lacking)


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
