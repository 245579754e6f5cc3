"""Poll for the answer to a lone call where that makes it come sooner, in place of sleeping until it is there.

Where client and node share a computer, a short call is answered in less time than processors take to fall asleep and to
be woken: each of the call's four hops would wake another one. A client that stays awake keeps the node's processes
together on the others. See docs/decisions/0039-a-lone-call-is-polled-for.md.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from typing import Any

POLL_S = 0.000_4  # the most that is polled for one answer
SHORT_S = 0.000_8  # calls that take longer without polling are never polled for
TRIAL = 16  # calls that are waited for in one way before the two ways are compared
TRIALS = 16  # one of so many is made in the way that was slower before
GAIN = 0.9  # of the time without polling: calls must be shortened to less


class AnswerPolling:
    """Decides whether the client polls for lone calls: it waits for a few of them in either way, for most in the faster
    one.

    A poll that fails costs `POLL_S` of an idle processor: each look lets other processes have it first, and is one turn
    of the event loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unanswered: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``unanswered``: how many of the pool's jobs have not ended. ``clock``: seconds; that of uvloop's loops counts
        milliseconds, which is too coarse.
        """
        self._loop, self._unanswered, self._clock = loop, unanswered, clock
        self._polls = False
        self._took_s: list[float] = []  # of the calls of this trial
        self._medians_s = {False: 0.0, True: 0.0}  # of the last trial without and with polling
        self._trials = 0

    def wait(self, answer: asyncio.Future[Any]) -> Generator[Any, None, Any]:
        """Wait for ``answer`` as ``yield from answer`` does."""
        if self._unanswered() != 1:
            return (yield from answer)
        began_at = self._clock()
        if self._polls:
            self._loop.call_soon(self._look, answer, began_at + POLL_S)
        result = yield from answer
        self._took_s.append(self._clock() - began_at)
        if len(self._took_s) == TRIAL:
            self._compare()
        return result

    def _look(self, answer: asyncio.Future[Any], until: float) -> None:
        if not answer.done() and self._unanswered() == 1 and self._clock() < until:
            os.sched_yield()
            self._loop.call_soon(self._look, answer, until)

    def _compare(self) -> None:
        self._medians_s[self._polls] = sorted(self._took_s)[(TRIAL - 1) // 2]
        self._took_s.clear()
        self._trials += 1
        usual_s = self._medians_s[False]
        helps = self._medians_s[True] < GAIN * usual_s
        other = self._trials % TRIALS == 0
        self._polls = usual_s < SHORT_S and helps is not other
