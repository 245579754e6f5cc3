"""`outrider wait`: wait for the end of a run, and exit as it does."""

from __future__ import annotations

import sys
import time

from ..runs.reader import run_of
from .run_choice import RunWord, checked_timeout, chosen_run

POLL_S = 0.1
_SAID = {
    "dead": "did not end: its owner died",
    "elsewhere": "is of another computer: wait there",
    "unknown": "has a lock that cannot be read, so it is not known whether it goes on",
}
NOT_KNOWN, TIMEOUT, DIED, INTERRUPTED = 2, 124, 125, 130  # exit codes: as of timeout(1) and `outrider run`


def wait(run: RunWord, /, *, timeout: float | None = None) -> int:
    """Wait for the end of a run, and exit with its exit code.

    Example: `outrider wait train --timeout 3600`

    Exits with 124 after the timeout, with 125 when the run's owner died, and with 2 where there is no such run, or it
    is one of another computer.

    Parameters
    ----------
    run:
        The run's id, the beginning of it, or its name: the newest of that name.
    timeout:
        Seconds to wait for at most.
    """
    until = None if timeout is None else time.monotonic() + checked_timeout(timeout)
    found = chosen_run(run)
    try:
        while True:
            owner = found.owner  # asked first: what was written before its end is read after it
            now = run_of(found.directory)
            if now.ended:
                return int(now.status.get("exit") or 0)
            if owner != "alive":
                break
            if until is not None and time.monotonic() >= until:
                return TIMEOUT
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        return INTERRUPTED
    print(f"outrider: run {found.id} {_SAID[owner]}", file=sys.stderr)
    return DIED if owner == "dead" else NOT_KNOWN
