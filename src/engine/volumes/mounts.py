"""The mounts of this host, and how one is taken away.

It may run on a Python as old as 3.8.
"""

from __future__ import annotations

import errno
import os
import re
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

_LIMIT_S, _BUSY_S = 10.0, 1.5
_POLL_S = 0.05


class Mount(NamedTuple):
    point: str
    kind: str  # "fuse.rclone"
    source: str


def parse(mountinfo: str) -> list[Mount]:
    """Return the mounts of a text as in ``/proc/self/mountinfo``, proc(5): the uppermost last."""
    found = []
    for line in mountinfo.split("\n"):  # and nothing else: names may contain whatever Python takes for a line's end
        before, _, after = line.partition(" - ")
        if after:
            kind, source = after.split(" ")[:2]
            found.append(Mount(_plain(before.split(" ")[4]), kind, _plain(source)))
    return found


def at(point: str) -> Mount | None:
    """Return the mount that is visible at that path; None if there is none."""
    text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return next((mount for mount in reversed(parse(text)) if mount.point == point), None)


def is_dead(point: str) -> bool:
    """Return whether the process behind the mount has gone."""
    try:
        os.statvfs(point)  # is always asked; what stat tells, the kernel remembers for a second
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(point: str, within_s: float = _BUSY_S) -> str:
    """Take away everything of rclone at that path; processes that still use it may see it a little longer.

    Return what hinders it; empty: nothing.
    """
    deadline = time.monotonic() + within_s
    told, lazily = "", False
    while True:
        mount = at(point)
        if mount is None or mount.kind != "fuse.rclone":
            return ""
        if told and lazily:
            return told
        lazily = time.monotonic() > deadline or is_dead(point)
        told = _unmount(point, lazily=lazily)
        if told:
            time.sleep(_POLL_S)


def _unmount(point: str, *, lazily: bool) -> str:
    """Unmount once; return the error, or empty. Only who mounted it can unmount it: root, or the user by fusermount."""
    if os.geteuid() == 0:
        argv = ["umount", *(["-l"] if lazily else []), "--", point]
    else:
        argv = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", point]
    try:
        ended = subprocess.run(  # noqa: S603
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if ended.returncode == 0 else ended.stdout.decode(errors="replace").strip() or "it does not say why"


def _plain(written: str) -> str:
    """Return the text without the octal escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), written)
