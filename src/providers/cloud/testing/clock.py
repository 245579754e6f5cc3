"""The cloud's time, which is real time that tests may advance, and scheduled actions."""

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
    """The seconds since the cloud began, and a thread that runs actions when they are due. Actions must be short."""

    def __init__(self, failed: Callable[[Exception], None]) -> None:
        self._failed = failed  # a function that is called with exceptions of actions
        self._began, self._wall = time.monotonic(), time.time()
        self._ahead = 0.0
        self._due: list[tuple[float, int, Deed]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._over = False
        self._doing = threading.RLock()  # actions run one at a time, in order, in any thread
        self._thread = threading.Thread(target=self._run, name="cloud-clock", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.monotonic() - self._began + self._ahead

    def unix(self, at: float | None = None) -> float:
        """Return a time of this clock (default: now) in seconds since 1970; equal to `time.time` until it is
        advanced.
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
        """Let only this thread run actions during the block."""
        with self._doing:
            yield

    def step(self, until: float) -> bool:
        """Advance to the next action due by ``until`` and run it; return False if there is none, and the time is
        ``until``.
        """
        with self._changed:
            due = self._due[0][0] if self._due and self._due[0][0] <= until else None
            self._ahead += max(0.0, (until if due is None else due) - self.now())
            self._changed.notify_all()
        self._do_due()
        return due is not None

    def sleep(self, seconds: float) -> None:
        """Wait this many seconds of the cloud's time; less if the clock is advanced or closed."""
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
