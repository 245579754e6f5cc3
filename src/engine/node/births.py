"""Limits on workers' births and ends: how often they may fail, and how long they may take. Pure.

A birth has failed when a worker is gone before it has taken an attempt, or has waited for one for long enough. Births
that were under way together fail together: that is one failure, whatever the number of slots.
"""

from __future__ import annotations

TRIES = 5  # in a row; with the pauses between them they take 0.6 s, which a host short of processes may need
PAUSE_S = 0.02  # twice as long before each further try
BIRTH_S = 60.0  # the fork server waits 20 s for its template to import, and 10 s for that to fork
END_S = 75.0  # more than the fork server gives what does not end (`forkserver.ENDS_S` and `STRAYS_S`)


class Births:
    """The births and ends of one executor's workers."""

    def __init__(self) -> None:
        self.rests_until: float | None = None  # no worker is to be started before
        self._failures = 0  # in a row
        self._counted = 0  # the last worker whose birth had begun when a failure was counted
        self._due: dict[int, float] = {}  # worker -> by when it must be ready, or gone

    def begun(self, worker: int, now: float) -> None:
        self._due[worker] = now + BIRTH_S

    def born(self, worker: int) -> None:
        self._due.pop(worker, None)

    def ending(self, worker: int, now: float) -> None:
        self._due[worker] = now + END_S

    def gone(self, worker: int) -> None:
        self._due.pop(worker, None)

    def used(self, worker: int) -> None:
        """Record that a worker was born well: births succeed, if its own began after the last failed one."""
        if worker > self._counted:
            self._failures = 0

    def failed(self, worker: int, latest: int, now: float) -> bool:
        """Record a failed birth; return whether births failed too often. ``latest``: the last worker to be begun."""
        if worker > self._counted:
            self._counted = latest
            self._failures += 1
            self.rests_until = now + PAUSE_S * 2**self._failures
        return self._failures >= TRIES

    def rested(self, now: float) -> bool:
        """Return whether a pause is over, as of now."""
        if self.rests_until is None or self.rests_until > now:
            return False
        self.rests_until = None
        return True

    def overdue(self, now: float) -> bool:
        return any(at <= now for at in self._due.values())

    def next_at(self) -> float | None:
        times = [*self._due.values(), *(() if self.rests_until is None else (self.rests_until,))]
        return min(times, default=None)
