"""Decide how many items `Pool.map` puts into one task, from how long items take, so that cheap items share one round
trip.
"""

from __future__ import annotations

from dataclasses import dataclass

TARGET_S = 0.004  # a chunk's running time: 20 times a trip's cost, and still 250 answers a second from each slot
GROWTH = 8  # at most so many times larger than the last: one quick item says little about the next
MOST = 4096


@dataclass(slots=True)
class ChunkSize:
    """Starts at one item; grows while chunks are quick, shrinks at once when they are slow."""

    most: int = MOST
    now: int = 1
    _per_item_s: float | None = None

    def took(self, items: int, busy_s: float) -> None:
        """A chunk of ``items`` ran for ``busy_s``."""
        each = max(busy_s / items, 1e-9)
        before = self._per_item_s
        self._per_item_s = each if before is None or each > before else 0.7 * before + 0.3 * each
        wanted = int(TARGET_S / self._per_item_s)
        self.now = max(1, min(wanted, self.now * GROWTH, self.most))
