"""The state of a process: whether it stands still, and how it has ended. The client needs no more of `processes`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STILL_S = 8.0  # without any of a processor's time: a frozen process, not a slow one
LOOK_S = 1.0  # how often that is looked at, while an answer is owed


class Standstill:
    """A detector for a frozen process that owes an answer: a slow one uses processor time, a frozen one uses none."""

    def __init__(self) -> None:
        """Begin now: the process owes an answer from now on."""
        self._used, self._since = "", time.monotonic()

    def lasts(self, pid: int) -> bool:
        """Return whether the process has stood still for `STILL_S`, as far as the calls of this method have seen."""
        used, now = " ".join([str(pid), *stat_of(pid)[11:13]]), time.monotonic()  # utime, stime: in hundredths
        if used != self._used:
            self._used, self._since = used, now
        return now >= self._since + STILL_S


def stat_of(pid: int) -> list[str]:
    """State, parent, process group, ... as /proc/<pid>/stat has them from its third field on; [] if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe(status: int) -> str:
    """Return how a process ended, as the rest of a sentence about it."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "ended by itself"
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-code}"
