"""A limit on the CPU time of a block, which works even if the code never returns to the event loop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 1.0  # seconds of CPU time until the next `Overtime`, in case the code caught the last one and continued


class Overtime(BaseException):
    """The exception that ends a block after its CPU time; ``except Exception`` does not catch it."""


@contextmanager
def cpu_limit(enough_s: float | None, over: Callable[[], None]) -> Iterator[None]:
    """Limit the block to ``enough_s`` seconds of CPU time: then call ``over``, and end the block. None: no limit.

    An `Overtime` is raised in the block, again and again if code in the block catches it. The exception ends the block
    but is not raised to the caller. Works only in the main thread of a process.
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
