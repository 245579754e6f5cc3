"""A limit on the CPU time of a block, which also ends code that never returns to the event loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 1.0  # seconds until the next interruption, because interrupted code may have continued


class Overtime(BaseException):
    """The exception that ends a block whose time is over; no ``except Exception`` catches it."""


@contextmanager
def cpu_limit(enough_s: float | None, over: Callable[[], None]) -> Iterator[None]:
    """Call ``over`` after ``enough_s`` of CPU time, and leave the block by an `Overtime`. None: no limit.

    The `Overtime` does not leave this function. If code in the block catches it, it is raised again and
    again. Only for a process's main thread.
    """
    if enough_s is None:
        yield
        return

    def rings(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        over()
        raise Overtime

    before = signal.signal(signal.SIGVTALRM, rings)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, enough_s, AGAIN_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except Overtime:
        pass
    finally:
        signal.signal(signal.SIGVTALRM, before)
