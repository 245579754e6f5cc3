"""Notices that need no cloud: a file, and the signals that a batch system sends before it takes a node back."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from .source import Report

POLL_S = 1.0  # a file's metadata: 10 us


class PreemptFile:
    """A file that appears with the seconds in it, and is removed when the notice is withdrawn."""

    name = "file"

    def __init__(self, path: Path) -> None:
        self._path = path

    async def watch(self, report: Report) -> None:
        before: float | None = None
        while True:
            seconds = self._seconds(before)
            if seconds != before:
                before = seconds
                report(seconds)
            await asyncio.sleep(POLL_S)

    def _seconds(self, before: float | None) -> float | None:
        try:
            seconds = float(self._path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):  # still being written
            return before
        return seconds if math.isfinite(seconds) else before


class Signals:
    """Signals that announce the end, with the seconds that each leaves, and those that take it back.

    Slurm sends what ``--signal`` says that long before the time limit, and SIGTERM a partition's GraceTime before it
    kills what it preempts; neither says how long, so the settings do. They reach every process of a job's step: see
    `shield`.
    """

    def __init__(self, seconds: Mapping[int, float], *, name: str = "signal", withdrawn: Sequence[int] = ()) -> None:
        self.name = name
        self._meanings: dict[int, float | None] = {**seconds, **dict.fromkeys(withdrawn)}

    @property
    def numbers(self) -> list[int]:
        return [*self._meanings]

    async def watch(self, report: Report) -> None:
        loop = asyncio.get_running_loop()
        for number, seconds in self._meanings.items():
            loop.add_signal_handler(number, report, seconds)
        try:
            await loop.create_future()
        finally:
            for number in self.numbers:
                loop.remove_signal_handler(number)


def number_of(name: str) -> int:
    """Return the number of a signal, named with or without ``SIG``."""
    try:
        return int(signal.Signals[name if name.startswith("SIG") else f"SIG{name}"])
    except KeyError:
        raise ValueError(f"{name!r} is not a signal") from None
