"""The free ports that one node offers, as the pool counts them. Pure; `engine.node.port_book` is the node's side."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

PORTS_MOST = 64  # largest number of remembered ports of a node; a node offers 32


class OfferedPorts:
    """The ports of one node that no generation has taken yet, in the order of their numbers.

    OFFER-1: a port is taken once; an offer that arrives twice, or after a later one, changes nothing.
    OFFER-2: after an offer, the pool has all ports of that offer except those that were already taken.
    """

    def __init__(self) -> None:
        self.taken = 0  # number of taken ports, which is also the number of the first free port
        self._free: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def offer(self, first: int, ports: Sequence[int]) -> None:
        """Add the new ports of an offer. ``first``: the number of the offer's first port."""
        end = self.taken + len(self._free)
        if len(set(ports)) < len(ports):  # a correct node never names a port twice
            return
        if first > end:  # the node counts more ports as taken than the pool: the ports in between are gone
            self._free.clear()
            self.taken = end = first
        self._free.extend(islice(ports, end - first, max(end - first, self.taken + PORTS_MOST - first)))

    def take(self, count: int) -> tuple[int, ...]:
        """Take the first ``count`` ports; the node must have that many."""
        self.taken += count
        return tuple(self._free.popleft() for _ in range(count))

    def first(self, count: int) -> tuple[int, ...]:
        """Return the next ``count`` ports without taking them."""
        return tuple(islice(self._free, count))
