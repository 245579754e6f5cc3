"""Processes by (pid, start time), because a pid alone may have been given to another since."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """A process as the controller sees it."""

    pid: int
    started: int  # clock ticks since boot

    @property
    def alive(self) -> bool:
        """A zombie is not: it waits for its parent and holds nothing."""
        return started(self.pid) == self.started

    def kill(self) -> None:
        if self.alive:
            try:
                os.kill(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait_gone(self, within_s: float) -> bool:
        until = time.monotonic() + within_s
        while self.alive:
            if time.monotonic() > until:
                return False
            time.sleep(0.001)
        return True


def this(pid: int | None = None) -> Process:
    """
    Raises:
        ProcessLookupError
    """
    pid = os.getpid() if pid is None else pid
    ticks = started(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return Process(pid, ticks)


def started(pid: int) -> int | None:
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(rest[18])


def in_namespace(kind: str, inode: int) -> Iterator[int]:
    """The pids of all processes whose ``kind`` of namespace is this one."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - tests ask often, and a Path of each took most of the time
        if name.isdigit() and namespace(int(name), kind) == inode:
            yield int(name)


def namespace(pid: int, kind: str) -> int | None:
    try:
        return os.stat(f"/proc/{pid}/ns/{kind}").st_ino  # noqa: PTH116 - as above
    except OSError:
        return None
