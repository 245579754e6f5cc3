"""Delayed release of the local variables of a rank's function: after its answer is sent, and within a time limit.

Destructors may wait for other ranks: those of gloo do after `destroy_process_group`, sometimes for ever. Python would
run them when the function returns, before its value is sent, and the whole broadcast would wait for them.
AFTER-1: the locals of a settled rank's function occupy its worker for at most `FREE_S`: then the kernel kills the
worker.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import CodeType, FrameType
from typing import Any, TypeVar

from .frames import release_frames

T = TypeVar("T")
FREE_S = 8.0
FIRST_CALLS = 256  # Python function calls to trace: `function` is among the first 256, or its plugins never call it
_SUSPENDABLE = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
_kept: list[FrameType] = []
_errors: list[BaseException] = []


def keeping(function: object, call: Callable[[], T]) -> T:
    """Return ``call()``, which calls ``function``, and keep the locals of ``function`` until `free`.

    The locals are not kept in three cases: ``function`` is not among the first calls that ``call`` makes; a debugger or
    coverage.py is tracing; or a process group remains for a plugin, because the group must outlive the locals.
    """
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    if not isinstance(code, CodeType) or code.co_flags & _SUSPENDABLE or sys.gettrace() is not None:
        return call()

    left = FIRST_CALLS

    def trace(frame: FrameType, _event: str, _argument: Any) -> None:
        """Keep the frame of ``function``, and trace no more frames than needed: a referenced frame keeps its locals."""
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

    The process is killed if that takes longer than `FREE_S`.
    """
    if _kept or _errors:
        frames = [*_kept]
        _kept.clear()
        with _deadline(FREE_S):
            while _errors:
                release_frames(_errors.pop())
            for frame in frames:
                # the frame still runs: the function called itself in a thread that continues
                with suppress(RuntimeError):
                    frame.clear()


def story(status: int, *, idle: bool) -> bytes:
    """Return a log line about a worker killed by its deadline; empty if ``status`` means something else."""
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
    """Have the kernel end this process by SIGALRM after so many seconds, even if Python code can no longer run."""
    handler = signal.getsignal(signal.SIGALRM)
    if handler is None:  # the handler was not installed by Python, so it could not be restored
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
