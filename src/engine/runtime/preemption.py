"""The questions of a task about its machine's end: whether its machine will be taken, when, and when all ranks stop.

Outside a pool there is never a notice, so that the same function runs anywhere. Asking costs a microsecond.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..node import context
from ..node.context import TaskContext

if TYPE_CHECKING:
    from ..node.notice_page import NoticePage, PostedNotice, World

MARGIN_S = 5.0  # for what comes after a callback: the process's end, the last bytes on their way
MARGIN_SHARE = 0.2  # of a short notice
AGREE_S = 5.0  # a round trip to the client and to every node; it takes milliseconds
_PAUSE_S = 0.001


@dataclass(frozen=True, slots=True)
class Preemption:
    """A preemption notice: a machine will be taken. The time left is computed when it is read."""

    source: str  # who says so: "aws", "gcp", "azure", "slurm", "signal", "file", ...
    node: int  # whose machine, as in `instance_info`
    at: float  # when, by `time.monotonic()` of this machine
    margin_s: float  # of the time left, what a callback should not use
    key: tuple[int, ...] = field(repr=False)  # another notice has another; one whose time changes keeps its own

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.at - time.monotonic())

    @property
    def budget_s(self) -> float:
        """Return the seconds that are left, less the margin."""
        return max(0.0, self.at - self.margin_s - time.monotonic())


def preemption(*, everywhere: bool = False) -> Preemption | None:
    """Return the notice that this task's machine will be taken, while there is one.

    ``everywhere``: or that of any machine that this generation runs on.
    """
    page = context.notice_page()
    return None if page is None else pending(page, context.current(), everywhere=everywhere)


def should_stop(*, everywhere: bool = False) -> bool:
    """Return whether to save and return now. For training loops: ``if should_stop(): break``.

    ``everywhere``: when any machine of this generation will be taken, and then at the same question on every rank, so
    that none waits for one that has stopped. For ranks that work in step: each must ask once per step, in its own
    process. While the ranks agree, the call waits for some milliseconds; when they cannot, it is False.

    Raises:
        RuntimeError: ``everywhere``, in a process that the task has started.
    """
    if context.on_step:
        context.stepped("should_stop")
    return stopping(everywhere=everywhere)


def stopping(*, everywhere: bool) -> bool:
    """Return what `should_stop` does, without counting a step."""
    page = context.notice_page()
    if page is None:
        return False
    if not everywhere:
        return page.read().own is not None
    task = context.current()
    if task is None:
        raise RuntimeError("should_stop(everywhere=True) counts the steps of a rank: call it in the task's own process")
    return page.read().own is not None if task.info["world_size"] == 1 else _agreed(page, task)


def pending(page: NoticePage, task: TaskContext | None, *, everywhere: bool) -> Preemption | None:
    """Return what `preemption` returns, for the given task."""
    own, others = page.read()
    if own is None and not (everywhere and others):
        return None
    from .instance_info import instance_info

    node = instance_info().node if task is None else task.info["node"]
    if own is not None:
        return _preemption(own, node, (own.number,))
    world = None if task is None else _world(others, task)
    if world is None or world.notice is None or world.notice.node in (None, node):
        return None
    return _preemption(world.notice, world.notice.node, (world.generation, world.notice.number))


def _preemption(notice: PostedNotice, node: int | None, key: tuple[int, ...]) -> Preemption:
    margin_s = min(MARGIN_S, MARGIN_SHARE * notice.seconds)
    return Preemption(notice.source, -1 if node is None else node, notice.at, margin_s, key)


def _world(worlds: dict[int, World], task: TaskContext) -> World | None:
    """Return the world of the task's job, or None. Ranks that were not lost may be of an older generation."""
    world = worlds.get(task.job)
    return world if world is not None and 0 < task.info["generation"] <= world.generation else None


def _agreed(page: NoticePage, task: TaskContext) -> bool:
    """Return whether this question is the one at which all ranks stop: the next of the rank that has asked most often.

    First the question is counted, then the notice page is read. So a rank either sees the notice about a machine and
    waits here, or its question is in the count that its node sends.
    """
    asked = page.count(task.info["worker"], task.attempt, task.job, task.info["generation"])
    world = _world(page.read().worlds, task)
    if world is not None and world.stop_at is None and world.notice is not None:
        world = _waited(page, task, world.notice)
    return world is not None and world.stop_at is not None and asked >= world.stop_at


def _waited(page: NoticePage, task: TaskContext, notice: PostedNotice) -> World | None:
    """Wait for the ranks to agree, and return the world they agreed on; None: nothing.

    After a failure to agree, the next question does not wait again.
    """
    asked_in_vain = (task.attempt, notice.number)
    if asked_in_vain in _in_vain:
        return None
    until = time.monotonic() + AGREE_S
    while time.monotonic() < until:
        time.sleep(_PAUSE_S)
        world = _world(page.read().worlds, task)
        if world is None or world.stop_at is not None or world.notice is None:
            return world
    _in_vain.clear()
    _in_vain.add(asked_in_vain)
    return None


_in_vain: set[tuple[int, int]] = set()
