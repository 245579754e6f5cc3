"""The records of `WorkerScheduler`: slots (a slot: room for one task), workers, attempts, and failed starts of workers.

A warm worker runs many attempts (tries at a task), one after the other. A fresh worker runs one attempt, then ends.
`SlotTable` chooses the slot of an attempt: the attempt gets a free slot, waits in the pipe of a busy worker, or gets an
extra slot.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ...lazy_dataclass import dataclass
from ..wire.messages import Cause, Run, RunFlag

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
    since: float = 0.0  # when an attempt last began or ended in this slot
    stuck: bool = False  # waiting attempts were taken back, and no result has arrived since then
    leaves_by: float | None = None  # time limit for the end of a fresh worker that has answered
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


DEPTH = 64  # attempts in a worker's pipe: the next one begins without waiting for a round trip
# Flags of attempts that share their slot with no other attempt. A plain integer, because `&` of an enumeration costs
# 1 us.
_UNSHARED = int(RunFlag.STREAM | RunFlag.ALONE | RunFlag.FRESH)


class SlotTable:
    """The slots of an executor.

    Args:
        slots: number of regular slots.
        threads: whether a single worker, with one thread for each slot, serves all slots.
    """

    def __init__(self, slots: int = 0, *, threads: bool = False) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self.threads = threads and slots > 1
        self.free = self.slots[::-1]  # the last element is used first: the slot freed last
        self.free_extra: list[Slot] = []

    def stackable(self, attempt: Attempt, now: float) -> Slot | None:
        """Return the busy slot with the shortest pipe in which the attempt may wait; None if there is no such slot.

        An attempt waits only for short attempts: a client sends more attempts than the node has slots only if it has
        measured that they are short.
        """
        if self.threads or attempt.run.flags & _UNSHARED:
            return None
        best: Slot | None = None
        for slot in self.slots:
            if (
                0 < len(slot.pipe) < (DEPTH if best is None else len(best.pipe))
                and not slot.pipe[0].run.flags & _UNSHARED
                and not slot.extra
                and not slot.stuck
                and now < slot.stalls_at
                and slot.worker is not None
                and not slot.worker.stealing
                and not slot.worker.ending
            ):
                best = slot
        return best

    def take_any(self) -> Slot | None:
        """Return a free slot for a rank, and count it as busy: a regular or an extra slot; None if no slot is free."""
        return self.free.pop() if self.free else self.free_extra.pop() if self.free_extra else None

    def add(self) -> Slot:
        """Create an extra slot, for a rank that finds no free slot."""
        return self._added(Slot(len(self.slots), extra=True))

    def beside(self) -> Slot:
        """Return a slot for an attempt with the flag BESIDE, which uses none of the node's regular slots.

        Such an attempt may run as long as the node.
        """
        for slot in self.slots:
            if slot.beside and slot.worker is None:
                return slot
        return self._added(Slot(len(self.slots), extra=True, beside=True))

    def _added(self, slot: Slot) -> Slot:
        self.slots.append(slot)
        return slot

    def release(self, slot: Slot) -> None:
        if slot.is_free:
            (self.free_extra if slot.extra else self.free).append(slot)

    def withdraw(self, worker: Worker) -> None:
        """Give no more attempts to the slots of this worker, because the worker is being ended."""
        self.free = [slot for slot in self.free if slot.worker is not worker]
        self.free_extra = [slot for slot in self.free_extra if slot.worker is not worker]

    def count_free(self) -> None:
        free = [slot for slot in self.slots[::-1] if slot.is_free]
        self.free = [slot for slot in free if not slot.extra]
        self.free_extra = [slot for slot in free if slot.extra]

    def served_by(self, worker: Worker) -> list[Slot]:
        """Return the slots of this worker, including a slot in which a fresh worker replaces it for one attempt."""
        return [slot for slot in self.slots if worker in (slot.worker, slot.warm)]
