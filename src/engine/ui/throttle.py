"""Pauses between runs of an activity, so that it takes at most a tenth of a processor. No clock."""

from __future__ import annotations

PART = 0.1  # largest part of a processor that the activity takes


class Throttle:
    """The throttle of one activity. ``least_s``: the shortest pause."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def done(self, began: float, ended: float) -> None:
        """Note when the activity began and ended."""
        self._next = max(began + self._least_s, ended + (ended - began) * (1 / PART - 1))
