"""A simulated network between the client and its nodes: the bytes of a connection arrive late but in order, or never.

A line is the path between the client and one machine; a circuit is one connection over a line. Data sent on a blocked
line arrives after the block, as TCP would send it again; data on a closed circuit is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from .clock import VirtualLoop

OUT, IN = 0, 1  # the two directions of data: OUT to the node, IN to the client
APART_S = 1e-6  # smallest time in seconds between two arrivals on one circuit, so that they keep their order


class Line:
    """The path between the client and one machine. Blocking or unblocking the line calls ``changed``."""

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
        """Return the seconds from the end of a block until TCP sends the data again.

        TCP doubles its pauses, so this time grows with the length of the block.
        """
        return self.delay_s() + 0.5 * self._chance() * min(self.loop.now - self._blocked_at[way], 30.0)


class Circuit:
    """A simulated connection between the client and a node.

    ``on_data[OUT]`` and ``on_end[OUT]`` are the callbacks of the node, ``on_data[IN]`` and ``on_end[IN]`` those of the
    client.
    """

    def __init__(self, line: Line) -> None:
        self.line = line
        self.on_data: list[Callable[[bytes], None]] = [lambda data: None, lambda data: None]  # noqa: ARG005
        self.on_end: list[Callable[[], None]] = [lambda: None, lambda: None]
        self.closed = False
        self._due = [0.0, 0.0]
        self._under_way: tuple[deque[bytes], deque[bytes]] = (deque(), deque())
        self._held = [0, 0]  # for each direction, the number of messages that a blocked line holds back
        line.circuit = self

    def send(self, way: int, data: bytes) -> None:
        if not self.closed:
            self._under_way[way].append(data)
            self._later(way, self.line.delay_s())

    def close(self, by: int | None = None) -> None:
        """Close the circuit: nothing arrives any more. Notify both ends, except the end ``by`` (OUT or IN)."""
        if self.closed:
            return
        self.closed = True
        for way in (OUT, IN):
            # behind a blocked line, an end notices the closing only when it sends
            if way != by and not self.line.blocked(way):
                self.line.loop.call_later(self.line.delay_s(), self.on_end[way])
        self.line.changed()

    def vanish(self) -> None:
        """End the connection like a machine without power: the client is not notified."""
        self.closed = True

    def release(self, way: int, after_s: float) -> None:
        """Deliver the data that was held back in this direction, ``after_s`` seconds from now."""
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
