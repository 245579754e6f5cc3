"""Decide which steps are saved: every n steps, every n seconds, or because a machine will be taken. No clock, no I/O.

All ranks must save the same steps, and each has a clock of its own. So saves by steps are decided by each rank alone,
while for saves by time rank 0 announces a step a little ahead, and each rank saves at its first step that is not
before it. A rank that is past that step when it reads the announcement asks for another one, further ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil

_RATE_OVER = 32  # steps over which the speed of training is measured


class SaveInterval:
    """The save interval of one rank. Times are seconds of any clock, the same for all calls."""

    def __init__(
        self, *, steps: int | None, seconds: float | None, alone: bool, leads: bool, lead_s: float, now: float
    ) -> None:
        """``lead_s``: seconds until all ranks have read an announced step."""
        self._steps, self._seconds = steps, seconds
        self._alone, self._leads = alone, leads
        self._lead_s = lead_s
        self._asked: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)
        self._answer = False
        self._calls: set[int] = set()
        self._wants_announcement = False
        self._urgent = False
        self.resumed(0, now)

    def resumed(self, step: int, now: float) -> None:
        """Note that training goes on from ``step``."""
        self._last, self._last_at = step, now
        self._asked.clear()
        self._calls.clear()
        self._wants_announcement = self._answer = False

    def due(self, step: int, now: float, urgent: Callable[[], bool]) -> bool:
        """Return whether ``step`` is saved. A second call for the same step gives the same answer."""
        if self._asked and self._asked[-1][1] == step:
            return self._answer
        self._asked.append((now, step))
        before, self._urgent = self._urgent, urgent()
        late = self._seconds is not None and now - self._last_at >= self._seconds
        announced = {target for target in self._calls if target <= step}
        self._calls -= announced
        self._answer = (
            bool(announced)
            or (self._urgent and not before)
            or (self._steps is None and self._seconds is None)
            or (self._steps is not None and step // self._steps > self._last // self._steps)
            or (late and self._alone)
        )
        if self._answer:
            self._last, self._last_at = step, now
            self._wants_announcement = False
        elif late and self._leads and not self._calls:
            self._wants_announcement = True
        return self._answer

    def saved(self, step: int, now: float) -> None:
        """Note that ``step`` was saved, whether it was due or not: it is not due a second time."""
        self._last, self._last_at = step, now
        if self._asked and self._asked[-1][1] == step:
            self._answer = False

    def next_announcement(self) -> int | None:
        """The step that rank 0 must announce, or None."""
        if not self._wants_announcement or len(self._asked) < 2:  # two steps at least, to know how fast training is
            return None
        (then, first), (now, step) = self._asked[0], self._asked[-1]
        rate = (step - first) / (now - then) if now > then else 0.0
        return step + max(1, ceil(rate * self._lead_s))

    def announced(self, target: int) -> None:
        """Take note of an announced step."""
        if self._asked and self._asked[-1][1] >= target:
            self._lead_s *= 2
            self._wants_announcement = True
        else:
            self._calls.add(target)
            self._wants_announcement = False
