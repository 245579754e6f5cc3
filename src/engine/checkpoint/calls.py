"""A thread on each rank that writes and reads which step is saved next, for saves by time."""

from __future__ import annotations

import threading

from ..api.errors import CheckpointError
from .pace import Pace
from .turn import Turn


class Calls:
    """Announce and read steps from `start` to `stop`. ``lock`` guards ``pace``, which the training uses as well."""

    def __init__(self, turn: Turn, pace: Pace, lock: threading.Lock) -> None:
        self._store = turn.store
        self._folder = f"terms/{turn.term.number:08}/calls"
        self._pace, self._lock = pace, lock
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="outrider-checkpoint-calls")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(interval_s(self._store.poll_s)):
            try:
                self._look()
            except CheckpointError:  # the next save raises it
                continue

    def _look(self) -> None:
        key = f"{self._folder}/{self._number:06}"
        try:
            target = int(self._store.get(key))
        except FileNotFoundError:
            with self._lock:
                wish = self._pace.wish()
            if wish is None:
                return
            target = wish
            if not self._store.create(key, b"%d" % target):
                target = int(self._store.get(key))
        self._number += 1
        with self._lock:
            self._pace.called(target)


def interval_s(poll_s: float) -> float:
    """Seconds between two reads of the storage: object storage bills each request."""
    return 2 * poll_s


def lead_s(poll_s: float) -> float:
    """Seconds until every rank has read an announced step: one interval to write it, one to read it, one to spare."""
    return 3 * interval_s(poll_s)
