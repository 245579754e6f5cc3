"""The silence of a node: for how long it could have been heard, and was not. Pure.

An event loop that stands still, as while a value of gigabytes is unpickled, hears nobody. It shows by a timer that is
late: for so long nothing was read, and no ping was sent that could have been answered.

HEARD-1: time for which a timer was late is no silence: a node that would be heard is not given up for it.
HEARD-2: all other time is: a node that is heard no more is given up after `SILENCE_S` of time in which the loop ran.
"""

from __future__ import annotations

LATE_S = 0.1  # below this it is noise


class SilenceClock:
    def __init__(self) -> None:
        self.heard_at = 0.0  # when the node was last heard; the caller sets it, on a hot path
        self._due_at: float | None = None

    def expect(self, at: float) -> None:
        """Say when the next timer is due."""
        self._due_at = at

    def lasts(self, now: float) -> float:
        """Return the seconds of silence up to ``now``. To be called when the timer rings, and whenever it is asked."""
        late_s = 0.0 if self._due_at is None else now - self._due_at
        if late_s > LATE_S:
            self.heard_at = min(now, self.heard_at + late_s)
            self._due_at = now
        return now - self.heard_at
