"""The ranks of ready nodes, computed from their seats: places in a list that stay the same while nodes come and go.
Pure.

SEATS-1: ranks have a single owner, the roster. Every other reader keeps the seats that `NodeReady` reports and computes
    ranks from them when needed: a node's rank changes with the nodes on lower seats, but its seat does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from . import events as ev

UNSEATING = (ev.NodeStandby, ev.NodeNoticed, ev.NodeDraining, ev.NodeFailed, ev.NodeLost, ev.NodeDismissed)


class Seats:
    """The seats of the nodes that have a rank, collected from the pool's events."""

    def __init__(self) -> None:
        self._seats: dict[int, int] = {}

    def apply(self, event: ev.NodeEvent) -> None:
        match event:
            case ev.NodeReady():
                self.take(event.node, event.rank if event.seat is None else event.seat)
            case ev.NodeEvent() if isinstance(event, UNSEATING):
                self.leave(event.node)
            case _:
                pass

    def take(self, node: int, seat: int) -> None:
        self._seats[node] = seat

    def leave(self, node: int) -> None:
        self._seats.pop(node, None)

    def ranks(self) -> Mapping[int, int]:
        """Return the current ranks by node; nodes without a rank are missing."""
        return {node: rank for rank, node in enumerate(self._ordered())}

    def _ordered(self) -> Iterator[int]:
        yield from sorted(self._seats, key=lambda node: (self._seats[node], node))
