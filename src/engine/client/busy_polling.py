"""Busy polling for the result of a call that is the pool's only one, where polling shortens the wait.

If client and node share a computer, a short call takes less time than a processor needs to fall asleep and wake up
again, and each of the call's four hops between processes would wake a sleeping processor. While the client polls, the
node's processes stay together on the other processors. See docs/decisions/0039-a-lone-call-is-polled-for.md.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Generator
from typing import Any

POLL_S = 0.000_4  # the longest time of polling for one result
SHORT_S = 0.000_8  # the client never polls if calls take longer than this without polling
TRIAL = 16  # calls in a trial, all with polling or all without; then the two ways are compared
TRIALS = 16  # one trial in this many uses the way that was slower so far, in case it has become faster
GAIN = 0.9  # polling is used if the median time of a call is below this fraction of the median without polling


class AnswerPolling:
    """Decides whether the client polls for the result of a lone call, by comparing trials with polling and without.

    Most trials use the faster way. A poll without success costs `POLL_S` of an idle processor: between two checks for
    the result, the client yields the processor to other processes (``sched_yield``) and runs one turn of the loop.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        unanswered: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``unanswered`` returns the number of the pool's jobs that have not ended.

        ``clock`` returns seconds. The clock of uvloop's loops has a resolution of a millisecond, which is too coarse.
        """
        self._loop, self._unanswered, self._clock = loop, unanswered, clock
        self._polls = False
        self._took_s: list[float] = []  # durations of the calls in the current trial
        # median duration in the last trial; the key is True for trials with polling
        self._medians_s = {False: 0.0, True: 0.0}
        self._trials = 0

    def wait(self, answer: asyncio.Future[Any]) -> Generator[Any, None, Any]:
        """Wait for ``answer``, as ``yield from answer`` does, with polling where that is faster."""
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
