"""The scheduler's records: slots, their workers, waiting and running attempts, and failed starts of workers."""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ...lazy_dataclass import dataclass
from ..wire.messages import Cause, Run

STALL_S = 0.020  # seconds without a result after which the attempts that wait in the pipe are taken back
# failed starts of a worker in a row before the executor gives up; with pauses 0.6 s, as processes may be short
TRIES = 5
PAUSE_S = 0.02  # pause before the first further try; it doubles with each try


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    fresh: bool
    ready: bool = False  # whether the worker has reported that it is ready
    # the time since when the worker is ready and has no attempt; None: it has had one, or is not ready
    idle_since: float | None = None
    used: bool = False  # whether the worker has taken an attempt
    ending: bool = False
    stealing: bool = False

    def has_waited(self, now: float, seconds: float) -> bool:
        return self.idle_since is not None and now - self.idle_since >= seconds


@dataclass(slots=True, eq=False)
class Slot:
    index: int
    warm: Worker | None = None
    worker: Worker | None = None  # the warm worker, or a fresh worker in its place
    pipe: deque[Attempt] = field(default_factory=deque)  # attempts delivered and not answered; the first one is running
    since: float = 0.0  # time of the last progress
    stuck: bool = False  # the slot's attempts were taken back, and no result has arrived since
    leaves_by: float | None = None  # time limit for its fresh worker, which has answered, to end
    extra: bool = False  # created for a rank of a broadcast that found no free slot; only ranks run in it
    beside: bool = False  # created for an attempt with the flag BESIDE; has no warm worker, and never counts as free

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
    waiting: set[int] = field(default_factory=set)  # workers whose unread attempts are still to be taken back


@dataclass(slots=True, eq=False)
class Attempt:
    run: Run
    body: bytes
    slot: Slot | None = None
    started: float | None = None  # None: the attempt waits, or its worker is not ready yet
    kill_cause: Cause | None = None
    kill_requested_at: float = 0.0
    recall: Recall | None = None

    @property
    def times_out_at(self) -> float | None:
        """Return when the timeout expires; None: no timeout, not started, or already being ended."""
        if self.kill_cause is not None or self.started is None or self.run.timeout_s is None:
            return None
        return self.started + self.run.timeout_s


class StartFailures:
    """Failures to start a worker, counted in a row. Starts that were in progress at the same time count as one failure.

    A start has failed if the worker ends before its first attempt, unless it has waited long enough for one.
    """

    def __init__(self) -> None:
        self.pause_until: float | None = None  # no worker may be started before this time
        self._in_a_row = 0
        self._counted = 0  # the newest worker when a failure was last counted

    def succeeded(self, worker: int) -> None:
        if worker > self._counted:
            self._in_a_row = 0

    def failed(self, worker: int, latest: int, now: float) -> bool:
        """Record a failure; return whether there were too many in a row. ``latest``: the newest worker."""
        if worker > self._counted:
            self._counted = latest
            self._in_a_row += 1
            self.pause_until = now + PAUSE_S * 2**self._in_a_row
        return self._in_a_row >= TRIES
