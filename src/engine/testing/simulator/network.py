"""A simulated network between the client and its nodes: bytes arrive late, in order per connection, or never.

A line is the path between the client and one machine; a circuit is one connection over a line. Data on a blocked line
waits and arrives after the block, like TCP's retransmissions; data on an ended circuit is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from .clock import VirtualLoop

OUT, IN = 0, 1  # the two directions: to the node, and to the client
APART_S = 1e-6  # seconds between two arrivals of one circuit


class Line:
    """The path between the client and one machine. ``changed`` is called when the line is blocked or unblocked."""

    def __init__(self, loop: VirtualLoop, chance: Random, latency_s: float) -> None:
        self.loop = loop
        self.extra_s = 0.0
        self.circuit: Circuit | None = None
        self.changed: Callable[[], None] = lambda: None
        self._chance = chance.random
        self._latency_s = latency_s
        self._blocks = [0, 0]
        self._blocked_at = [0.0, 0.0]

    def blocked(self, way: int) -> bool:
        return self._blocks[way] > 0

    @property
    def open(self) -> bool:
        return not any(self._blocks)

    def delay_s(self) -> float:
        return self._latency_s * (0.8 + 0.4 * self._chance()) + self.extra_s

    def block(self, *ways: int) -> None:
        for way in ways:
            self._blocks[way] += 1
            if self._blocks[way] == 1:
                self._blocked_at[way] = self.loop.now
        self.changed()

    def unblock(self, *ways: int) -> None:
        for way in ways:
            self._blocks[way] -= 1
            if not self._blocks[way] and self.circuit is not None:
                self.circuit.release(way, self.repetition_s(way))
        self.changed()

    def repetition_s(self, way: int) -> float:
        """Return the seconds from the end of a block to TCP's next try: TCP doubles its pauses."""
        return self.delay_s() + 0.5 * self._chance() * min(self.loop.now - self._blocked_at[way], 30.0)


class Circuit:
    """A connection. ``on_data`` and ``on_end`` are called at its two ends; their index is the direction to that end."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.on_data: list[Callable[[bytes], None]] = [lambda data: None, lambda data: None]  # noqa: ARG005
        self.on_end: list[Callable[[], None]] = [lambda: None, lambda: None]
        self.closed = False
        self._due = [0.0, 0.0]
        self._under_way: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._held = [0, 0]  # number of data pieces that a blocked line holds back, by direction
        line.circuit = self

    def send(self, way: int, data: bytes) -> None:
        if not self.closed:
            self._under_way[way].append(data)
            self._later(way, self.line.delay_s())

    def close(self, by: int | None = None) -> None:
        """Close the circuit: nothing arrives any more. Notify both ends, except the end to which ``by`` leads."""
        if self.closed:
            return
        self.closed = True
        for way in (OUT, IN):
            if way != by and not self.line.blocked(way):  # an end behind a blocked line is notified only when it sends
                self.line.loop.call_later(self.line.delay_s(), self.on_end[way])
        self.line.changed()

    def vanish(self) -> None:
        """End the node's side without notifying the client's side."""
        self.closed = True

    def release(self, way: int, after_s: float) -> None:
        """Let held data arrive, because the line is open again."""
        held, self._held[way] = self._held[way], 0
        for _ in range(held):
            self._later(way, after_s)

    def _later(self, way: int, delay_s: float) -> None:
        due = max(self._due[way] + APART_S, self.line.loop.now + delay_s)
        self._due[way] = due
        self.line.loop.call_at(due, self._arrive, way)

    def _arrive(self, way: int) -> None:
        if self.closed:
            return
        if self.line.blocked(way):
            self._held[way] += 1
        else:
            self.on_data[way](self._under_way[way].popleft())
