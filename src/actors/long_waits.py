"""The broadcasts that wait before their ranks run, and for how long each has waited. Pure.

WAITS-1: a broadcast that waits for the same thing for `LONG_S` is due, and again every `LONG_S` until the wait ends.
WAITS-2: a long wait is reported when it is first due, each time that its length has doubled, and at its end.
"""

from __future__ import annotations

from collections.abc import Hashable

from ..lazy_dataclass import dataclass
from .interfaces import JobId

LONG_S = 10.0  # seconds of waiting after which the request for ports is repeated and the wait is reported


@dataclass(slots=True)
class Wait:
    """The wait of one broadcast. ``of``: what the broadcast waits for; a new value begins a new wait."""

    of: Hashable
    since: float
    due_at: float
    report_s: float = LONG_S  # seconds of waiting after which the wait is reported next
    text: str = ""  # reason in the last report of this wait, for people; empty: the wait was not reported yet


class LongWaits:
    def __init__(self) -> None:
        self.waits: dict[JobId, Wait] = {}

    def see(self, job: JobId, of: Hashable | None, now: float) -> Wait | None:
        """Set what a broadcast waits for (None: it does not wait). Return the broadcast's previous wait if it ends now
        and was reported.
        """
        wait = self.waits.get(job)
        if wait is None:
            if of is not None:
                self.waits[job] = Wait(of, now, now + LONG_S)
            return None
        if wait.of == of:
            return None
        if of is None:
            del self.waits[job]
        else:
            self.waits[job] = Wait(of, now, now + LONG_S)
        return wait if wait.text else None

    def due(self, now: float) -> list[JobId]:
        """Return the broadcasts whose waits are due, and set the time at which each is due next."""
        due = [job for job, wait in self.waits.items() if wait.due_at <= now]
        for job in due:
            self.waits[job].due_at = now + LONG_S
        return due

    def report(self, job: JobId, text: str, now: float) -> float | None:
        """Return how many seconds a broadcast has waited, if the wait is to be reported now, else None. ``text``: what
        it waits for.
        """
        wait = self.waits[job]
        waited_s = now - wait.since
        # the tolerance is for clocks that round: waits are checked every `LONG_S`, perhaps a little early
        if waited_s < wait.report_s - LONG_S / 2:
            return None
        while wait.report_s < waited_s + LONG_S / 2:
            wait.report_s *= 2
        wait.text = text
        return waited_s

    def wake_at(self) -> float | None:
        return min((wait.due_at for wait in self.waits.values()), default=None)
