"""The scheduler's records: its slots, the workers in them, the attempts that wait or run, and failed starts."""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ...lazy_dataclass import dataclass
from ..wire.messages import Cause, Run

STALL_S = 0.020  # after so long without a result, the attempts that wait in the pipe are taken back
TRIES = 5  # to start a worker, in a row; with pauses 0.6 s, for a host that is short of processes
PAUSE_S = 0.02  # twice as long before each further try


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    fresh: bool
    ready: bool = False  # has reported so
    idle_since: float | None = None  # has been ready since then, without an attempt so far
    used: bool = False  # has taken an attempt
    ending: bool = False
    stealing: bool = False

    def has_waited(self, now: float, seconds: float) -> bool:
        return self.idle_since is not None and now - self.idle_since >= seconds


@dataclass(slots=True, eq=False)
class Slot:
    index: int
    warm: Worker | None = None
    worker: Worker | None = None  # the warm one, or a fresh one in its place
    pipe: deque[Attempt] = field(default_factory=deque)  # delivered and not answered; the first one runs
    since: float = 0.0  # the time of the last progress
    stuck: bool = False  # its attempts were taken back, and no result has come since
    leaves_by: float | None = None  # when its fresh worker, which has answered, is ended
    extra: bool = False  # made for a rank of a broadcast that found no free slot; no other attempt runs in it
    beside: bool = False  # made for an attempt BESIDE the slots; has no warm worker, and is never free

    @property
    def stalls_at(self) -> float:
        return self.since + STALL_S

    @property
    def is_free(self) -> bool:
        worker = self.worker
        return worker is not None and not self.pipe and not worker.fresh and not worker.ending


@dataclass(slots=True, eq=False)
class Recall:
    returned: list[int]
    waiting: set[int] = field(default_factory=set)  # workers whose unread attempts are being taken back


@dataclass(slots=True, eq=False)
class Attempt:
    run: Run
    body: bytes
    slot: Slot | None = None
    started: float | None = None  # None: it waits, or its worker is not ready yet
    kill_cause: Cause | None = None
    kill_requested_at: float = 0.0
    recall: Recall | None = None

    @property
    def times_out_at(self) -> float | None:
        """Return when its timeout ends the attempt; None: it has none, has not started, or is to end already."""
        if self.kill_cause is not None or self.started is None or self.run.timeout_s is None:
            return None
        return self.started + self.run.timeout_s


class StartFailures:
    """Failures to start a worker, counted in a row. Starts that were under way together fail together, as one failure.

    A start has failed when the worker ends before its first attempt, unless it has waited for one for long enough.
    """

    def __init__(self) -> None:
        self.pause_until: float | None = None  # no worker is to be started before
        self._in_a_row = 0
        self._counted = 0  # the newest worker at the time of the last counted failure

    def succeeded(self, worker: int) -> None:
        if worker > self._counted:
            self._in_a_row = 0

    def failed(self, worker: int, latest: int, now: float) -> bool:
        """Record a failure; return whether there were too many. ``latest``: the newest worker."""
        if worker > self._counted:
            self._counted = latest
            self._in_a_row += 1
            self.pause_until = now + PAUSE_S * 2**self._in_a_row
        return self._in_a_row >= TRIES
