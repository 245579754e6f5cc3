"""The state of a pool as the live table shows it, built from events alone: no clock, no terminal."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ...actors import events as ev

LOST_SHOWN = 3
RANKS = -1


class State(StrEnum):
    LAUNCHING = "launching"
    LATE = "late"
    READY = "ready"
    STANDBY = "standby"
    SUSPECT = "silent"
    NOTICED = "leaving"
    DRAINING = "draining"
    LOST = "lost"


@dataclass(slots=True)
class Row:
    """One node. ``running``: its tasks by (job, task) with name and start; `RANKS` stands for a broadcast's ranks."""

    node: int
    state: State
    since: float
    where: str = ""
    note: str = ""
    running: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)
    done: int = 0
    hourly_cost: float = 0.0


@dataclass(slots=True)
class PoolView:
    """The present state of one pool, for display."""

    pool: str = ""
    provider: str = ""
    phase: str = "starting"
    desired: int = 0
    opened_at: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # of jobs that are not over
    broadcasts: dict[int, tuple[int, ...]] = field(default_factory=dict)  # the nodes of a job's ranks, by rank
    wanted: int = 0  # tasks submitted, ranks of broadcasts
    done: int = 0
    failed: int = 0

    @property
    def ready(self) -> int:
        return sum(row.state in {State.READY, State.NOTICED} for row in self.rows.values())

    @property
    def hourly_cost(self) -> float:
        """USD per hour at present."""
        return sum(row.hourly_cost for row in self.rows.values() if row.state is not State.LOST)

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
                row = Row(event.node, State.LAUNCHING, event.at, where=event.machine, hourly_cost=event.hourly_cost)
                self.rows[event.node] = row
            case ev.NodeLate():
                self._set_state(event.node, State.LATE, event.at, "it does not answer; another one is asked for")
            case ev.NodePreparing():
                row = self._row(event.node, event.at)
                row.note = f"{event.phase}: {event.text}" if event.text else event.phase
            case ev.NodeReady():
                row = self._set_state(event.node, State.READY, event.at)
                row.where = event.hostname or event.address or row.where
                self._forget_lost()
            case ev.NodeStandby():
                row = self._set_state(event.node, State.STANDBY, event.at)
                row.where = event.hostname or event.address or row.where
            case ev.NodeSuspect():
                self._set_state(event.node, State.SUSPECT, event.at, event.cause)
            case ev.NodeResumed() | ev.NodeNoticeWithdrawn():
                self._set_state(event.node, State.READY, event.at)
            case ev.NodeNoticed():
                self._set_state(event.node, State.NOTICED, event.at, f"{event.source}: {event.seconds:.0f} s left")
            case ev.NodeDraining():
                self._set_state(event.node, State.DRAINING, event.at)
            case ev.NodeLost() | ev.NodeFailed():
                self._set_state(event.node, State.LOST, event.at, event.cause).running.clear()
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
            case ev.TaskStarted():
                name = self.names.get(event.job, "")
                self._row(event.node, event.at).running[event.job, event.task] = (name, event.at)
            case ev.TaskFinished():
                row = self._row(event.node, event.at)
                row.running.pop((event.job, event.task), None)
                self._count(row, event.verdict)
                self.names.pop(event.job, None)
            case ev.TaskGaveUp():
                self.failed += 1
                self.names.pop(event.job, None)
            case ev.BroadcastSubmitted():
                self.names[event.job] = event.function
            case ev.GenerationStarted():
                self._generation(event)
            case ev.BroadcastFinished():
                for row in self.rows.values():
                    row.running.pop((event.job, RANKS), None)
                for rank, node in enumerate(self.broadcasts.pop(event.job, ())):
                    self._count(self.rows.get(node), event.verdicts[rank] if rank < len(event.verdicts) else "lost")
                self.names.pop(event.job, None)
            case _:
                pass

    def _generation(self, event: ev.GenerationStarted) -> None:
        """Start ranks: all of them the first time, later all again or only those that were lost."""
        before = self.broadcasts.get(event.job)
        size = len(event.ranks) if before is None else len(before)
        self.wanted += size if before is None else 0
        each = max(1, size // max(1, len(event.nodes)))
        self.broadcasts[event.job] = tuple(node for node in event.nodes for _ in range(each))
        if len(event.ranks) == size:
            for row in self.rows.values():
                row.running.pop((event.job, RANKS), None)
        for node in {self.broadcasts[event.job][rank] for rank in event.ranks if rank < size}:
            row = self._row(node, event.at)
            row.running[event.job, RANKS] = (self.names.get(event.job, ""), event.at)

    def _count(self, row: Row | None, verdict: str) -> None:
        if verdict == "returned":
            self.done += 1
        else:
            self.failed += 1
        if row is not None:
            row.done += verdict == "returned"

    def _row(self, node: int, at: float) -> Row:
        return self.rows.setdefault(node, Row(node, State.READY, at))

    def _set_state(self, node: int, state: State, at: float, note: str = "") -> Row:
        row = self._row(node, at)
        row.state, row.since, row.note = state, at, note
        return row

    def _forget_lost(self, keep: int = 0) -> None:
        """Drop the rows of lost nodes, but for the newest ``keep``: they are shown until a replacement is ready."""
        lost = [node for node, row in self.rows.items() if row.state is State.LOST]
        for node in lost[: max(0, len(lost) - keep)]:
            del self.rows[node]
