"""The frames of a task that has raised: its locals, which may be gigabytes, end with it."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType

_SUSPENDABLE = 0x20 | 0x80 | 0x100 | 0x200  # generators, coroutines, both, asynchronous generators: inspect.CO_...


def release_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of all errors that it refers to, and the locals of their frames.

    Local variables often refer to the error itself. Such a cycle would keep them until Python's garbage collector runs,
    which does not consider their size, or the memory of a GPU. Frames of generators and coroutines only lose their
    reference: one that has caught the error may still run.
    """
    errors, seen = [error], set[int]()
    while errors:
        error = errors.pop()
        if id(error) in seen:
            continue
        seen.add(id(error))
        _clear(error.__traceback__)
        with suppress(Exception):  # the user's class may override it
            error.__traceback__ = None
        errors += [each for each in (error.__cause__, error.__context__) if each is not None]
        if isinstance(error, BaseExceptionGroup):
            errors += error.exceptions


def _clear(trace: TracebackType | None) -> None:
    while trace is not None:
        if not trace.tb_frame.f_code.co_flags & _SUSPENDABLE:
            with suppress(RuntimeError):  # it still runs, as our own frames do
                trace.tb_frame.clear()
        trace = trace.tb_next
