"""The records of `WorkerScheduler`: slots, their workers, waiting and running attempts, and failed starts of workers.

A warm worker runs many attempts, one after the other. A fresh worker runs one attempt, then ends.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ...lazy_dataclass import dataclass
from ..wire.messages import Cause, Run

STALL_S = 0.020  # after this time without a result, a worker's waiting attempts are taken back
# after so many failed starts of workers in a row, the executor gives up. The pauses between them are 0.6 s in total, in
# which a temporary lack of processes may pass.
TRIES = 5
PAUSE_S = 0.02  # pause after a failed start of a worker; it doubles with each failure


@dataclass(slots=True, eq=False)
class Worker:
    id: int
    fresh: bool
    ready: bool = False  # whether the worker has reported that it is ready
    # when the worker became ready, if it has had no attempt since; None otherwise
    idle_since: float | None = None
    used: bool = False  # whether the worker has read an attempt
    ending: bool = False
    stealing: bool = False

    def has_waited(self, now: float, seconds: float) -> bool:
        return self.idle_since is not None and now - self.idle_since >= seconds


@dataclass(slots=True, eq=False)
class Slot:
    index: int
    warm: Worker | None = None
    worker: Worker | None = None  # the warm worker, or a fresh worker that runs in its place
    pipe: deque[Attempt] = field(default_factory=deque)  # attempts sent to the worker, not answered; the first runs
    since: float = 0.0  # when an attempt last began or ended here
    stuck: bool = False  # waiting attempts were taken back, and no result has arrived since then
    leaves_by: float | None = None  # when the fresh worker, which has answered, must have ended
    extra: bool = False  # an extra slot, created for a rank when no slot was free; only ranks run in it
    beside: bool = False  # an extra slot for attempts with the flag BESIDE; has no warm worker, never counts as free

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
    waiting: set[int] = field(default_factory=set)  # workers whose unread attempts must still be taken back


@dataclass(slots=True, eq=False)
class Attempt:
    run: Run
    body: bytes
    slot: Slot | None = None
    started: float | None = None  # when the attempt began; None: it waits, or its worker is not ready
    kill_cause: Cause | None = None
    kill_requested_at: float = 0.0
    recall: Recall | None = None

    @property
    def times_out_at(self) -> float | None:
        """Return when the attempt's timeout expires; None if it has none, has not begun, or is already being ended."""
        if self.kill_cause is not None or self.started is None or self.run.timeout_s is None:
            return None
        return self.started + self.run.timeout_s


class StartFailures:
    """The number of failed starts of workers in a row. Starts that were in progress at the same time count once.

    A start has failed if the worker ends before its first attempt, unless it was ready for a while.
    """

    def __init__(self) -> None:
        self.pause_until: float | None = None  # start no worker before this time
        self._in_a_row = 0
        self._counted = 0  # number of the newest worker at the last counted failure

    def succeeded(self, worker: int) -> None:
        if worker > self._counted:
            self._in_a_row = 0

    def failed(self, worker: int, latest: int, now: float) -> bool:
        """Record a failed start; return whether too many have failed in a row.

        Args:
            worker: number of the worker that did not start.
            latest: number of the newest worker.
            now: the time, in seconds.
        """
        if worker > self._counted:
            self._counted = latest
            self._in_a_row += 1
            self.pause_until = now + PAUSE_S * 2**self._in_a_row
        return self._in_a_row >= TRIES
