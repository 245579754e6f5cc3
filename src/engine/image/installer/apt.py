"""Installation of missing Debian packages, as root or with sudo. It waits for other programs that install packages."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Sequence

from .installation import Failed, Installation, ask, become_root

_LOCK_S = 300  # seconds to wait for another package installation, such as automatic upgrades of a new machine
_RETRY_S = 2.0
_QUIETLY = ("env", "DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_MODE=a", "APT_LISTCHANGES_FRONTEND=none")
_OPTIONS = (
    *("-q", "-o", f"DPkg::Lock::Timeout={_LOCK_S}", "-o", "Acquire::Retries=2"),
    *("-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30"),
)
_LOCKED = re.compile(r"could not get lock|unable to (acquire|lock)", re.IGNORECASE)


def missing(packages: Sequence[str]) -> list[str]:
    """Return the packages that are not installed, or not in the requested version."""
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        raise Failed("this host has no apt", hint="Image(apt=...) is for Debian and Ubuntu: leave it out for this host")
    return [package for package in packages if not _is_installed(package)]


def install(installation: Installation, packages: Sequence[str]) -> None:
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
