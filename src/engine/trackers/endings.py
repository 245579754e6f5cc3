"""The end of a run, in the terms that trackers use. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runs.reader import Owned
from .base import End

_BY_SIGNAL = frozenset({128 + 1, 128 + 2, 128 + 15})  # SIGHUP, SIGINT, SIGTERM: exit codes of runs that a signal ended
_STOPPED = frozenset({"KeyboardInterrupt", "RunStopped", "CancelledError"})


def end_of(status: Mapping[str, Any], owner: Owned) -> End | None:
    """Return the end of a run, given the content of its `status.json`; None: the run continues, or its end is not
    known.

    If the run's program was killed, the time of the end is the last time at which the program wrote that file.

    Args:
        status: The content of `status.json`.
        owner: Whether the run's program is alive.
    """
    if status.get("state") == "ended":
        code, error = status.get("exit"), str(status.get("error", ""))
        at, spent = float(status.get("ended") or status.get("written") or 0.0), status.get("spent_usd")
        if code == 0:
            return End("finished", at, 0, "", spent)
        stopped = error in _STOPPED or code in _BY_SIGNAL
        return End("killed" if stopped else "failed", at, code, error, spent)
    if owner == "dead":
        return End("killed", float(status.get("written") or status.get("changed") or 0.0), None, "its owner died")
    return None
