"""The state of a process: whether it is frozen, and how it ended. Clients import this small module instead of
`processes`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

STILL_S = 8.0  # seconds; a process that has used no processor time for this long counts as frozen, not as slow
LOOK_S = 1.0  # seconds between checks of the processor time, while a response is awaited


class Standstill:
    """Detects whether a process is frozen that has to send a response: a slow process uses processor time, a frozen
    process uses none.
    """

    def __init__(self) -> None:
        """Start the detection. Create this object when the wait for the response begins."""
        self._used, self._since = "", time.monotonic()

    def lasts(self, pid: int) -> bool:
        """Return whether the process has used no processor time for `STILL_S`. Call this repeatedly: each call compares
        the time used with the calls before.
        """
        used, now = " ".join([str(pid), *stat_of(pid)[11:13]]), time.monotonic()  # utime and stime, in units of 0.01 s
        if used != self._used:
            self._used, self._since = used, now
        return now >= self._since + STILL_S


def stat_of(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat, from the third field (state, parent, process group, ...). An empty list:
    no such process.
    """
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def describe(status: int) -> str:
    """Return how a process ended, as a predicate: "exited with status 1"."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "ended by itself"
    if code > 0:
        return f"exited with status {code}"
    try:
        return f"was killed by signal {-code} ({signal.Signals(-code).name})"
    except ValueError:  # a real-time signal, which has no name
        return f"was killed by signal {-code}"
