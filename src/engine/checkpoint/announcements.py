"""A thread on each rank that writes and reads which step is saved next, for saves by time."""

from __future__ import annotations

import threading

from ..api.errors import CheckpointError
from .participant import Participant
from .save_interval import SaveInterval


class Announcements:
    """Announce and read steps from `start` to `stop`. ``lock`` guards the interval, which the training uses too."""

    def __init__(self, participant: Participant, save_interval: SaveInterval, lock: threading.Lock) -> None:
        self._store = participant.store
        self._folder = f"terms/{participant.term.number:08}/calls"
        self._interval, self._lock = save_interval, lock
        self._number = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="outrider-checkpoint-calls")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(poll_interval_s(self._store.poll_s)):
            try:
                self._exchange()
            except CheckpointError:  # the next save raises it
                continue

    def _exchange(self) -> None:
        key = f"{self._folder}/{self._number:06}"
        try:
            target = int(self._store.get(key))
        except FileNotFoundError:
            with self._lock:
                next_announcement = self._interval.next_announcement()
            if next_announcement is None:
                return
            target = next_announcement
            if not self._store.create(key, b"%d" % target):
                target = int(self._store.get(key))
        self._number += 1
        with self._lock:
            self._interval.announced(target)


def poll_interval_s(poll_s: float) -> float:
    """Seconds between two reads of the storage: object storage bills each request."""
    return 2 * poll_s


def lead_s(poll_s: float) -> float:
    """Seconds until every rank has read an announced step: one interval to write it, one to read it, one to spare."""
    return 3 * poll_interval_s(poll_s)
