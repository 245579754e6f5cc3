"""A limit to the CPU time of a block, which also ends code that never lets its loop turn."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 1.0  # aborted code may have begun anew


class Overtime(BaseException):
    """The exception at the end of the block's time; no ``except Exception`` catches it."""


@contextmanager
def cpu_limit(enough_s: float | None, over: Callable[[], None]) -> Iterator[None]:
    """Call ``over`` after so much CPU time and leave the block by an `Overtime`, which ends here; None: no limit.

    If code catches the `Overtime`, it is raised again and again. In a process's main thread only.
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
