"""Tells the ranks of a world which step is saved next, where that is a matter of time: a thread that looks for it."""

from __future__ import annotations

import threading

from ..api.errors import CheckpointError
from .pace import Pace
from .turn import Turn


class Calls:
    """Runs from `start` to `stop`. ``lock`` guards ``pace``, which the training asks in its own thread."""

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
            except CheckpointError:  # the next save will say so
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
    """Between two looks: an object storage bills each."""
    return 2 * poll_s


def lead_s(poll_s: float) -> float:
    """After so long all ranks have heard of a call: one look to make it, one to find it, and what these take."""
    return 3 * interval_s(poll_s)
