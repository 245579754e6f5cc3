"""Say how a run has ended, in the words of trackers. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..runs.reader import Owned
from .base import End

_BY_SIGNAL = frozenset({128 + 1, 128 + 2, 128 + 15})  # SIGHUP, SIGINT, SIGTERM: the exit codes of runs that were ended
_STOPPED = frozenset({"KeyboardInterrupt", "RunStopped", "CancelledError"})


def end_of(status: Mapping[str, Any], owner: Owned) -> End | None:
    """Return the end of the run with this `status.json`; None: it goes on, or its end is not known here.

    A run whose program was killed has ended when its state was written last.
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
