"""`outrider wait`: waits for the end of a run, and exits with its exit code."""

from __future__ import annotations

import json
import sys
import time

from ..runs.reader import Run, at_present
from .exit_codes import INTERRUPTED, WRONG
from .flags import AsJson
from .run_choice import RunWord, checked_timeout, chosen_run

POLL_S = 0.1
_REASONS = {
    "alive": "",  # no message after the timeout: the exit code reports it
    "dead": "did not end: its owner died",
    "elsewhere": "is of another computer: wait there",
    "unknown": "has a lock that cannot be read, so it is not known whether it goes on",
}
TIMEOUT, DIED = 124, 125  # exit codes: TIMEOUT is that of timeout(1), and DIED that of `outrider run`
_CODES = {"alive": TIMEOUT, "dead": DIED}


def wait(run: RunWord, /, *, timeout: float | None = None, as_json: AsJson = False) -> int:
    """Wait for the end of a run, and exit with its exit code.

    Example: `outrider wait train --timeout 3600`

    Exits with 124 after the timeout, with 125 if the run's program died, and with 2 if there is no such run, or it
    belongs to another computer.

    Parameters
    ----------
    timeout:
        The most seconds to wait. Default: no limit.
    as_json:
        Print how the run ended, or that it goes on, as JSON, for programs.
    """
    began = time.monotonic()
    until = None if timeout is None else began + checked_timeout(timeout)
    chosen = chosen_run(run)
    try:
        code, state, now = _waited(chosen, until)
    except KeyboardInterrupt:
        return INTERRUPTED
    reason = "" if now.ended else _REASONS[state]
    reason = reason and f"run {chosen.id} {reason}"
    if as_json:
        shown = str(now.status.get("state", "unknown")) if state == "alive" else state
        facts = {"id": chosen.id, "state": shown, "exit_code": code, "error": now.status.get("error") or ""}
        print(json.dumps({**facts, "said": reason, "took_s": time.monotonic() - began}, indent=2))
    elif reason:
        print(f"outrider: {reason}", file=sys.stderr)
    return code


def _waited(run: Run, until: float | None) -> tuple[int, str, Run]:
    """Wait until the run has ended, or cannot be waited for any longer. ``until``: monotonic time.

    Return the exit code, "ended" or the state of the owner (the run's program), and the run as last read.
    """
    while True:
        owner, now = at_present(run)
        if now.ended:
            return int(now.status.get("exit") or 0), "ended", now
        if owner != "alive" or (until is not None and time.monotonic() >= until):
            return _CODES.get(owner, WRONG), owner, now
        time.sleep(POLL_S)
