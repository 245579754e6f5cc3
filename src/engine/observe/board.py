"""What the live table shows, from events alone: no clock, no terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from .. import events as ev

LOST_SHOWN = 3


class State(StrEnum):
    LAUNCHING = "launching"
    READY = "ready"
    SUSPECT = "silent"
    NOTICED = "leaving"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(slots=True)
class Row:
    """One node. ``running``: what it does, by task, with when that began."""

    node: int
    state: State
    since: float
    where: str = ""
    note: str = ""
    running: dict[int, tuple[str, float]] = field(default_factory=dict)
    done: int = 0
    failed: int = 0


@dataclass(slots=True)
class Board:
    """The present state of one pool, for the eye."""

    pool: str = ""
    provider: str = ""
    phase: str = "starting"
    desired: int = 0
    opened_at: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of jobs that are not over
    broadcasts: set[int] = field(default_factory=set)  # the jobs of several tasks
    wanted: int = 0  # tasks submitted, ranks of broadcasts
    done: int = 0
    failed: int = 0

    @property
    def ready(self) -> int:
        return sum(row.state in {State.READY, State.NOTICED} for row in self.rows.values())

    def apply(self, event: ev.Event) -> None:
        match event:
            case ev.PoolStarting():
                self.pool, self.provider = event.pool, event.provider
                self.desired, self.opened_at = event.wanted, event.at
            case ev.PoolReady():
                self.phase = "ready"
            case ev.PoolResized():
                self.desired = event.wanted
            case ev.PoolClosing():
                self.phase = "closing"
            case ev.PoolClosed():
                self.phase = "closed"
            case _:
                self._node(event)
                self._task(event)

    def _node(self, event: ev.Event) -> None:
        match event:
            case ev.NodeLaunching():
                self.rows[event.node] = Row(event.node, State.LAUNCHING, event.at, where=event.machine)
            case ev.NodeReady():
                row = self._turn(event.node, State.READY, event.at)
                row.where = event.hostname or event.address or row.where
                self._forget_lost()
            case ev.NodeSuspect():
                self._turn(event.node, State.SUSPECT, event.at, event.cause)
            case ev.NodeResumed() | ev.NodeNoticeWithdrawn():
                self._turn(event.node, State.READY, event.at)
            case ev.NodeNoticed():
                self._turn(event.node, State.NOTICED, event.at, f"{event.source}: {event.seconds:.0f} s left")
            case ev.NodeDraining():
                self._turn(event.node, State.DRAINING, event.at)
            case ev.NodeLost() | ev.NodeFailed():
                self._turn(event.node, State.LOST, event.at, event.cause).running.clear()
                self._forget_lost(LOST_SHOWN)
            case ev.NodeDismissed():
                self.rows.pop(event.node, None)
            case _:
                pass

    def _task(self, event: ev.Event) -> None:
        match event:
            case ev.TaskSubmitted():
                self.names[event.job] = event.function
                self.wanted += 1
            case ev.BroadcastSubmitted():
                self.names[event.job] = event.function
                self.broadcasts.add(event.job)
            case ev.GenerationStarted() if event.generation == 1:
                self.wanted += event.ranks
            case ev.BroadcastFinished():
                self.broadcasts.discard(event.job)
                self._over(event.job)
            case ev.TaskStarted():
                self._row(event.node, event.at).running[event.task] = (self.names.get(event.job, ""), event.at)
            case ev.TaskFinished():
                row = self._row(event.node, event.at)
                row.running.pop(event.task, None)
                if event.verdict == "returned":
                    self.done, row.done = self.done + 1, row.done + 1
                else:
                    self.failed, row.failed = self.failed + 1, row.failed + 1
                self._over(event.job)
            case ev.TaskGaveUp():
                self.failed += 1
                self._over(event.job)
            case _:
                pass

    def _over(self, job: int) -> None:
        if job not in self.broadcasts:
            self.names.pop(job, None)

    def _row(self, node: int, at: float) -> Row:
        return self.rows.setdefault(node, Row(node, State.READY, at))

    def _turn(self, node: int, state: State, at: float, note: str = "") -> Row:
        row = self._row(node, at)
        row.state, row.since, row.note = state, at, note
        return row

    def _forget_lost(self, keep: int = 0) -> None:
        """Lost nodes are shown until one is ready in their place, and never more than a few."""
        lost = [node for node, row in self.rows.items() if row.state is State.LOST]
        for node in lost[: max(0, len(lost) - keep)]:
            del self.rows[node]
