"""`checkpoint`: save the state of a training at intervals, and resume from it."""

from __future__ import annotations

import atexit
import operator
import os
import threading
import time
import warnings
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self, SupportsIndex

from ..api.checks import seconds, shown
from ..api.errors import CheckpointError, SpecError
from ..api.language import is_python
from ..node import context
from ..runtime.preemption import stopping
from ..wire import log_records
from ..wire.messages import Joined
from .agreement import Announcements, Loaded, ResumeVote, SaveInterval, lead_s, participant_of, spread_s, this_world
from .background_saves import BackgroundSaves
from .memory_saves import opened
from .records import complete
from .snapshot import CopyMemory, Snapshot, restore
from .store import VARIABLE, open_store

DURABLE_S = 300.0
_NO_PLACE = (
    'checkpoint: there is no place to keep it: give the pool one, Pool(checkpoints="s3://bucket/folder"), or this '
    "call, root=..."
)
_NO_PLACE_OF_RUN = (
    "checkpoint: there is no place to keep it: give the run one, --set checkpoints=ck, which is a folder that all "
    "nodes share, or s3://bucket/folder; or give this call root=..."
)


def checkpoint(
    name: str,
    *,
    every: int | float | timedelta | None = None,
    keep: int = 3,
    root: str | os.PathLike[str] | None = None,
    timeout: float | timedelta = 600.0,
    memory: int | None = None,
    durable: int | float | timedelta | None = None,
) -> Checkpoint:
    """Open the checkpoints of one training. Every rank calls this with the same arguments.

    Args:
        name: The name of the training's run.
        every: How often `Checkpoint.save` saves: a number of steps (an int), or seconds (a float or a timedelta).
            Default: on each call. With ``memory``: how often a state is copied to other nodes' memory, in steps; by
                default as often as possible without a wait in `save`.
        keep: The number of complete checkpoints to keep.
        root: A folder that all nodes share, or a URL such as ``"s3://bucket/folder"``. Default: that of
            ``Pool(checkpoints=...)``.
        timeout: How long ranks wait for each other, in seconds.
        memory: The number of nodes, including its own, that keep each rank's state in memory, beside the checkpoints in
            the storage. With ``every``, `Checkpoint.save` waits, for at most 30 s, until the previous state is on these
            nodes.
            Default: none.
        durable: With ``memory``: how often a state is saved to the storage, in steps or seconds. Default: 300 seconds.

    Raises:
        SpecError: An argument is not valid, or neither the pool nor this call has a root.
    """
    root = root if root is not None else os.environ.get(VARIABLE)
    if root is None:
        raise SpecError(_NO_PLACE if is_python() else _NO_PLACE_OF_RUN)
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise SpecError(f"checkpoint: keep takes how many complete checkpoints stay, at least 1, not {keep!r}.")
    in_memory = _in_memory(memory, every, durable)
    if memory is not None:
        every = DURABLE_S if durable is None else durable
    steps, every_s = _interval(every)
    within_s = seconds("checkpoint: timeout", timeout)
    return Checkpoint(name, root, steps=steps, every_s=every_s, keep=keep, within_s=within_s, in_memory=in_memory)


