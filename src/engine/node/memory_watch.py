"""A monitor of tasks with a memory limit: it finds tasks whose processes together exceed the limit.

The kernel can limit the memory of a cgroup, but this needs root, and the kernel would kill only one process of a task.
Therefore the monitor adds up the memory of each task's processes every `LOOK_S` seconds: a task that grows by 5 GB/s is
found 0.5 GB above its limit. A check takes 20 us for each process. After a long check the next check is delayed,
because the fork server, in which the monitor runs, has other work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from . import process

LOOK_S = 0.1
# pause after a check, as a multiple of its duration: checks take at most a tenth of the fork server's time
LOOKS_APART = 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """The watched workers: the pid of each, and a memory limit for it and all its descendants."""

    def __init__(
        self, held: Callable[[int, int], int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Create a monitor that watches no process yet. ``held``: used instead of `held_bytes`, in tests."""
        self._held, self._clock = held or held_bytes, clock
        self._limits: dict[int, int] = {}  # pid of a watched process -> limit in bytes
        self._next = 0.0

    def add(self, pid: int, limit_bytes: int) -> None:
        self._limits[pid] = limit_bytes

    def remove(self, pid: int) -> None:
        self._limits.pop(pid, None)

    def due(self) -> float | None:
        """Return the time at which to call `look` next; None if no process is watched."""
        return self._next if self._limits else None

    def look(self, now: float) -> list[tuple[int, int]]:
        """Return (pid, bytes held) of each process that exceeds its limit with its descendants; stop watching these."""
        if not self._limits or now < self._next:
            return []
        began = self._clock()
        over = [(pid, held) for pid, limit in self._limits.items() if (held := self._held(pid, limit)) > limit]
        self._next = now + max(LOOK_S, LOOKS_APART * (self._clock() - began))
        for pid, _ in over:
            del self._limits[pid]
        return over


def held_bytes(root: int, enough: int) -> int:
    """Return the memory of a process and all its descendants, in bytes; 0 if it cannot exceed ``enough`` bytes.

    Memory that several processes share, as after a fork, is divided among them. Reading these shares takes 20 ms for a
    process of 4 GB. So they are read only if the memory exceeds ``enough`` when shared memory counts in full for each
    process.
    """
    pids = [root, *process.descendants(root)]
    if sum(map(_resident_bytes, pids)) <= enough:
        return 0
    return sum(map(_proportional_bytes, pids))


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError, ValueError):  # the process has ended
        return 0


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # the process has ended, or has changed its user, so that the file is not readable
        return _resident_bytes(pid)
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    held = sizes.get("Pss", 0)
    if "Pss_Anon" in sizes:  # exists since Linux 5.9; excludes mapped files, whose pages the kernel can drop
        held = sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0)
    return held + sizes.get("SwapPss", 0)
