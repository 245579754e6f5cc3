"""The verdict on an attempt that ended before its function returned or raised."""

from __future__ import annotations

import signal

from ...actors.interfaces import Verdict
from ..wire import messages as wire

_FROM_OUTSIDE = {signal.SIGTERM, signal.SIGKILL}  # signals that the system or a user sends to end a machine's processes


def verdict(ended: wire.Ended) -> Verdict:
    match ended.cause:
        case wire.Cause.KILLED:
            return Verdict.KILLED
        case wire.Cause.TIMEOUT:
            return Verdict.TIMED_OUT
        case wire.Cause.SIGNAL if ended.code in _FROM_OUTSIDE:
            return Verdict.TERMINATED
        # shells and signal handlers exit with 128 + the signal's number
        case wire.Cause.EXIT if ended.code - 128 in _FROM_OUTSIDE:
            return Verdict.TERMINATED
        case _:
            return Verdict.DIED
