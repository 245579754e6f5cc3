"""The free ports that one node offers, as the pool counts them. Pure. On the node, `engine.node.freeports` counts
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

PORTS_MOST = 64  # the pool remembers at most this number of free ports of a node; a node offers 32 at a time


class OfferedPorts:
    """The ports of one node that no generation has taken yet, in the order in which the node numbers them.

    OFFER-1: a port is taken once; an offer that arrives twice, or after a later offer, changes nothing.
    OFFER-2: after an offer, the pool has all ports of that offer except those that were already taken.
    """

    def __init__(self) -> None:
        # number of ports taken so far; as ports are numbered from 0 and taken in order, also the number of the first
        # free port
        self.taken = 0
        self._free: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._free)

    def offer(self, first: int, ports: Sequence[int]) -> None:
        """Add the ports of an offer that are new. ``first``: the node's number for the first port in ``ports``."""
        end = self.taken + len(self._free)
        # ignore the offer of a node with a defect: a correct node never names a port twice
        if len(set(ports)) < len(ports):
            return
        # the node counts more ports as taken than the pool does: forget the free ports with lower numbers
        if first > end:
            self._free.clear()
            self.taken = end = first
        self._free.extend(islice(ports, end - first, max(end - first, self.taken + PORTS_MOST - first)))

    def take(self, count: int) -> tuple[int, ...]:
        """Take the first ``count`` free ports; there must be as many."""
        self.taken += count
        return tuple(self._free.popleft() for _ in range(count))

    def first(self, count: int) -> tuple[int, ...]:
        """Return the first ``count`` free ports without taking them."""
        return tuple(islice(self._free, count))
