"""The client's side of stack traces: requests to one node, its answers, and the last activity of its attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from ...actors.interfaces import AttemptId, AttemptSeen
from ...lazy_dataclass import dataclass
from ..api.printable import plain
from ..wire import messages as wire

if TYPE_CHECKING:
    from ...actors.interfaces import Order

WITHIN_S = 5.0  # seconds for a node to answer; each process of the node has 1 s


@dataclass(slots=True)
class _Question:
    answered: Callable[[Mapping[AttemptId, AttemptSeen]], object]
    timer: asyncio.TimerHandle
    answers: dict[AttemptId, AttemptSeen] = field(default_factory=dict)


class NodeStacks:
    """The stack traces of one node. ``orders``: its attempts; messages about other attempts are ignored."""

    def __init__(self, orders: Mapping[int, Order], send: Callable[[wire.Message], object]) -> None:
        self._orders, self._send = orders, send
        self._loop = asyncio.get_running_loop()
        self._last = 0  # number of the last request
        self._questions: dict[int, _Question] = {}
        self._closed = False
        self.signs: dict[int, float] = {}  # attempt that has not ended -> loop time of its last output

    def heard(self, attempt: int) -> None:
        """Note that an attempt has sent output."""
        if attempt in self._orders:
            self.signs[attempt] = self._loop.time()

    def ask(self, answered: Callable[[Mapping[AttemptId, AttemptSeen]], object], *, quiet_s: float = 0.0) -> None:
        """Request the stack traces of all attempts on the node, except those that were active within ``quiet_s``.

        The loop calls ``answered`` once: when all attempts have answered, after `WITHIN_S`, or when the node is lost.
        """
        if self._closed:
            self._loop.call_soon(answered, {})
            return
        self._last += 1
        number = self._last
        timer = self._loop.call_later(WITHIN_S, self._finish, number)
        self._questions[number] = _Question(answered, timer)
        self._send(wire.ShowStacks(number, int(quiet_s * 1e6)))

    def received(self, message: wire.Stacks) -> None:
        question = self._questions.get(message.number)
        if question is None:
            return  # the answer is late, or no request has this number
        if message.attempt is None:
            self._finish(message.number)
        elif message.attempt in self._orders:
            attempt = AttemptId(message.attempt)
            heard_s, quiet_s = self.quiet_s(attempt), message.quiet_us / 1e6
            sight = AttemptSeen(_safe(message.text), quiet_s if heard_s is None else min(heard_s, quiet_s))
            question.answers.setdefault(attempt, sight)

    def close(self) -> None:
        self._closed = True
        for number in list(self._questions):
            self._finish(number)

    def quiet_s(self, attempt: int) -> float | None:
        """Return the seconds since the attempt's last output; None: it has sent none."""
        at = self.signs.get(attempt)
        return None if at is None else self._loop.time() - at

    def _finish(self, number: int) -> None:
        question = self._questions.pop(number)
        question.timer.cancel()
        self._loop.call_soon(question.answered, question.answers)


def _safe(text: str) -> str:
    """Return a node's text without control characters and cut to a maximum length, in case the node did not do so."""
    from ..node.stack_text import bounded  # few programs need this import

    return bounded(plain(bounded(text)))
