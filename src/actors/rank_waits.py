"""The time for which each rank that tasks wait for has had no node. Pure; time comes in with each event.

RANKS-1: a rank is overdue when it has been missed for ``patience_s`` on end, and not before.
"""

from __future__ import annotations

from collections.abc import Iterable


class RankWaits:
    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._due_at: dict[int, float] = {}

    def missed(self, ranks: Iterable[int], now: float) -> None:
        """Record that these ranks, and no others, are missed now."""
        self._due_at = {rank: self._due_at.get(rank, now + self._patience_s) for rank in ranks}

    def overdue(self, now: float) -> list[int]:
        """Return and forget the ranks missed for too long; a later wait for one of them is counted anew."""
        overdue = [rank for rank, at in self._due_at.items() if at <= now]
        for rank in overdue:
            del self._due_at[rank]
        return overdue

    def wake_at(self) -> float | None:
        return min(self._due_at.values(), default=None)
