"""The states of a rank in its node's memory: saving, waiting, and resuming.

The training copies a state, a thread hands the copy to the node, and ranks resume from it (`MemorySaves`).

`MemoryInterval` decides which steps a rank keeps, without I/O or clock. A save that would have to wait for the previous
save is skipped. After that, only every second step is saved, then every fourth, and so on, until no save must wait.
Each rank decides alone, but a training can resume only from a step that every rank has kept. So the steps are multiples
of powers of two: the steps of the slowest rank are also steps of all other ranks.

KEEP-1: the steps that a rank keeps are multiples of ``every`` times a power of two, or the first step after such a
    multiple.
KEEP-2: if the saves of all ranks take at most n steps, n being a power of two, then in any 8 * n * ``every`` steps
    there is a step that all ranks keep.

`MemoryWaits` limits the waits of saves until the previous state has reached other nodes, and words the warnings about
them, without I/O or clock. With ``every``, a rank has room for only one state that is still on its way to other nodes,
so the next save waits for that state. Thus at most one step whose `save` has returned is missing on some requested
node.

WAIT-1: a save waits for at most `WAIT_S`. After one save has waited that long, no later save of this generation (one
    run of a broadcast on a fixed set of nodes) waits: a client that is suspended for an hour costs the training one
    wait, and ranks wait for each other once.
"""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections import Counter
from contextlib import suppress
from math import ceil
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..node import blobs, context
from ..node.facts import memory_bytes
from ..runtime.instance_info import instance_info
from ..wire.messages import Kept, Stored
from .agreement import Loaded
from .records import Damaged
from .slot import KeptSnapshot, Slot, restored
from .snapshot import Snapshot

if TYPE_CHECKING:
    from ..node.context import TaskContext
    from ..node.log_sender import LogSender


MOST_STRIDE = 256
AGAIN_AFTER = 8  # after so many due steps in a row without a skipped one, save twice as often


class MemoryInterval:
    def __init__(self, every: int) -> None:
        self._every = every
        self._last = 0
        self._in_row = 0
        self.stride = 1

    def resumed(self, step: int) -> None:
        self._last = step // self._every

    def due(self, step: int) -> bool:
        number = step // self._every
        return number // self.stride > self._last // self.stride

    def done(self, step: int, *, kept: bool) -> None:
        """Record that a due step was kept, or was skipped because the previous save is still running."""
        self._last = step // self._every
        self._in_row = self._in_row + 1 if kept else 0
        if not kept:
            self.stride = min(2 * self.stride, MOST_STRIDE)
        elif self._in_row == AGAIN_AFTER and self.stride > 1:
            self._in_row = 0
            self.stride //= 2


def too_much(state_bytes: int, *, copies: int, ranks_here: int, ranks: int, memory_bytes: int) -> str:
    """Return the reason why the ranks' states do not fit into memory; "": they fit.

    Each state needs two slots of memory on its rank's node and on each other node that holds a copy. All states
    together may use half of the computer's memory.

    Args:
        state_bytes: The size of one rank's state.
        copies: The number of nodes that keep each state.
        ranks_here: How many of the ranks run on this computer. If all do, their nodes share one copy in memory.
        ranks: The number of ranks.
        memory_bytes: The memory of this computer.
    """
    each = 2 * state_bytes * (1 if ranks_here == ranks else copies)
    if ranks_here * each <= memory_bytes // 2:
        return ""
    return (
        f"the state of a rank takes {_size_text(state_bytes)}, and {ranks_here} of them would take "
        f"{_size_text(ranks_here * each)} of this computer's {_size_text(memory_bytes)}, of which half may be used"
    )


def _size_text(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e8 else f"{count / 1e6:.2f} MB"


WAIT_S = 30.0
MEASURED_SAVES = 50  # number of saves over which the waiting time is summed, to compare it with SHARE
WARNED_SHARE = 0.1  # warn the user if the training spends at least this share of its time in such waits


class MemoryWaits:
    def __init__(self, run: str, every: int) -> None:
        self._run, self._every = run, every
        self.is_abandoned = self._has_warned = False
        self._saves = 0
        self._waited_s = 0.0
        self._since: float | None = None

    def rest_s(self, began: float, now: float) -> float:
        """Return how many more seconds a save may wait if its wait began at ``began``."""
        return 0.0 if self.is_abandoned else began + WAIT_S - now

    def gave_up(self) -> str:
        """Record that a save has waited for the whole `WAIT_S` in vain. Return a warning for the user."""
        self.is_abandoned = True
        return (
            f"A state of {self._run!r} was not on its nodes within {WAIT_S:g} s. From now on no save waits for that, "
            "and steps are left out that would have to wait: after a loss more than one may be done again. "
            "Checkpoints in the storage go on."
        )

    def waited(self, began: float, now: float) -> str:
        """Record a wait that succeeded, even a wait of 0 s. Return a warning for the user; "": no warning."""
        if self._since is None:
            self._since = began
        self._saves += 1
        self._waited_s += now - began
        if self._saves < MEASURED_SAVES:
            return ""
        took_s, waited_s = now - self._since, self._waited_s
        self._saves, self._waited_s, self._since = 0, 0.0, now
        if self._has_warned or waited_s < WARNED_SHARE * took_s:
            return ""
        self._has_warned = True
        without = ceil(self._every * took_s / max(took_s - waited_s, took_s / 1000))
        return (
            f"The training of {self._run!r} has waited for {waited_s:.1f} of the last {took_s:.1f} s until its states "
            f"were on other nodes, as every={self._every} demands. With every={without} it would hardly wait. Without "
            "every=... it never waits, and steps are left out instead."
        )


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
        # step -> value of `_again` (how often this rank repeated a step) when the step's save to the storage began
        self._storing: Counter[int] = Counter()
        self._off = False

    def load(self, into: object) -> Loaded | None:
        """Return the state from which this rank resumes together with all others; None: no such state is in memory.

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
        """Return (step, state) that this rank kept last, or resumed from; None if other ranks may not have it.

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
        """Report to the node that a checkpoint is complete in the storage.

        Then the node need not keep older states, from which a restarted training would resume.
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
