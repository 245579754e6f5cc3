"""The error that ended a run, as strings.

Printing the error may call code of a user's class; errors raised there are ignored.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..api.errors import BroadcastFailed
from ..api.language import is_own, worded
from ..api.tracebacks import remote_traceback

ERROR_CHARS = 256 * 1024  # from a longer traceback, only this many last characters are kept


def error_texts(error: BaseException, clean: Callable[[str], str]) -> dict[str, Any]:
    """Return an error's type, message and traceback.

    If a broadcast failed, ``first`` has the same fields for the error of the rank that failed first, with that rank's
    traceback.
    """
    texts = _texts(error, clean)
    broadcast = _broadcast_in(error)
    if broadcast is not None and broadcast.first.error is not None:
        first = broadcast.first
        trace = remote_traceback(broadcast.first.error)
        there = "" if trace is None else trace.text
        texts["first"] = {"rank": first.rank, "node": first.node, **_texts(broadcast.first.error, clean, there)}
    return texts


def _texts(error: BaseException, clean: Callable[[str], str], trace: str = "") -> dict[str, Any]:
    """Return the type, message and traceback of one error.

    ``trace``: its traceback in the process where it was raised.
    """
    texts: dict[str, Any] = {"type": type(error).__name__, "message": "", "traceback": ""}
    with suppress(Exception):
        message = clean(str(error))
        texts["message"] = worded(message) if is_own(error) else message
    with suppress(Exception):
        text = trace or "".join(traceback.format_exception(error))
        texts["traceback"] = clean(text if len(text) <= ERROR_CHARS else f"...{text[-ERROR_CHARS:]}")
    return texts


def _broadcast_in(error: BaseException) -> BroadcastFailed | None:
    """Return the error if a broadcast raised it; None: another error.

    The error may be inside an exception group that has no other error, as task groups raise.
    """
    while not isinstance(error, BroadcastFailed):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error
