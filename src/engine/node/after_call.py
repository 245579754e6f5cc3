"""The release of a call's local variables: at once after an error, and after the answer for a rank's function.

`release_frames` frees the locals (perhaps gigabytes) that the stack frames of a failed task keep. The locals of a
rank's function are freed later, after the rank's answer is sent, with a time limit: a destructor may wait for other
ranks. After `destroy_process_group`, the destructors of gloo wait, sometimes for ever. Python would run these
destructors when the function returns, before its value is sent, and the whole broadcast would wait.

AFTER-1: after a rank has answered, the release of its function's locals occupies the worker for at most `FREE_S`: then
the kernel kills the worker.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType, TracebackType
from typing import Any, TypeVar


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


T = TypeVar("T")
FREE_S = 8.0
FIRST_CALLS = 256  # calls to trace at most: if none of these runs the user's function, no later call does
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_kept: list[FrameType] = []
_errors: list[BaseException] = []


def keeping(function: object, call: Callable[[], T]) -> T:
    """Return ``call()``, which calls ``function``, and keep the locals of ``function`` until `free`.

    The locals are not kept in four cases: ``function`` has none; ``function`` is not among the first `FIRST_CALLS`
    calls that Python makes within ``call``; a debugger or coverage.py is tracing; or a process group of
    torch.distributed still exists, which a plugin will destroy: the locals must be freed before the group.
    """
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if not isinstance(code, CodeType) or code.co_flags & _SUSPENDABLE or sys.gettrace() is not None:
        return call()
    if not code.co_nlocals and not code.co_cellvars:
        return call()

    left = FIRST_CALLS

    def trace(frame: FrameType, _event: str, _argument: Any) -> None:
        """Store the frame of ``function``, which keeps its local variables alive, and end the tracing."""
        nonlocal left
        left -= 1
        if frame.f_code is code:
            _kept.append(frame)
        elif left:
            return
        sys.settrace(None)

    sys.settrace(trace)
    try:
        value = call()
    except BaseException:
        _kept.clear()
        raise
    finally:
        if sys.gettrace() is trace:
            sys.settrace(None)
    if _has_group():
        _kept.clear()
    return value


def hold(error: BaseException) -> None:
    """Keep the local variables of an error's frames until `free`."""
    _errors.append(error)


def free() -> None:
    """Free the local variables kept by `keeping` and `hold`.

    The kernel kills the process if freeing them takes longer than `FREE_S`.
    """
    if _kept or _errors:
        frames = [*_kept]
        _kept.clear()
        with _deadline(FREE_S):
            while _errors:
                release_frames(_errors.pop())
            for frame in frames:
                # RuntimeError: a thread still runs this frame, for example of a recursive call
                with suppress(RuntimeError):
                    frame.clear()


def story(status: int, *, idle: bool) -> bytes:
    """Return a log line if ``status`` shows that the deadline of `free` killed the worker; else return b""."""
    if not idle or status < 0 or not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGALRM:
        return b""
    return (
        f"outrider: a process was killed that had returned its value and did not free its local variables within "
        f"{FREE_S:g} s: a destructor hangs\n"
    ).encode()


def _has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


@contextmanager
def _deadline(seconds: float) -> Iterator[None]:
    """Have the kernel kill this process by SIGALRM if the block takes longer, even if Python code can no longer run."""
    handler = signal.getsignal(signal.SIGALRM)
    if handler is None:  # C code has installed the SIGALRM handler: Python could not restore it
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    before = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.setitimer(signal.ITIMER_REAL, *before)
