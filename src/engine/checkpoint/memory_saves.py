"""The states of a rank in its node's memory.

The training copies a state, a thread hands the copy to the node, and ranks resume from it.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..node import blobs, context
from ..node.facts import memory_bytes
from ..runtime.instance_info import instance_info
from ..wire.checkpoint_messages import Kept, Stored
from .memory_interval import MemoryInterval, too_much
from .memory_waits import MemoryWaits
from .records import Damaged
from .resume_vote import Loaded
from .slot import KeptSnapshot, Slot, restored
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..node.context import TaskContext
    from ..node.log_sender import LogSender

SLOTS = 2  # one slot for the newest complete state, and one for the state that is being written
LOOKS_S = 0.005  # longest pause, in seconds, between two checks whether the other nodes have a state


def opened(run: str, rank: int, ranks: int, every: int | None, copies: int) -> MemorySaves | None:
    """Return the object that keeps a rank's states in memory; None: this process is not the main process of a rank."""
    task = context.current()
    if task is None or task.log is None or not task.log.here or ranks == 1:
        return None
    return MemorySaves(run, rank, ranks, task, task.log, every=every, copies=copies)


class MemorySaves:
    """The states of one rank that are kept in memory. Only the rank's training thread calls this."""

    def __init__(
        self, run: str, rank: int, ranks: int, task: TaskContext, node: LogSender, *, every: int | None, copies: int
    ) -> None:
        """Create the memory saves of a rank.

        ``every``: keep a state in memory once in this number of steps; None: as often as possible without a wait.
        """
        self._run, self._rank, self._ranks = run, rank, ranks
        self._task, self._node = task, node
        self._copies = copies
        info = instance_info()
        self._ranks_here = sum(peer.hostname == info.hostname for peer in info.peers)
        self._interval = MemoryInterval(every or 1)
        self._waits = None if every is None else MemoryWaits(run, every)
        self._slots = [Slot(self._ranks_here) for _ in range(SLOTS)]
        self._last: Slot | None = None  # the slot with the newest copied state
        # copied states for the thread that hands them to the node; None: the thread ends
        self._copied: SimpleQueue[tuple[Slot, Snapshot, int, int] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # the thread that hands copied states to the node
        self._handing_over = False
        self._again, self._step = 0, -1
        # (blob name, size in bytes, step) of the state that this rank resumed from
        self._resumed_from: tuple[str, int, int] | None = None
        self._newest: tuple[Slot, int, int] | None = None  # (slot, bytes, step) of the newest state
        # step -> number of repeated steps (`_again`) when this step's save to the storage began
        self._storing: Counter[int] = Counter()
        self._off = False

    def load(self, into: object) -> Loaded | None:
        """Return the state from which all ranks of this generation resume; None: no such state is in memory.

        Raises:
            CheckpointError: The saved state is sharded differently from ``into``.
            SerializationError: The state cannot be unpickled here.
        """
        offer = self._offer()
        if offer is None:
            return None
        name, fields = offer
        try:
            # the caller wants whole tensors, but the other shards are on other nodes
            if fields["sharded"] and into is None:
                return None
            state = restored(blobs.lent_mapping(name), fields["size_bytes"], into)
            self._resumed_from = name, fields["size_bytes"], fields["step"]
        finally:
            if self._resumed_from is None:
                blobs.drop_shared([name])
        self.resumed(fields["step"])
        return Loaded(fields["step"], state)

    def _offer(self) -> tuple[str, Any] | None:
        prefix = f"checkpoint:{self._task.attempt}:"
        for name in blobs.lent(prefix):
            fields = json.loads(name.removeprefix(prefix))
            if fields["run"] == self._run:
                return name, fields
        return None

    def resumed(self, step: int) -> None:
        self._interval.resumed(step)

    def due(self, step: int) -> bool:
        return not self._off and self._node.here and self._interval.due(step)

    def save(self, step: int, state: object, *, hurry: bool = False) -> bool:
        """Keep ``state`` in memory if this step is due. Return whether it is kept.

        With ``every``, wait until the requested nodes have the previous state, but no longer than `MemoryWaits` allows.
        Without ``every``, skip this step if it would have to wait.

        Args:
            step: The number of completed training steps.
            state: The state.
            hurry: True: do not wait.

        Raises:
            SerializationError: The state cannot be pickled.
        """
        self._again += step <= self._step
        self._step = step
        if not self.due(step):
            return False
        slot = self._free_slot() if self._waits is None or hurry else self._awaited_slot(self._waits)
        if slot is not None or not hurry:
            self._interval.done(step, kept=slot is not None)
        if slot is None:
            return False
        self._last = slot
        slot.begin()
        snapshot = Snapshot(state, slot)
        self._handing_over = True
        self._copied.put((slot, snapshot, self._again, step))
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._hand_all_over, daemon=True, name="outrider-memory")
            self._thread.start()
        return True

    def _free_slot(self) -> Slot | None:
        """Return a slot for the next state; None: some requested node does not have the previous state yet."""
        if self._handing_over:
            return None
        waits = self._waits is not None and not self._waits.is_abandoned
        if waits and self._last is not None and not self._last.safe:
            return None
        return next((each for each in self._slots if each.free), None)

    def _awaited_slot(self, waits: MemoryWaits) -> Slot | None:
        began = now = time.monotonic()
        while (slot := self._free_slot()) is None and (rest_s := waits.rest_s(began, now)) > 0:
            time.sleep(min(rest_s, LOOKS_S, (now - began) / 8 + 1e-4))
            now = time.monotonic()
        if slot is not None:
            self._tell(waits.waited(began, now))
        elif not waits.is_abandoned:
            self._tell(waits.gave_up())
        return slot

    def _tell(self, warning: str) -> None:
        if warning and not self._rank:  # only rank 0 warns, as every rank waits equally long
            warnings.warn(warning, RuntimeWarning, stacklevel=5)

    def newest(self) -> tuple[int, KeptSnapshot] | None:
        """Return (step, state) that this rank kept last, or resumed from; None: no state that all ranks are sure to
        have.

        If saves never wait (no ``every``), each rank skips steps on its own, so the ranks' newest states may differ.
        """
        self._end_thread()
        if self._waits is None and self._step >= 0:
            return None
        with suppress(LookupError, Damaged):
            if self._newest is not None:
                slot, size_bytes, step = self._newest
                kept = slot.snapshot(size_bytes)
                return None if kept is None else (step, kept)
            if self._resumed_from is not None:
                name, size_bytes, step = self._resumed_from
                return step, KeptSnapshot(blobs.lent_mapping(name), size_bytes)
        return None

    def storing(self, step: int) -> None:
        """Record that a save of this step to the storage begins."""
        self._storing[step] = self._again

    def stored(self, step: int) -> None:
        """Report to the node that a checkpoint is complete in the storage: it need not keep older states for later
        generations.
        """
        if self._node.here:
            with suppress(OSError):
                self._node.tell(Stored(self._task.attempt, self._run, self._storing.pop(step, self._again), step))

    def _end_thread(self) -> None:
        if self._thread is not None and self._node.here:
            self._copied.put(None)
            self._thread.join()
            self._thread = None

    def _forget_resumed(self) -> None:
        if self._resumed_from is not None:
            blobs.drop_shared([self._resumed_from[0]])
            self._resumed_from = None

    def close(self) -> None:
        self._end_thread()
        self._forget_resumed()
        self._off = True
        for slot in self._slots:
            slot.close()

    def _hand_all_over(self) -> None:
        while (copied := self._copied.get()) is not None:
            try:
                self._hand_over(*copied)
            finally:
                self._handing_over = False
            del copied  # without this, the variable would keep the state's memory in use until the next state arrives

    def _hand_over(self, slot: Slot, snapshot: Snapshot, again: int, step: int) -> None:
        """Hand a copied state to the node. If there is not enough memory, stop keeping states in memory."""
        try:
            size_bytes, digest = slot.finish(snapshot, self._rank)
            if self._is_too_much(slot.capacity_bytes):
                return
            sharded = any(entry.sharded for entry in snapshot.entries)
            part = Kept(self._task.attempt, self._run, again, step, self._copies, sharded, size_bytes, digest, "")
            self._node.tell(part, slot.take())
            self._newest = slot, size_bytes, step
            self._forget_resumed()
            for each in self._slots:
                if each.capacity_bytes < size_bytes and each.free:
                    each.reserve(slot.capacity_bytes)
        except OSError as error:
            slot.release()
            self._stop(f"{error.strerror or error}")

    def _is_too_much(self, state_bytes: int) -> bool:
        here, has = self._ranks_here, memory_bytes()
        why = too_much(state_bytes, copies=self._copies, ranks_here=here, ranks=self._ranks, memory_bytes=has)
        if why:
            self._stop(why)
        return bool(why)

    def _stop(self, why: str) -> None:
        self._off = True
        for slot in self._slots:
            slot.close()
        warnings.warn(
            f"No state of {self._run!r} is kept in memory from now on: {why}. Checkpoints in the storage go on.",
            RuntimeWarning,
            stacklevel=2,
        )
