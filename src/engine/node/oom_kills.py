"""The kernel's kills for lack of memory (OOM kills): did such a kill cause the death of a worker?

Documented in cgroups(7), and in the kernel's cgroup-v2.rst (``memory.events``) and cgroup-v1/memory.rst
(``memory.oom_control``).
"""

from __future__ import annotations

import math
from pathlib import Path, PurePosixPath

_COMPUTER = Path("/proc/vmstat")

RECENT_S = 60.0  # longest time in which a killed process frees its memory and ends


def own_counter(process: Path = Path("/proc/self"), computer: Path = _COMPUTER) -> Path:
    """Return the file with the number of OOM kills in this process's cgroup, or else in the whole computer.

    A cgroup's file does not count kills of programs in other cgroups, which could be mistaken for the cause of a
    worker's death. If no cgroup has such a file (the root group of cgroup v2 has none), return the file of the whole
    computer.
    """
    try:
        files = counters((process / "cgroup").read_text(), (process / "mountinfo").read_text())
    except OSError:
        return computer
    return next((file for file in files if "oom_kill" in _counts(file)), computer)


def counters(cgroup: str, mountinfo: str) -> list[Path]:
    """Return the files that may contain the number of OOM kills in a process's cgroup, the best file first.

    In a container, only a part of the hierarchy of cgroups may be mounted.

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
        elif kind.startswith("cgroup2 ") and "" in groups:  # in v2, a group's count includes its descendants
            then += [Path(place, group, "memory.events") for group in _below(root, groups[""])]
    return first + then


def _below(root: str, path: str) -> list[PurePosixPath]:
    """Return the cgroup ``path`` and its ancestors, relative to the mounted group ``root``; [] if it is outside."""
    group = PurePosixPath(path)
    if not group.is_relative_to(root):
        return []
    below = group.relative_to(root)
    return [below, *below.parents]


class OomKills:
    """The kernel's recent OOM kills, as counted in the file ``counter`` (see `own_counter`).

    An OOM kill counts as the cause of a worker's death if the worker died of a SIGKILL that this node did not send, and
    the number in the file has risen.
    """

    def __init__(self, counter: Path) -> None:
        self._counter = counter
        self._seen = self._later = self._count()
        self._explained = 0  # kills after `_seen` that already explain a worker's death
        self._looked_at = -math.inf

    def look(self, now: float) -> None:
        """Forget kills from more than `RECENT_S` ago, which did not hit a worker. Call this method regularly."""
        if now - self._looked_at >= RECENT_S:
            self._looked_at = now
            self._explained = max(0, self._explained - (self._later - self._seen))
            self._seen, self._later = self._later, self._count()

    def news(self) -> bool:
        """Return whether a recent OOM kill explains one more death by SIGKILL; each kill explains one death."""
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
