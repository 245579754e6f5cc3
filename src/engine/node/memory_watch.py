"""A monitor of tasks with a memory limit: it finds the process trees that exceed their limit.

The kernel's own limit would be a cgroup, which needs root, and which kills one process of the tree, of the kernel's
choice. So the tree is checked every `LOOK_S`: a task that grows by 5 GB/s is found 0.5 GB above its limit. A check
takes 20 us for each process; after a long check the next one is delayed, as the fork server has other work.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from . import process

LOOK_S = 0.1
# pause after a check, as a multiple of the check's time: checks use at most a tenth of the fork server's time
LOOKS_APART = 10
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class MemoryWatch:
    """The watched processes, by pid, each with all its descendants."""

    def __init__(
        self, held: Callable[[int, int], int] | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin without processes. ``held``: replaces `held_bytes`."""
        self._held, self._clock = held or held_bytes, clock
        self._limits: dict[int, int] = {}  # pid -> limit in bytes
        self._next = 0.0

    def add(self, pid: int, limit_bytes: int) -> None:
        self._limits[pid] = limit_bytes

    def remove(self, pid: int) -> None:
        self._limits.pop(pid, None)

    def due(self) -> float | None:
        """Return when `look` must be called next; None if no process is watched."""
        return self._next if self._limits else None

    def look(self, now: float) -> list[tuple[int, int]]:
        """Return (pid, bytes) of each process whose tree exceeds its limit, and stop watching it."""
        if not self._limits or now < self._next:
            return []
        began = self._clock()
        over = [(pid, held) for pid, limit in self._limits.items() if (held := self._held(pid, limit)) > limit]
        self._next = now + max(LOOK_S, LOOKS_APART * (self._clock() - began))
        for pid, _ in over:
            del self._limits[pid]
        return over


def held_bytes(root: int, enough: int) -> int:
    """Return how much memory a process tree holds; a value of at most ``enough`` bytes is not exact.

    Shared memory, such as a fork's with its parent, counts for each process proportionally. Reading these shares takes
    20 ms for a process of 4 GB, so they are read only if the sum of all mappings exceeds ``enough``.
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
    except OSError:  # the process has ended; or it belongs to another user now, and its shares are not readable
        return _resident_bytes(pid)
    sizes = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines[1:])}
    held = sizes.get("Pss", 0)
    if "Pss_Anon" in sizes:  # since Linux 5.9. Mapped files are not counted, as the kernel can drop their pages
        held = sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0)
    return held + sizes.get("SwapPss", 0)
