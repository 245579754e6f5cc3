"""Kills by the kernel for lack of memory: whether such a kill caused a worker's SIGKILL.

Sources: cgroups(7); the kernel's cgroup-v2.rst for ``memory.events``, cgroup-v1/memory.rst for ``memory.oom_control``.
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

_COMPUTER = Path("/proc/vmstat")

RECENT_S = 60.0  # a killed process may need this time to free its memory and end


def own_counter(process: Path = Path("/proc/self"), computer: Path = _COMPUTER) -> Path:
    """Return the file that counts the memory kills in this process's cgroup.

    Kills in other cgroups do not count there, unlike in the file for the whole computer. So the kill of another program
    is not mistaken for the cause of a worker's SIGKILL. If no cgroup counts, as in the root of version 2, the
    computer's file is returned.
    """
    try:
        files = counters((process / "cgroup").read_text(), (process / "mountinfo").read_text())
    except OSError:
        return computer
    return next((file for file in files if "oom_kill" in _counts(file)), computer)


def counters(cgroup: str, mountinfo: str) -> list[Path]:
    """Return the files that may count a process's memory kills, the best first.

    In containers, and in jobs within them, only a part of the hierarchy may be mounted.

    Args:
        cgroup: the text of ``/proc/<pid>/cgroup``.
        mountinfo: the text of ``/proc/<pid>/mountinfo``.
    """
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in cgroup.splitlines())}
    memory = next((path for controllers, path in groups.items() if "memory" in controllers.split(",")), None)
    first, then = list[Path](), list[Path]()
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        root, place = mount.split()[3:5]
        if kind.startswith("cgroup ") and memory is not None and "memory" in kind.split()[-1].split(","):
            first += [Path(place, group, "memory.oom_control") for group in _below(root, memory)[:1]]
        elif kind.startswith("cgroup2 ") and "" in groups:  # in version 2, a group also counts its descendants' kills
            then += [Path(place, group, "memory.events") for group in _below(root, groups[""])]
    return first + then


def _below(root: str, path: str) -> list[PurePosixPath]:
    """Return a group and its ancestors, relative to the mount's ``root``; empty if the group is outside of ``root``."""
    group = PurePosixPath(path)
    if not group.is_relative_to(root):
        return []
    below = group.relative_to(root)
    return [below, *below.parents]


class OomKills:
    """The recent memory kills, counted by the file ``counter``, for example the file that `own_counter` returns.

    A worker counts as killed for memory if it died of a SIGKILL that this node did not send, and the counter has risen.
    """

    def __init__(self, counter: Path) -> None:
        self._counter = counter
        self._seen = self._later = self._count()
        self._explained = 0  # kills since `_seen` that are already attributed to a death
        self._looked_at = -math.inf

    def look(self, now: float) -> None:
        """Forget kills from more than `RECENT_S` ago: they concerned another program. Call this method regularly."""
        if now - self._looked_at >= RECENT_S:
            self._looked_at = now
            self._explained = max(0, self._explained - (self._later - self._seen))
            self._seen, self._later = self._later, self._count()

    def news(self) -> bool:
        """Return whether a kill is not attributed to a death yet, and attribute it.

        Call this for each death by SIGKILL.
        """
        if self._explained >= self._count() - self._seen:
            return False
        self._explained += 1
        return True

    def _count(self) -> int:
        try:
            return int(_counts(self._counter).get("oom_kill", 0))
        except ValueError:
            return 0


def _counts(file: Path) -> dict[str, str]:
    try:
        return dict(line.split(" ", 1) for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return {}
