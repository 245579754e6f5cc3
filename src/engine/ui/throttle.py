"""Pauses between the runs of an activity, so that it uses at most a tenth of one CPU. No clock."""

from __future__ import annotations

PART = 0.1  # largest fraction of one CPU that the activity may use


class Throttle:
    """The throttle of one activity. ``least_s``: the shortest time between the beginnings of two runs, in seconds."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._next = 0.0

    def due(self, now: float) -> bool:
        return now >= self._next

    def done(self, began: float, ended: float) -> None:
        """Record when the latest run of the activity began and ended."""
        self._next = max(began + self._least_s, ended + (ended - began) * (1 / PART - 1))
