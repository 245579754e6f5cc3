"""`checkpoint`: what a training saves every so often, and resumes from."""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, NamedTuple, Self

from ..api.errors import SpecError
from ..api.settings import seconds
from ..node import context
from .agreement import Reader
from .calls import Calls, lead_s
from .notice import urgent
from .pace import Pace
from .reading import read
from .records import complete
from .saving import Saving, now, spread_s
from .snapshot import Memory, Snapshot
from .turn import Turn, begin, this_world
from .urls import VARIABLE, open_store


class Loaded(NamedTuple):
    """What training goes on from: ``(0, None)`` where nothing has been saved yet."""

    step: int
    state: Any


def checkpoint(
    name: str,
    *,
    every: int | float | timedelta | None = None,
    keep: int = 3,
    root: str | os.PathLike[str] | None = None,
    timeout: float | timedelta = 600.0,
) -> Checkpoint:
    """The checkpoints of one training, called by every rank with the same arguments.

    ``every``: how often `save` saves: each so many steps (an int), or seconds (a float, or a timedelta); by default
    each time it is called. ``keep``: how many complete ones stay. ``root``: a folder that all nodes share, or a URL
    such as ``"s3://bucket/folder"``; by default the pool's, ``Pool(checkpoints=...)``. ``timeout``: how long ranks wait
    for each other.

    Raises:
        SpecError
    """
    root = root if root is not None else os.environ.get(VARIABLE)
    if root is None:
        raise SpecError(
            'checkpoint: there is no place to keep it: give the pool one, Pool(checkpoints="s3://bucket/folder"), or '
            "this call, root=..."
        )
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise SpecError(f"checkpoint: keep takes how many stay, at least 1, not {keep!r}.")
    steps, every_s = _pace(every)
    within_s = seconds("checkpoint: timeout", timeout)
    return Checkpoint(name, os.fspath(root), steps=steps, every_s=every_s, keep=keep, within_s=within_s)


class Checkpoint:
    """See `checkpoint`. Not for several threads at a time."""

    def __init__(
        self, name: str, root: str, *, steps: int | None, every_s: float | None, keep: int, within_s: float
    ) -> None:
        self.name = name
        self._store = open_store(root, name)
        self._world, self._rank = this_world()
        self._keep, self._within_s = keep, within_s
        self._lock = threading.Lock()
        self._pace = Pace(
            steps=steps,
            seconds=every_s,
            alone=self._world.size == 1,
            leads=self._rank == 0,
            lead_s=lead_s(self._store.poll_s),
            now=now(),
        )
        self._memory = Memory()
        self._opened: tuple[Turn, Saving, Calls | None] | None = None
        self._timed = every_s is not None
        self._saved_at = now()
        self._loads = 0
        self._hurried = False
        self._closed = False
        _close_at_end(self.close)

    def load(self, *, into: Any = None) -> Loaded:
        """(step, state) of the newest complete checkpoint that every rank can read, or (0, None). All ranks call it.

        Each rank gets what it saved. If there are more or fewer ranks now, rank ``r`` gets what rank ``r % saved`` had,
        and tensors that were spread over the ranks (`DTensor`) are whole. ``into``: a state of the same form, whose
        tensors are filled in place and come back in the state: so a model that is spread over these ranks gets its
        parts of one that was spread over others.

        Raises:
            CheckpointError: all are damaged, or the storage or another rank does not answer.
            SerializationError: it cannot be unpickled here.
        """
        turn, saving, _ = self._turn()
        if self._loads:
            saving.finish()
        reader = Reader(turn, self._loads, lambda at: (read(self._store, at, self._rank, into),), self._within_s)
        self._loads += 1
        found = reader.run()
        loaded = Loaded(0, None) if found is None else Loaded(found.at.step, found.value[0])
        with self._lock:
            self._pace.resumed(loaded.step, now())
        return loaded

    def due(self, step: int) -> bool:
        """Whether `save` saves this step. Some microseconds; for a state that takes effort to put together."""
        with self._lock:
            return self._pace.due(step, now(), self._urgent)

    def save(self, step: int, state: Any, *, force: bool = False) -> bool:
        """Save, if it is due (or ``force``), after ``step`` steps; whether it was. Every rank asks at the same steps.

        Returns when the state is copied: it is written while training goes on. A save that comes before the last one is
        written waits for that. When this machine or another rank's will be taken, it is due at once.

        Raises:
            CheckpointError: the last one could not be written (``full``: no room); this one was not begun.
            CheckpointFenced: a newer world does this training.
            SerializationError: ``state`` cannot be pickled.
        """
        context.stepped("save")
        if not self.due(step) and not force:
            return False
        turn, saving, _ = self._turn()
        saving.settle(hurry=True)
        snapshot = Snapshot(state, self._memory)
        began = now()
        delay_s = 0.0 if self._hurried else spread_s(self._rank, turn.term.size, began - self._saved_at)
        self._saved_at = began
        with self._lock:
            self._pace.saved(step, began)
        saving.start(step, snapshot, delay_s=delay_s)
        return True

    def wait(self) -> None:
        """Return when what was saved last is complete.

        Raises:
            CheckpointError: it could not be written, or another rank has not saved that step.
        """
        if self._opened is not None:
            self._opened[1].finish()

    def steps(self) -> list[int]:
        """The steps of the complete checkpoints, newest first."""
        return [at.step for at in complete(self._store.names())]

    def close(self, failed: bool = False) -> None:
        """`wait`, and save no more. At the end of a task, or of a script, it comes by itself.

        ``failed``: what has been begun is written, and other ranks are not waited for.
        """
        if self._closed:
            return
        self._closed = True
        if self._opened is not None:
            _, saving, calls = self._opened
            if calls is not None:
                calls.stop()
            if failed:
                saving.settle(hurry=True)
            else:
                saving.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(failed=error is not None)

    def __repr__(self) -> str:
        return f"<checkpoints of {self.name!r} at {self._store.url}>"

    def _urgent(self) -> bool:
        self._hurried = urgent(alone=self._world.size == 1)
        return self._hurried

    def _turn(self) -> tuple[Turn, Saving, Calls | None]:
        if self._closed:
            raise SpecError(f"{self!r} are closed: call checkpoint(...) again.")
        if self._opened is None:
            turn = begin(self._store, self.name, self._world, self._rank, self._within_s)
            calls = Calls(turn, self._pace, self._lock) if self._timed and not turn.alone else None
            if calls is not None:
                calls.start()
            self._opened = turn, Saving(turn, keep=self._keep, within_s=self._within_s), calls
        return self._opened


def _pace(every: object) -> tuple[int | None, float | None]:
    """(steps, seconds)"""
    if every is None:
        return None, None
    if isinstance(every, int) and not isinstance(every, bool):
        if every < 1:
            raise SpecError(f"checkpoint: every takes at least 1 step, not {every}.")
        return every, None
    return None, seconds("checkpoint: every", every)


def _close_at_end(close: Callable[[bool], None]) -> None:
    """Of the task, or of this process: what is begun by then is written."""
    if (task := context.current()) is not None:
        task.closing.append(close)
    else:
        atexit.register(close, False)
