"""Detection of kills for memory by the kernel: a SIGKILL that nobody here sent, and a counter that has risen."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")
_CGROUP = Path("/sys/fs/cgroup/memory.events")  # cgroup v2, as a container sees its own


class OomKills:
    """Out-of-memory kills since the last question. The whole machine's counter includes every cgroup's kills."""

    def __init__(self, *files: Path) -> None:
        self._files = files or (_VMSTAT, _CGROUP)
        self._seen = self._count()

    def news(self) -> bool:
        seen, self._seen = self._seen, self._count()
        return any(now > before for now, before in zip(self._seen, seen, strict=True))

    def _count(self) -> list[int]:
        return [_oom_kills(file) for file in self._files]


def _oom_kills(file: Path) -> int:
    try:
        for line in file.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == "oom_kill":
                return int(count)
    except (OSError, ValueError):
        pass
    return 0
