"""The verdict on an attempt that ended without an answer of its function."""

from __future__ import annotations

import signal

from ...actors.interfaces import Verdict
from ..wire import messages as wire

_FROM_OUTSIDE = {signal.SIGTERM, signal.SIGKILL}  # the signals that end the processes of a machine


def verdict(ended: wire.Ended) -> Verdict:
    match ended.cause:
        case wire.Cause.KILLED:
            return Verdict.KILLED
        case wire.Cause.TIMEOUT:
            return Verdict.TIMED_OUT
        case wire.Cause.SIGNAL if ended.code in _FROM_OUTSIDE:
            return Verdict.TERMINATED
        case wire.Cause.EXIT if ended.code - 128 in _FROM_OUTSIDE:  # as shells and handlers say it
            return Verdict.TERMINATED
        case _:
            return Verdict.DIED
