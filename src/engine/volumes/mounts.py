"""List and unmount the mounts of this host.

Runs on Python 3.8 and newer.
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
    """Parse text in the form of ``/proc/self/mountinfo``, proc(5). Later mounts hide earlier ones."""
    found = []
    for line in mountinfo.split("\n"):  # not splitlines: names may contain other characters that it splits at
        before, _, after = line.partition(" - ")
        if after:
            kind, source = after.split(" ")[:2]
            found.append(Mount(_plain(before.split(" ")[4]), kind, _plain(source)))
    return found


def at(point: str) -> Mount | None:
    """Return the mount that is visible at the path ``point``, or None."""
    text = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
    return next((mount for mount in reversed(parse(text)) if mount.point == point), None)


def is_dead(point: str) -> bool:
    """Return whether the process behind the mount is gone."""
    try:
        os.statvfs(point)  # always asks the process; the kernel caches the answer of stat for a second
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def unmount(point: str, within_s: float = _BUSY_S) -> str:
    """Unmount everything of rclone at ``point``. Processes that still use it may see it for a little longer.

    Return the error that prevents it, or "".
    """
    deadline = time.monotonic() + within_s
    read_facts, lazily = "", False
    while True:
        mount = at(point)
        if mount is None or mount.kind != "fuse.rclone":
            return ""
        if read_facts and lazily:
            return read_facts
        lazily = time.monotonic() > deadline or is_dead(point)
        read_facts = _unmount(point, lazily=lazily)
        if read_facts:
            time.sleep(_POLL_S)


def _unmount(point: str, *, lazily: bool) -> str:
    """Unmount once; return the error, or "". Only root, or with fusermount the user who mounted it, can do that."""
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
    """Decode the octal escapes of blanks and backslashes."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found.group(1), 8)), written)
