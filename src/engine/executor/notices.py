"""Where a node learns that its machine will be taken: sources, one per cloud, and the one that every machine has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

POLL_S = 1.0  # a file's metadata: 10 us


class NoticeSource(Protocol):
    """Something that knows of this machine's end before it comes."""

    @property
    def name(self) -> str: ...

    async def watch(self, notice: Callable[[float | None], None]) -> None:
        """Run until cancelled. Call ``notice`` with the seconds that are left, and with None when that is withdrawn."""
        ...


class PreemptFile:
    """A file that appears with the seconds in it, and is removed when the notice is withdrawn."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def watch(self, notice: Callable[[float | None], None]) -> None:
        before: float | None = None
        while True:
            seconds = self._seconds(before)
            if seconds != before:
                before = seconds
                notice(seconds)
            await asyncio.sleep(POLL_S)

    def _seconds(self, before: float | None) -> float | None:
        try:
            return float(self._path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # still being written
            return before
