"""The ready nodes by rank. Pure. A replacement takes the seat of the node it replaces, so the other ranks stay."""

from __future__ import annotations

from heapq import heappop, heappush

from .ports import NodeId


class Roster:
    """Seats in order; an empty seat is passed over in counting ranks and is the first to be filled.

    ROSTER-1: ranks are 0..n-1, each node has one, and a node keeps its place before every node that sat behind it.
    ROSTER-2: a node that joins takes the lowest empty seat.
    """

    __slots__ = ("_empty", "_ranked", "_ranks", "_seats", "_where")

    def __init__(self) -> None:
        self._seats: list[NodeId | None] = []
        self._where: dict[NodeId, int] = {}
        self._empty: list[int] = []
        self._ranked: tuple[NodeId, ...] | None = ()
        self._ranks: dict[NodeId, int] = {}

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, node: NodeId) -> bool:
        return node in self._where

    def join(self, node: NodeId) -> None:
        if node in self._where:
            return
        if self._empty:
            seat = heappop(self._empty)
            self._seats[seat] = node
        else:
            seat = len(self._seats)
            self._seats.append(node)
        self._where[node] = seat
        self._ranked = None

    def leave(self, node: NodeId) -> None:
        seat = self._where.pop(node, None)
        if seat is not None:
            self._seats[seat] = None
            heappush(self._empty, seat)
            self._ranked = None

    @property
    def ranked(self) -> tuple[NodeId, ...]:
        """Return the nodes by rank: the same tuple object until the membership changes."""
        if self._ranked is None:
            self._ranked = tuple(node for node in self._seats if node is not None)
            self._ranks = {node: rank for rank, node in enumerate(self._ranked)}
        return self._ranked

    def rank(self, node: NodeId) -> int | None:
        _ = self.ranked
        return self._ranks.get(node)

    def at(self, rank: int) -> NodeId | None:
        ranked = self.ranked
        return ranked[rank] if 0 <= rank < len(ranked) else None
