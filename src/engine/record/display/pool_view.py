"""The state of a pool as the live table shows it, with the progress of each map: items per second, and remaining time.

Computed from events only, without a clock or a terminal: callers pass the time.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import field
from threading import Lock

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ...api.quantities import clock_time
from ...api.snapshot import ABOUT_TO_LEAVE, STATES
from .prints import UnfinishedLines

# the rate is measured over the last seconds only, because older items are less typical of the remaining items
WINDOW_S = 10.0
STEP_S = 0.25  # minimum seconds between two stored points


@dataclass(slots=True)
class Progress:
    """The progress of one map.

    ``done``: the number of items that have ended. ``total``: of all items; None: unknown.
    """

    function: str
    total: int | None
    began_at: float
    done: int = 0
    failed: int = 0
    # (time, number of items that were done), the oldest first
    _points: deque[tuple[float, int]] = field(default_factory=deque)

    def reached(self, done: int, at: float, failed: int = 0) -> None:
        self.failed = failed
        if not self._points or at - self._points[-1][0] >= STEP_S:
            self._points.append((at, done))
        self.done = done
        if self.total is not None and done > self.total:
            self.total = None  # the `len()` of the map's input was wrong
        while len(self._points) > 1 and self._points[1][0] <= at - WINDOW_S:
            self._points.popleft()

    def rate(self, now: float) -> float:
        """The number of items per second, measured over the last `WINDOW_S`."""
        since, before = next(((at, done) for at, done in self._points if at > now - WINDOW_S), (self.began_at, 0))
        # no item ended within the window: use the average since the start, which falls as time passes
        if self.done == before:
            since, before = self.began_at, 0
        return (self.done - before) / (now - since) if now > since else 0.0

    def left_s(self, now: float) -> float | None:
        """The estimated seconds until all items are done; None: unknown."""
        rate = self.rate(now)
        return None if self.total is None or rate <= 0 else (self.total - self.done) / rate


def per_second(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.2g}/min"


LOST_SHOWN = 3
RANKS = -1


AT_REST = {"ready", "standby"}
CANCELLED = {"killed", "cancelled", "closed"}  # outcomes of tasks that the pool or the caller ended: no failures


@dataclass(slots=True)
class Row:
    """A node's row in the table.

    ``running``: (job, task) -> (function, start time); `RANKS` as task stands for the ranks of a broadcast. ``step``:
    the current step of preparing the node, its start time, and its last line of output. ``taken_at``: when the machine
    will be taken back, by a preemption notice.
    """

    node: int
    state: str
    since: float
    where: str = ""
    note: str = ""
    step: tuple[str, float, str] | None = None
    taken_at: float = 0.0
    running: dict[tuple[int, int], tuple[str, float]] = field(default_factory=dict)
    done: int = 0
    hourly_cost: float = 0.0


@dataclass(slots=True)
class PoolView:
    name: str = ""
    provider: str = ""
    phase: str = "starting"
    desired: int = 0
    opened_at: float = 0.0
    closed_at: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)  # running job -> name of the job's function
    # job (number) of a broadcast -> the node of each rank, in order of the ranks
    broadcasts: dict[int, tuple[int, ...]] = field(default_factory=dict)
    # job of a running broadcast -> number of its current generation (one try of the broadcast)
    generations: dict[int, int] = field(default_factory=dict)
    maps: dict[int, Progress] = field(default_factory=dict)  # job of a running map -> progress of the map
    wanted: int = 0  # number of submitted tasks; each rank of a broadcast counts as a task
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    upload: ev.UploadProgress | None = None  # progress of sending large arguments; None if none are being sent
    unfinished: UnfinishedLines = field(default_factory=UnfinishedLines)  # has its own lock
    # held by the event loop while it changes the view, and by the drawing thread while it reads the view
    lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def ended(self) -> int:
        return self.done + self.failed + self.cancelled

    @property
    def ready(self) -> int:
        return sum(row.state == "ready" for row in self.rows.values())

    @property
    def others(self) -> dict[str, int]:
        """The numbers of nodes in the states leaving, suspect, standby and queued, without states that have none."""
        states = Counter("leaving" if row.state in ABOUT_TO_LEAVE else row.state for row in self.rows.values())
        return {state: states[state] for state in ("leaving", "suspect", "standby", "queued") if states[state]}

    @property
    def hourly_cost(self) -> float:
        return sum(row.hourly_cost for row in self.rows.values() if row.state not in ("lost", "queued"))

    @property
    def busy(self) -> bool:
        """Return whether anything is in progress: calls, nodes that start or end, or the start or end of the pool."""
        if self.phase != "ready":
            return self.phase != "closed"
        at_rest = all(row.state in AT_REST and not row.running for row in self.rows.values())
        return not at_rest or bool(self.names or self.maps or self.upload)

    def apply(self, event: ev.Event) -> None:
        with self.lock:
            self._apply(event)

    def _apply(self, event: ev.Event) -> None:
        match event:
            case ev.PoolStarting():
                self.name, self.provider = event.pool, event.provider
                self.desired, self.opened_at = event.wanted, event.at
            case ev.PoolReady():
                self.phase = "ready"
            case ev.PoolResized() | ev.PoolScaled():
                self.desired = event.wanted
            case ev.UploadProgress():
                self.upload = None if event.ended else event
            case ev.PoolClosing():
                self.phase = "closing"
            case ev.PoolClosed():
                self.phase, self.closed_at = "closed", event.at
            case _:
                self._node(event)
                self._task(event)

    def _node(self, event: ev.Event) -> None:
        match event:
            case ev.NodeLaunching():
                row = Row(event.node, "launching", event.at, where=event.machine, hourly_cost=event.hourly_cost)
                self.rows[event.node] = row
            case ev.NodePreparing():  # does not change the state, which is still "launching" or "late"
                row = self._row(event.node, event.at)
                since = row.step[1] if row.step is not None and row.step[0] == event.phase else event.at
                row.step = event.phase, since, event.text
            case ev.NodeDismissed():
                self.rows.pop(event.node, None)
            case ev.NodeEvent() if type(event) in STATES:
                row = self._row(event.node, event.at)
                row.state, row.since, row.note = STATES[type(event)], event.at, _note(event)
                row.taken_at = event.at + event.seconds if isinstance(event, ev.NodeNoticed) else 0.0
                if isinstance(event, ev.NodeReady | ev.NodeStandby):
                    row.where = event.hostname or event.address or row.where
                if row.state == "lost":
                    row.running.clear()
                    self._forget_lost(LOST_SHOWN)
                elif isinstance(event, ev.NodeReady):
                    self._forget_lost()
            case _:
                pass

    def _task(self, event: ev.Event) -> None:
        match event:
            case ev.TaskSubmitted():
                # a task that is submitted again before it was sent must not be counted again
                self.wanted += event.job not in self.names
                self.names[event.job] = event.function
            case ev.TaskStarted():
                name = self.names.get(event.job, "")
                self._row(event.node, event.at).running[event.job, event.task] = (name, event.at)
            case ev.TaskFinished():
                self._finished(event)
            case ev.TaskGaveUp():
                self._count(None, event.reason)
                self.names.pop(event.job, None)
            case ev.MapProgress() if event.ended:
                self.maps.pop(event.job, None)
            case ev.MapProgress():
                new = Progress(event.function, event.total, event.at)
                self.maps.setdefault(event.job, new).reached(event.done, event.at, event.failed)
            case ev.BroadcastSubmitted():
                self.names[event.job] = event.function
            case ev.GenerationStarted():
                self._generation(event)
            case ev.BroadcastFinished():
                for row in self.rows.values():
                    row.running.pop((event.job, RANKS), None)
                self.generations.pop(event.job, None)
                for rank, node in enumerate(self.broadcasts.pop(event.job, ())):
                    self._count(self.rows.get(node), event.verdicts[rank] if rank < len(event.verdicts) else "lost")
                self.names.pop(event.job, None)
            case _:
                pass

    def _finished(self, event: ev.TaskFinished) -> None:
        row = self._row(event.node, event.at)
        row.running.pop((event.job, event.task), None)
        if event.verdict != "unsent":
            self._count(row, event.verdict)
            self.names.pop(event.job, None)

    def _generation(self, event: ev.GenerationStarted) -> None:
        """Show the ranks of a new generation (one try of a broadcast) as running.

        The first generation starts all ranks, a later generation all ranks or only the lost ranks.
        """
        self.generations[event.job] = event.generation
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
        returned = verdict == "returned"
        self.done += returned
        self.cancelled += verdict in CANCELLED
        self.failed += not returned and verdict not in CANCELLED
        if row is not None:
            row.done += returned

    def _row(self, node: int, at: float) -> Row:
        return self.rows.setdefault(node, Row(node, "ready", at))

    def _forget_lost(self, keep: int = 0) -> None:
        """Remove the rows of lost nodes, except the newest ``keep`` rows. These stay until a replacement is ready."""
        lost = [node for node, row in self.rows.items() if row.state == "lost"]
        for node in lost[: max(0, len(lost) - keep)]:
            del self.rows[node]


def chosen_rows(pool_view: PoolView, most: int) -> list[Row]:
    """Return at most ``most`` rows to show, sorted by node: first choose nodes with problems, then busy nodes."""
    rows = list(pool_view.rows.values())
    if len(rows) > most:
        rows.sort(key=lambda row: (row.state == "ready", not row.running, row.node))
    return sorted(rows[:most], key=lambda row: row.node)


def _note(event: ev.NodeEvent) -> str:
    match event:
        case ev.NodeQueued():
            expected = "" if event.starts_at is None else f", expected {clock_time(event.starts_at, event.at)}"
            return f"{event.reason}{expected}"
        case ev.NodeLate():
            return "it does not answer; another one is asked for"
        case ev.NodeNoticed():
            return event.source
        case ev.NodeSuspect() | ev.NodeFailed() | ev.NodeLost():
            return event.cause
        case _:
            return ""
