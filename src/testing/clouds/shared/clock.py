"""The test cloud's time: real time, which tests may advance. Actions can be scheduled for a time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import count

Deed = Callable[[], None]


class Clock:
    """Counts the seconds since the test cloud began, and runs scheduled actions in a thread. Actions must be short."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed  # is called with each exception of an action
        self._began, self._wall = time.monotonic(), time.time()
        self._ahead = 0.0
        self._due: list[tuple[float, int, Deed]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._over = False
        # held while an action runs: actions run one at a time and in order, in any thread
        self._doing = threading.RLock()
        self._thread = threading.Thread(target=self._run, name="cloud-clock", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic() - self._began + self._ahead

    def unix(self, at: float | None = None) -> float:
        """Return a time of this clock (default: now) as unix time. Until a test advances the clock, this is
        `time.time`.
        """
        return self._wall + (self.now() if at is None else at)

    def date(self, at: float | None = None) -> datetime:
        return datetime.fromtimestamp(self.unix(at), UTC)

    def at(self, when: float, deed: Deed) -> None:
        with self._changed:
            heapq.heappush(self._due, (when, next(self._numbers), deed))
            self._changed.notify()

    def after(self, seconds: float, deed: Deed) -> None:
        self.at(self.now() + seconds, deed)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let only this thread run actions while the block runs."""
        with self._doing:
            yield

    def step(self, until: float) -> bool:
        """Advance to the next action that is due by ``until``, and run the action.

        Return False if no action is due by then: the time is ``until``.
        """
        with self._changed:
            due = self._due[0][0] if self._due and self._due[0][0] <= until else None
            self._ahead += max(0.0, (until if due is None else due) - self.now())
            self._changed.notify_all()
        self._do_due()
        return due is not None

    def sleep(self, seconds: float) -> None:
        """Wait until this many seconds of the test cloud's time have passed, or the clock is closed."""
        until = self.now() + seconds
        with self._changed:
            while not self._over and (left := until - self.now()) > 0:
                self._changed.wait(left)

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._due.clear()
            self._changed.notify_all()
        self._thread.join()

    def _do_due(self) -> None:
        with self._doing:
            while True:
                with self._changed:
                    if self._over or not self._due or self._due[0][0] > self.now():
                        return
                    _, _, deed = heapq.heappop(self._due)
                try:
                    deed()
                except Exception as error:  # noqa: BLE001 - the clock continues
                    self._failed(error)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._over and not (self._due and self._due[0][0] <= self.now()):
                    self._changed.wait(self._due[0][0] - self.now() if self._due else None)
                if self._over:
                    return
            self._do_due()
