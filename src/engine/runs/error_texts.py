"""The error that a run ended with, as texts. What a class of the user's does when it is printed is nobody's fault."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..api.errors import BroadcastFailed
from ..api.language import worded
from ..api.tracebacks import remote_traceback

ERROR_CHARS = 256 * 1024  # of a traceback


def error_texts(error: BaseException, clean: Callable[[str], str]) -> dict[str, Any]:
    """Return an error's type, message and traceback.

    Of a broadcast's error ``first`` has the same of the rank that failed first, with its traceback there.
    """
    said = _texts(error, clean)
    broadcast = _broadcast_in(error)
    if broadcast is not None and broadcast.first.error is not None:
        first = broadcast.first
        trace = remote_traceback(broadcast.first.error)
        there = "" if trace is None else trace.text
        said["first"] = {"rank": first.rank, "node": first.node, **_texts(broadcast.first.error, clean, there)}
    return said


def _texts(error: BaseException, clean: Callable[[str], str], trace: str = "") -> dict[str, Any]:
    """``trace``: the traceback, where it is not this program's."""
    said: dict[str, Any] = {"type": type(error).__name__, "message": "", "traceback": ""}
    with suppress(Exception):
        said["message"] = clean(worded(str(error)))
    with suppress(Exception):
        text = trace or "".join(traceback.format_exception(error))
        said["traceback"] = clean(text if len(text) <= ERROR_CHARS else f"...{text[-ERROR_CHARS:]}")
    return said


def _broadcast_in(error: BaseException) -> BroadcastFailed | None:
    """Return the broadcast's error that this one is, or that it is a group of alone, as a task group makes them."""
    while not isinstance(error, BroadcastFailed):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error
