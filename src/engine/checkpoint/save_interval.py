"""The save interval: a step is saved every n steps, every n seconds, or because a machine will be taken back.

`SaveInterval` decides, without clock or I/O. All ranks must save the same steps, but their clocks differ. For saves by
steps, each rank decides alone. For saves by time, rank 0 announces a step that lies a little ahead, and each rank saves
at its first step at or after the announced step. A rank that has already passed that step when it reads the
announcement requests a later step. `Announcements` sends announcements and requests through the storage.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from math import ceil

from ..api.errors import CheckpointError
from .participant import Participant

_RATE_OVER = 32  # steps over which the speed of training is measured
# time between two exchanges, as a multiple of the storage's `poll_s`: object storage bills each request
EXCHANGE_POLLS = 2


class SaveInterval:
    """The save interval of one rank. Times are in seconds; every call must use the same clock."""

    def __init__(
        self, *, steps: int | None, seconds: float | None, alone: bool, leads: bool, lead_s: float, now: float
    ) -> None:
        """Create the interval. ``lead_s``: how many seconds it takes until all ranks have read an announced step."""
        self._steps, self._seconds = steps, seconds
        self._alone, self._leads = alone, leads
        self._lead_s = lead_s
        self._recent_steps: deque[tuple[float, int]] = deque(maxlen=_RATE_OVER)
        self._announced: set[int] = set()
        # whether the step of the latest `due` call must be saved because a machine will be taken back
        self.urgent = False
        self.resumed(0, now)

    def resumed(self, step: int, now: float) -> None:
        self._last, self._last_at = step, now
        self._recent_steps.clear()
        self._announced.clear()
        self._wants_announcement = self._answer = False

    def due(self, step: int, now: float, urgent: Callable[[], bool]) -> bool:
        """Return whether ``step`` must be saved. Another call for the same step returns the same answer."""
        if self._recent_steps and self._recent_steps[-1][1] == step:
            return self._answer
        self._recent_steps.append((now, step))
        before, self.urgent = self.urgent, urgent()
        late = self._seconds is not None and now - self._last_at >= self._seconds
        reached = {target for target in self._announced if target <= step}
        self._announced -= reached
        self._answer = (
            bool(reached)
            or (self.urgent and not before)
            or (self._steps is None and self._seconds is None)
            or (self._steps is not None and step // self._steps > self._last // self._steps)
            or (late and self._alone)
        )
        if self._answer:
            self._last, self._last_at = step, now
            self._wants_announcement = False
        elif late and self._leads and not self._announced:
            self._wants_announcement = True
        return self._answer

    def saved(self, step: int, now: float) -> None:
        """Record that ``step`` was saved, due or not, so that it is not due again."""
        self._last, self._last_at = step, now
        if self._recent_steps and self._recent_steps[-1][1] == step:
            self._answer = False

    def next_announcement(self) -> int | None:
        """Return the step that rank 0 must announce; None: no announcement is needed."""
        if (
            not self._wants_announcement or len(self._recent_steps) < 2
        ):  # the speed of training is known only after two steps
            return None
        (then, first), (now, step) = self._recent_steps[0], self._recent_steps[-1]
        rate = (step - first) / (now - then) if now > then else 0.0
        return step + max(1, ceil(rate * self._lead_s))

    def announced(self, target: int) -> None:
        if self._recent_steps and self._recent_steps[-1][1] >= target:
            self._lead_s *= 2
            self._wants_announcement = True
        else:
            self._announced.add(target)
            self._wants_announcement = False


class Announcements(threading.Thread):
    """The thread on each rank that writes and reads announced steps.

    ``lock``: guards the save interval, which the training's thread uses too.
    """

    def __init__(self, participant: Participant, interval: SaveInterval, lock: threading.Lock) -> None:
        super().__init__(daemon=True, name="outrider-checkpoint-announcements")
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/calls"
        self._interval, self._lock = interval, lock
        self._number = 0
        self._ended = threading.Event()

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(EXCHANGE_POLLS * self._store.poll_s):
            with suppress(CheckpointError):  # the next save raises the error
                self._exchange()

    def _exchange(self) -> None:
        key = f"{self._folder}/{self._number:06}"
        with self._lock:
            target = self._interval.next_announcement()
        if target is not None:
            self._store.create(key, b"%d" % target)  # no effect if another rank was first
        try:
            target = int(self._store.get(key))
        except FileNotFoundError:
            return
        self._number += 1
        with self._lock:
            self._interval.announced(target)


def lead_s(poll_s: float) -> float:
    """Return the seconds until every rank has read an announced step.

    This is the time of three exchanges with the storage: one to write, one to read, one in reserve.
    """
    return 3 * EXCHANGE_POLLS * poll_s


def spread_s(rank: int, ranks: int, since_last_s: float) -> float:
    """Return the seconds that a rank waits before it writes its save, so that ranks do not write all at once.

    The ranks' writes begin within a tenth of the time between two saves, at most within 5 s.
    """
    return min(5.0, since_last_s / 10) * rank / ranks
