"""Pauses between the times at which something is done, so that it takes a tenth of a processor at most. No clock."""

from __future__ import annotations

PART = 0.1  # of a processor


class Throttle:
    """``least_s``: between two times at least."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def done(self, began: float, ended: float) -> None:
        """Say when it was done."""
        self._next = max(began + self._least_s, ended + (ended - began) * (1 / PART - 1))
