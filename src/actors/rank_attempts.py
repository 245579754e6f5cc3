"""The attempts of a broadcast's ranks: which run, and where. Facts alone; `gang` decides what follows from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .ports import AttemptId, NodeId, World


class Latest(NamedTuple):
    """The latest attempt of a rank."""

    number: int  # 1 for the rank's first
    generation: int


class RankAttempts:
    def __init__(self, ids: Iterator[int]) -> None:
        self.running: dict[AttemptId, tuple[int, NodeId]] = {}  # rank and node
        self.on: Counter[NodeId] = Counter()  # running attempts, by node
        self.latest: dict[int, Latest] = {}  # by rank
        self._ids = ids

    def begun(self, rank: int, world: World) -> tuple[NodeId, AttemptId, int]:
        """Add an attempt of ``rank``; return its node, its id and its number."""
        node, attempt = world.nodes[rank // world.ranks_per_node], AttemptId(next(self._ids))
        number = self.latest[rank].number + 1 if rank in self.latest else 1
        self.latest[rank] = Latest(number, world.generation)
        self.running[attempt] = (rank, node)
        self.on[node] += 1
        return node, attempt, number

    def ended(self, attempt: AttemptId, node: NodeId) -> int | None:
        """Remove an attempt that ended on ``node`` and return its rank; None: ``node`` runs no such attempt."""
        rank, given_to = self.running.get(attempt, (0, None))
        if given_to != node:
            return None
        del self.running[attempt]
        self.on[node] -= 1
        return rank

    def lost(self, node: NodeId) -> tuple[int, ...]:
        """Remove the attempts on ``node`` and return their ranks."""
        if not self.on.pop(node, 0):
            return ()
        lost = {attempt: rank for attempt, (rank, on) in self.running.items() if on == node}
        for attempt in lost:
            del self.running[attempt]
        return tuple(lost.values())

    def clear(self) -> None:
        self.running.clear()
        self.on.clear()
