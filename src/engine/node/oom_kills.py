"""The kernel's kills for memory: whether a worker that died of SIGKILL died of one.

Sources: cgroups(7); the kernel's cgroup-v2.rst for ``memory.events``, cgroup-v1/memory.rst for ``memory.oom_control``.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path, PurePosixPath

_COMPUTER = Path("/proc/vmstat")
_GROUPS = Path("/sys/fs/cgroup")

RECENT_S = 60.0  # a process that is killed may take so long to let go of its memory, and is dead only then


def own_counter(process: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS, computer: Path = _COMPUTER) -> Path:
    """Return the file that counts the kills among the processes of this one's cgroup, whoever was out of memory.

    Programs of other cgroups do not count there, as they do in the file for the whole computer: a worker that somebody
    else sent SIGKILL is not out of memory since another program of its computer was. That file is returned where no
    cgroup counts, as for processes of the root of version 2.
    """
    with suppress(OSError):
        for hierarchy, path, name in _places(process.read_text(), groups):
            for group in (path, *path.parents):  # a container's path may be the host's, which it does not see
                counter = hierarchy / group.relative_to("/") / name
                if "oom_kill" in _counts(counter):
                    return counter
    return computer


def _places(cgroup: str, groups: Path) -> list[tuple[Path, PurePosixPath, str]]:
    """Return where the kernel may count, as ``/proc/self/cgroup`` has it: hierarchy, path and file, version 1 first."""
    found: list[tuple[Path, PurePosixPath, str]] = []
    for line in cgroup.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.insert(0, (groups / "memory", PurePosixPath(path), "memory.oom_control"))
        elif number == "0" and not controllers:
            found.append((groups, PurePosixPath(path), "memory.events"))
    return found


class OomKills:
    """Kills for memory of late, as ``counter`` has them, such as that of `own_counter`.

    A worker died of it by a SIGKILL that nobody here sent, while the counter has risen.
    """

    def __init__(self, counter: Path) -> None:
        self._counter = counter
        self._seen = self._later = self._count()
        self._told = 0  # of those since `_seen`
        self._looked_at = -math.inf

    def look(self, now: float) -> None:
        """Forget kills of more than `RECENT_S` ago: they were another program's. To be called now and then."""
        if now - self._looked_at >= RECENT_S:
            self._looked_at = now
            self._told = max(0, self._told - (self._later - self._seen))
            self._seen, self._later = self._later, self._count()

    def news(self) -> bool:
        """Return whether there is a kill that no death was explained by. To be asked of each death by SIGKILL."""
        if self._told >= self._count() - self._seen:
            return False
        self._told += 1
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