class Checkpoint:
    """The checkpoints of one training, opened by the function `checkpoint`. Not thread-safe."""

    def __init__(
        self,
        name: str,
        root: str | os.PathLike[str],
        *,
        steps: int | None,
        every_s: float | None,
        keep: int,
        within_s: float,
        in_memory: tuple[int | None, int] | None = None,
    ) -> None:
        """Open the storage.

        Args:
            name: The name of the training's run.
            root: A folder or a URL.
            steps: The number of steps between saves; None: no saves by steps.
            every_s: The number of seconds between saves; None: no saves by time.
            keep: The number of complete checkpoints to keep.
            within_s: How long ranks wait for each other, in seconds.
            in_memory: (steps between copies to memory, copies of each rank's state). Steps None: as often as possible
                without a wait. None: no state is kept in memory.
        """
        self.name = name
        self._store = open_store(root, name)
        self._world, self._rank = this_world()
        self._keep, self._within_s = keep, within_s
        self._lock = threading.Lock()
        self._interval = SaveInterval(
            steps=steps,
            seconds=every_s,
            alone=self._world.size == 1,
            leads=self._rank == 0,
            lead_s=lead_s(self._store.poll_s),
            now=time.monotonic(),
        )
        self._copies = CopyMemory()
        self._only_in_memory = False  # True: the newest state is in memory but not in the storage
        self._in_memory = None if in_memory is None else opened(name, self._rank, self._world.size, *in_memory)
        self._begins = threading.Lock()
        # None: this rank has not registered its run in the storage yet (`agreement.participant_of`)
        self._saves: BackgroundSaves | None = None
        self._announcements: Announcements | None = None
        self._timed = every_s is not None
        self._saved_at = time.monotonic()
        self._loads = 0
        self._closed = self._has_joined = False
        self._task = context.current()
        if self._task is not None:
            self._task.closing.append(self.close)
        else:
            atexit.register(self.close)

    def load(self, *, into: Any = None) -> Loaded:
        """Load the newest complete checkpoint that every rank can read. All ranks call it.

        Each rank gets the state that it saved. If another number of ranks saved it, rank ``r`` gets the state of rank
        ``r % saved``, and tensors that were sharded over ranks (`DTensor`) are returned whole.

        Args:
            into: A state of the same form. Its tensors are filled in place and become part of the returned state. This
                way a sharded model can be filled from a checkpoint with other shards.

        Returns:
            ``(step, state)``, or ``(0, None)`` without a checkpoint.

        Raises:
            CheckpointError: All checkpoints are damaged, the storage or another rank does not answer, or there is no
                space for the small files by which ranks agree (``full``). It is safe to call it again.
            SerializationError: The state cannot be unpickled here.
        """
        self._join()
        if self._in_memory is not None and not self._loads:
            resumed = self._in_memory.load(into)
            if resumed is not None:
                self._loads += 1
                self._only_in_memory = True
                with self._lock:
                    self._interval.resumed(resumed.step, time.monotonic())
                threading.Thread(target=self._begin_later, daemon=True, name="outrider-checkpoint-term").start()
                return resumed
        saves = self._begun()
        if self._loads:
            saves.wait_complete()
        vote = ResumeVote(saves.participant, self._loads, lambda at: restore(self._store, at, self._rank, into))
        loaded = vote.run()
        # count the load only after it succeeded: all ranks can then repeat a load that failed (for example, disk full)
        self._loads += 1
        with self._lock:
            self._interval.resumed(loaded.step, time.monotonic())
        if self._in_memory is not None:
            self._in_memory.resumed(loaded.step)
        return loaded

    def due(self, step: int) -> bool:
        """Return whether `save` would save this step.

        It takes microseconds; call it before you build a costly state.
        """
        step = _counted(step)
        return self._due_in_storage(step) or (self._in_memory is not None and self._in_memory.due(step))

    def _due_in_storage(self, step: int) -> bool:
        with self._lock:
            return self._interval.due(step, time.monotonic(), self._urgent)

    def save(self, step: int, state: Any, *, force: bool = False) -> bool:
        """Save a state if a save is due, and return whether it was saved. Every rank calls it at the same steps.

        It returns when the state is copied; a thread writes the copy while training continues. A save waits until the
        previous one is written, or is in the memory of the nodes that keep it. If a cloud will take back a machine of
        any rank, a save is due at once.

        Args:
            step: The number of completed training steps.
            state: The state.
            force: True: save even if no save is due.

        Raises:
            CheckpointError: The previous save could not be written (``full``: no space left); this one was not begun.
            CheckpointFenced: A newer run of this training has taken over.
            SerializationError: ``state`` cannot be pickled.
            SpecError: ``step`` is not a whole number, or less than 0.
        """
        step = _counted(step)
        context.stepped("save")
        self._join()
        to_storage = self._due_in_storage(step) or force
        hurry = force or self._interval.urgent
        kept = self._in_memory is not None and self._in_memory.save(step, state, hurry=hurry)
        if not to_storage:
            self._only_in_memory = self._only_in_memory or kept
            return kept
        saves = self._begun()
        saves.wait_written(hurry=True)
        snapshot = Snapshot(state, self._copies)
        began = time.monotonic()
        delay_s = 0.0 if self._interval.urgent else spread_s(self._rank, self._world.size, began - self._saved_at)
        self._saved_at = began
        with self._lock:
            self._interval.saved(step, began)
        if self._in_memory is not None:
            self._in_memory.storing(step)
        saves.start(step, snapshot, delay_s=delay_s)
        self._only_in_memory = False
        return True

    def wait(self) -> None:
        """Wait until the latest save is complete on every rank.

        Raises:
            CheckpointError: The save could not be written, or another rank has not saved that step.
        """
        if self._saves is not None:
            self._saves.wait_complete()

    def steps(self) -> list[int]:
        """Return the steps of the complete checkpoints, newest first."""
        return [at.step for at in complete(self._store.names())]

    def close(self, failed: bool = False) -> None:
        """Wait as `wait` does, then refuse further saves. It is called at the end of a task or script.

        If the newest state is only in memory, it is written to the storage first.

        Args:
            failed: True: write the saves that have begun, but do not wait for other ranks.
        """
        try:
            if not failed and not self._closed:
                self._store_newest()
        finally:
            self._close(failed)

    def _close(self, failed: bool) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._in_memory is not None:
            self._in_memory.close()
        if self._announcements is not None:
            self._announcements.stop()
        if self._saves is not None and failed:
            self._saves.wait_written(hurry=True)
        else:
            self.wait()

    def _store_newest(self) -> None:
        """Write the newest state to the storage.

        MEMORY-8: when all ranks have returned, the storage has their newest common state.
        """
        memory = self._in_memory
        if memory is None or not self._only_in_memory or (newest := memory.newest()) is None:
            return
        step, snapshot = newest
        if self._saves is not None:
            self._saves.wait_written(hurry=True)
        try:
            saves = self._begun()
            memory.storing(step)
            saves.start(step, snapshot, delay_s=0.0)
            saves.wait_complete()
            self._only_in_memory = False
        except CheckpointError as error:
            warnings.warn(
                f"The newest state of {self.name!r}, step {step}, is in memory alone, and is lost with its nodes: "
                f"{error}",
                RuntimeWarning,
                stacklevel=3,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def __repr__(self) -> str:
        return f"<checkpoints of {self.name!r} at {self._store.url}>"

    def _urgent(self) -> bool:
        """Return whether a cloud will take back a machine of any rank.

        All ranks get the same answer for the same step.
        """
        if self._world.size == 1:
            return stopping(everywhere=False)
        # `stopping` works only within a task, as it counts the steps of a rank
        return context.current() is not None and stopping(everywhere=True)

    def _join(self) -> None:
        """Report to the pool, once, that this rank waits for other ranks.

        If one rank fails, the pool then soon ends the others.
        """
        task = self._task
        if self._has_joined or self._world.size == 1 or task is None or task.log is None or not task.log.here:
            return
        self._has_joined = True
        # If the report fails (no free descriptors, or the node ends), ranks wait for a failed rank until the time-out.
        with suppress(OSError):
            task.log.tell(Joined(task.attempt))

    def _tell(self, step: int, size_bytes: int) -> None:
        """Report to the run's record that a checkpoint is complete.

        A process that a task has started reports nothing.
        """
        task = self._task
        if self._in_memory is not None:
            self._in_memory.stored(step)
        if task is not None and task.log is not None and task.log.here:
            task.log.put(task.attempt, log_records.saved(time.time(), self.name, step, size_bytes))

    def _begun(self) -> BackgroundSaves:
        if self._closed:
            raise SpecError(f"{self!r} are closed: call checkpoint(...) again.")
        with self._begins:
            return self._begun_once()

    def _begin_later(self) -> None:
        """Begin this training's term (its numbered claim to the storage) in a background thread.

        A training that resumes from memory should not wait for the storage.
        """
        with suppress(CheckpointError, SpecError):  # the next save raises this error
            self._begun()

    def _begun_once(self) -> BackgroundSaves:
        if self._saves is None:
            participant = participant_of(self._store, self.name, self._world, self._rank, self._within_s)
            with self._lock:
                if self._closed:  # the training closed the checkpoints while the background thread began the term
                    raise SpecError(f"{self!r} are closed: call checkpoint(...) again.")
                if self._timed and self._world.size > 1:
                    self._announcements = Announcements(participant, self._interval, self._lock)
                    self._announcements.start()
            self._saves = BackgroundSaves(participant, keep=self._keep, completed=self._tell)
        return self._saves


def _counted(step: SupportsIndex) -> int:
    """Return a step number as an integer; integers of numpy and torch are accepted.

    Any other value would create a checkpoint name that no load finds.
    """
    if type(step) is int and step >= 0:
        return step
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise SpecError(f"checkpoint: step takes a whole number, 0 or more, not {shown(step)}.")
    return number


def _in_memory(memory: object, every: object, durable: object) -> tuple[int | None, int] | None:
    """Return (steps between copies to memory, number of copies); None: no state is kept in memory.

    Steps None: as often as possible without a wait.
    """
    if memory is None:
        if durable is not None:
            raise SpecError(
                "checkpoint: durable goes with memory=...; without it, every is how often a state is saved."
            )
        return None
    if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
        raise SpecError(f"checkpoint: memory takes on how many nodes a state is kept, as in memory=2, not {memory!r}.")
    if every is None:
        return None, memory
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise SpecError(f"checkpoint: with memory=..., every counts steps, as in every=1; it is not {every!r}.")
    return every, memory


def _interval(every: object) -> tuple[int | None, float | None]:
    """Convert ``every`` to (steps, seconds): a number of steps or a number of seconds. The other value is None."""
    if isinstance(every, int) and not isinstance(every, bool):
        if every < 1:
            raise SpecError(f"checkpoint: every takes at least 1 step, not {every}.")
        return every, None
    return None, None if every is None else seconds("checkpoint: every", every)
