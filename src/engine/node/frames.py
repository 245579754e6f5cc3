"""The release of a failed task's stack frames, so that their local variables (perhaps gigabytes) are freed at once."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

# flags of `inspect.CO_*` for the code of generators, coroutines, iterable coroutines and asynchronous generators
_SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200


def release_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of all errors linked to it, and clear the locals of their frames.

    Local variables often refer to the error, whose traceback refers to the variables. Such a reference cycle would keep
    the variables until Python's garbage collector runs, which considers neither their size nor a GPU's memory. The
    frames of generators and coroutines are not cleared: a generator that has caught the error may still run.
    """
    errors, seen = [error], set[int]()
    while errors:
        error = errors.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        _clear(error.__traceback__)
        with suppress(Exception):  # a user's class may define `__traceback__` itself
            error.__traceback__ = None
        errors += [each for each in (error.__cause__, error.__context__) if each is not None]
        if isinstance(error, BaseExceptionGroup):
            errors += error.exceptions


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        if not trace.tb_frame.f_code.co_flags & _SUSPENDABLE:
            with suppress(RuntimeError):  # RuntimeError: the frame still runs, as Outrider's own frames do
                trace.tb_frame.clear()
        trace = trace.tb_next
