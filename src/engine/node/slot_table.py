"""The slots of an executor (slot: room for one task), and the choice of a slot for an attempt (a try at a task).

An attempt gets a free slot, waits in the pipe of a busy worker, or gets an extra slot.
"""

from __future__ import annotations

from ..wire.messages import RunFlag
from .slots import Attempt, Slot, Worker

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
        """Return the worker's slots, including a slot in which a fresh worker runs one attempt in its place."""
        return [slot for slot in self.slots if worker in (slot.worker, slot.warm)]
