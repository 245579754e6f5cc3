"""The error that ended a run, as texts. Errors raised while printing objects of a user's class are ignored."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from ..api.errors import BroadcastFailed
from ..api.language import is_own, worded
from ..api.tracebacks import remote_traceback

ERROR_CHARS = 256 * 1024  # longest traceback that is kept


def error_texts(error: BaseException, clean: Callable[[str], str]) -> dict[str, Any]:
    """Return an error's type, message and traceback.

    For a broadcast's error, ``first`` has the same fields for the rank that failed first, with its traceback there.
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
    """Return the texts of one error. ``trace``: the traceback, if the error was raised in another program."""
    texts: dict[str, Any] = {"type": type(error).__name__, "message": "", "traceback": ""}
    with suppress(Exception):
        message = clean(str(error))
        texts["message"] = worded(message) if is_own(error) else message
    with suppress(Exception):
        text = trace or "".join(traceback.format_exception(error))
        texts["traceback"] = clean(text if len(text) <= ERROR_CHARS else f"...{text[-ERROR_CHARS:]}")
    return texts


def _broadcast_in(error: BaseException) -> BroadcastFailed | None:
    """Return the error if a broadcast raised it, also as the only error in an exception group, as from a task group."""
    while not isinstance(error, BroadcastFailed):
        if not isinstance(error, BaseExceptionGroup) or len(error.exceptions) != 1:
            return None
        error = error.exceptions[0]
    return error
