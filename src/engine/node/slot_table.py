"""The slots of an executor, and the choice for an attempt: a free slot, a busy worker's pipe, or a new slot."""

from __future__ import annotations

from ..wire.messages import RunFlag
from .slots import Attempt, Slot, Worker

DEPTH = 64  # attempts in a worker's pipe: it hides the round trips between them
_UNSHARED = int(RunFlag.STREAM | RunFlag.ALONE | RunFlag.FRESH)  # a plain number: an enumeration's & costs 1 us


class SlotTable:
    """``threads``: one warm worker serves all of the slots."""

    def __init__(self, slots: int = 0, *, threads: bool = False) -> None:
        self.slots = [Slot(index) for index in range(slots)]
        self.threads = threads and slots > 1
        self.free = self.slots[::-1]  # the last one used is the first one used again
        self.free_extra: list[Slot] = []

    def stackable(self, attempt: Attempt, now: float) -> Slot | None:
        """Return the slot with the shortest pipe to which the attempt may be added.

        A client that sends more attempts than there are slots knows them to be short.
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
        """Take a free slot for a rank; if there is none, an extra slot that was made for ranks."""
        return self.free.pop() if self.free else self.free_extra.pop() if self.free_extra else None

    def add(self) -> Slot:
        """Make an extra slot for a rank."""
        return self._added(Slot(len(self.slots), extra=True))

    def beside(self) -> Slot:
        """Return a slot for an attempt BESIDE the slots, which may run as long as the node does."""
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
        """Close the slots of a worker that is being ended to new attempts."""
        self.free = [slot for slot in self.free if slot.worker is not worker]
        self.free_extra = [slot for slot in self.free_extra if slot.worker is not worker]

    def count_free(self) -> None:
        free = [slot for slot in self.slots[::-1] if slot.is_free]
        self.free = [slot for slot in free if not slot.extra]
        self.free_extra = [slot for slot in free if slot.extra]

    def served_by(self, worker: Worker) -> list[Slot]:
        """Return the worker's slots, those included where a fresh worker is in its place."""
        return [slot for slot in self.slots if worker in (slot.worker, slot.warm)]
