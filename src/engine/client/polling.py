"""Poll for the answer to a lone call that is likely to come at once, in place of sleeping until it is there.

Where client and node share a computer, a short call is answered in less time than processors take to fall asleep and to
be woken: each of the call's four hops would wake another one. A client that stays awake keeps the node's processes
together on the others. See docs/decisions/0039-a-lone-call-is-polled-for.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from typing import Any

POLL_S = 0.000_25  # the most that is polled for one answer
PROMPT_S = 0.000_5  # an answer that came so soon without being polled for would have come sooner with it
MOST_NEEDED = 256
EARNS = 8  # polls that succeed in a row, and halve what is needed for the next one
SLOW_COSTS = 16  # prompt answers that one which is not takes back


class AnswerPolling:
    """Decides whether a lone call is polled for: after prompt answers, the more of them the more polls have failed.

    A poll that fails costs `POLL_S` of one processor, and doubles the number of prompt answers that the next one takes,
    unless `EARNS` have succeeded since another failed. The event loop goes on meanwhile: each look is one turn of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, unanswered: Callable[[], int]) -> None:
        """``unanswered``: how many of the pool's jobs have not ended."""
        self._loop, self._unanswered = loop, unanswered
        self._prompt = 0  # answers, less those that slow ones have taken back
        self._needed = 1  # of them, before a poll
        self._succeeded = 0  # polls, since one failed

    def wait(self, answer: asyncio.Future[Any]) -> Generator[Any, None, Any]:
        """Wait for ``answer`` as ``yield from answer`` does."""
        if self._unanswered() != 1:
            return (yield from answer)
        began_at = self._loop.time()
        polled = self._prompt >= self._needed
        if polled:
            self._loop.call_soon(self._look, answer, began_at + POLL_S)
        result = yield from answer
        self._answered(self._loop.time() - began_at, polled=polled)
        return result

    def _look(self, answer: asyncio.Future[Any], until: float) -> None:
        if not answer.done() and self._unanswered() == 1 and self._loop.time() < until:
            self._loop.call_soon(self._look, answer, until)

    def _answered(self, took_s: float, *, polled: bool) -> None:
        prompt = took_s < (POLL_S if polled else PROMPT_S)
        if prompt:
            self._prompt = min(self._prompt + 1, MOST_NEEDED)
        else:
            self._prompt = 0 if polled else max(0, self._prompt - SLOW_COSTS)
        if polled and prompt:
            self._succeeded += 1
            if self._succeeded % EARNS == 0:
                self._needed = max(1, self._needed // 2)
        elif polled:
            if self._succeeded < EARNS:
                self._needed = min(2 * self._needed, MOST_NEEDED)
            self._succeeded = 0
