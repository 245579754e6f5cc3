"""The state of a process: whether it is frozen, and how it ended. The client imports this instead of `processes`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STILL_S = 8.0  # seconds without processor time after which a process counts as frozen, not slow
LOOK_S = 1.0  # seconds between checks while a response is due


class Standstill:
    """A detector for a frozen process that owes a response: a slow process uses processor time, a frozen one uses
    none.
    """

    def __init__(self) -> None:
        """Start the detection: the process owes a response from now on."""
        self._used, self._since = "", time.monotonic()

    def lasts(self, pid: int) -> bool:
        """Return whether the process has used no processor time for `STILL_S`, measured between calls of this
        method.
        """
        used, now = " ".join([str(pid), *stat_of(pid)[11:13]]), time.monotonic()  # utime and stime, in units of 0.01 s
        if used != self._used:
            self._used, self._since = used, now
        return now >= self._since + STILL_S


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat from the third on (state, parent, process group, ...); [] if it is
    missing.
    """
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
    except ValueError:  # a real-time signal, which has no name
        return f"was killed by signal {-code}"
