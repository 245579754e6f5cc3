"""What a host on this machine's root would not see: an overlay shows one file system, and not what is mounted in it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def unseen(paths: Sequence[Path], *, hidden: Sequence[str]) -> tuple[str, ...]:
    """Those that must be mounted into the host; ``hidden``: folders that are the host's own."""
    points = _points()
    found: list[str] = []
    for path in dict.fromkeys(each.absolute() for each in paths):
        covered = any(path.is_relative_to(f"/{folder}") for folder in hidden)
        if covered or max((p for p in points if path.is_relative_to(p)), key=lambda p: len(p.parts)) != Path("/"):
            found.append(str(path))
    return tuple(found)


def _points() -> list[Path]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4].encode().decode("unicode_escape")) for line in lines]
