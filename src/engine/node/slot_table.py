"""The slots of an executor, and the choice for an attempt: a free slot, the pipe of a busy worker, or a new slot."""

from __future__ import annotations

from ..wire.messages import RunFlag
from .slots import Attempt, Slot, Worker

DEPTH = 64  # attempts queued in a worker's pipe: the queue hides the round trips between them
# a plain integer, because `&` of an enumeration costs 1 us
_UNSHARED = int(RunFlag.STREAM | RunFlag.ALONE | RunFlag.FRESH)


class SlotTable:
    """The slots of an executor. ``threads``: one warm worker serves all slots."""

    def __init__(self, slots: int = 0, *, threads: bool = False) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self.threads = threads and slots > 1
        self.free = self.slots[::-1]  # a stack: the slot that was freed last is used first
        self.free_extra: list[Slot] = []

    def stackable(self, attempt: Attempt, now: float) -> Slot | None:
        """Return the slot with the shortest pipe to which the attempt may be added; None if there is none.

        The added attempts are short: a client sends more attempts than there are slots only if it knows that they are
        short.
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
        """Take a free slot for a rank, or a free extra slot that was created for ranks; None if there is neither."""
        return self.free.pop() if self.free else self.free_extra.pop() if self.free_extra else None

    def add(self) -> Slot:
        """Create an extra slot for a rank."""
        return self._added(Slot(len(self.slots), extra=True))

    def beside(self) -> Slot:
        """Return a slot for an attempt with the flag BESIDE.

        This slot is not one of the node's regular slots, and the attempt may run as long as the node.
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
        """Stop offering the slots of a worker that is being ended to new attempts."""
        self.free = [slot for slot in self.free if slot.worker is not worker]
        self.free_extra = [slot for slot in self.free_extra if slot.worker is not worker]

    def count_free(self) -> None:
        free = [slot for slot in self.slots[::-1] if slot.is_free]
        self.free = [slot for slot in free if not slot.extra]
        self.free_extra = [slot for slot in free if slot.extra]

    def served_by(self, worker: Worker) -> list[Slot]:
        """Return the worker's slots, including those in which a fresh worker replaces it for the moment."""
        return [slot for slot in self.slots if worker in (slot.worker, slot.warm)]
