"""The progress of a map: items per second, and the remaining time.

Callers pass the time; this module reads no clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ...lazy_dataclass import dataclass

# the rate is measured over the last seconds only, because older items are less typical of the remaining items
WINDOW_S = 10.0
STEP_S = 0.25  # minimum seconds between two stored points


@dataclass(slots=True)
class Progress:
    """The progress of one map.

    ``done``: the number of items that have ended. ``total``: of all items; None: unknown.
    """

    function: str
    total: int | None
    began_at: float
    done: int = 0
    failed: int = 0
    # (time, number of items that were done), the oldest first
    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def reached(self, done: int, at: float, failed: int = 0) -> None:
        self.failed = failed
        if not self._points or at - self._points[-1][0] >= STEP_S:
            self._points.append((at, done))
        self.done = done
        if self.total is not None and done > self.total:
            self.total = None  # the `len()` of the map's input was wrong
        while len(self._points) > 1 and self._points[1][0] <= at - WINDOW_S:
            self._points.popleft()

    def rate(self, now: float) -> float:
        """The number of items per second, measured over the last `WINDOW_S`."""
        since, before = next(((at, done) for at, done in self._points if at > now - WINDOW_S), (self.began_at, 0))
        # no item ended within the window: use the average since the start, which falls as time passes
        if self.done == before:
            since, before = self.began_at, 0
        return (self.done - before) / (now - since) if now > since else 0.0

    def left_s(self, now: float) -> float | None:
        """The estimated seconds until all items are done; None: unknown."""
        rate = self.rate(now)
        return None if self.total is None or rate <= 0 else (self.total - self.done) / rate


def per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.2g}/min"
