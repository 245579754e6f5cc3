"""Conversion of events to a timeline: rows with the states of each node, its work, and the generations. No I/O.

A generation is one run of a broadcast with fixed ranks; after a loss, the next generation begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, Literal

from ...actors import events as ev
from ...lazy_dataclass import dataclass
from ..api.quantities import size
from ..runs.checkpoints import SavedCheckpoint

WORDS = {
    "launching": "being launched",
    "queued": "in the provider's queue",
    "late": "not answering yet",
    "standby": "standing by",
    "ready": "ready",
    "suspect": "not answering",
    "noticed": "will be taken",
    "draining": "finishing",
    "runs": "a generation",
}
GOOD = ("", "returned")  # fates of spans that are no problem
SAVED = "saved"  # kind of a mark that shows a saved checkpoint
VOID = ("lost", "killed", "terminated", "unsent")  # fates of work that was ended from outside


@dataclass(slots=True)
class Span:
    """A time span on a row.

    ``fate``: how the work ended, such as "returned", "raised" or "lost"; "": unknown, or the span is a state, not work.
    """

    kind: str
    begin_s: float
    end_s: float
    text: str = ""
    fate: str = ""
    job: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on a row. ``kind``: the kind of a fault, or "lost", "failed" or `SAVED`."""

    kind: str
    at_s: float
    text: str


@dataclass(slots=True)
class Row:
    """A row of the timeline. ``work``: spans of the tasks that ran on this node, in the order in which they began."""

    name: str
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    work: list[Span] = field(default_factory=list)

    @property
    def eventful(self) -> bool:
        """Return whether this row has a problem to show: a loss, a failure, a late start, silence or a preemption
        notice.
        """
        is_marked = any(mark.kind != SAVED for mark in self.marks)
        return is_marked or any(span.kind in ("late", "suspect", "noticed") for span in self.spans)


@dataclass(frozen=True, slots=True)
class Timeline:
    """The rows of spans and marks. Times are in seconds since the run's beginning."""

    rows: Sequence[Row]  # first the rows of broadcasts with their generations, then the rows of nodes by number
    seconds: float
    began_at: float = 0.0  # unix time of the run's beginning
    broadcasts: int = 0  # number of rows of broadcasts

    @property
    def nodes(self) -> Sequence[Row]:
        return self.rows[self.broadcasts :]

    @property
    def kinds(self) -> list[str]:
        used = {span.kind for row in self.rows for span in row.spans}
        return [kind for kind in WORDS if kind in used]


STATES: dict[type[Any], str] = {
    ev.NodeLaunching: "launching",
    ev.NodeStarted: "launching",
    ev.NodeLate: "late",
    ev.NodeStandby: "standby",
    ev.NodeReady: "ready",
    ev.NodeResumed: "ready",
    ev.NodeNoticeWithdrawn: "ready",
    ev.NodeSuspect: "suspect",
    ev.NodeNoticed: "noticed",
    ev.NodeDraining: "draining",
}


class Rows:
    """The rows of a timeline while events are added.

    ``nodes``: node -> its row. ``jobs``: job of a broadcast -> its row.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Row] = {}
        self.jobs: dict[int, Row] = {}
        self._names: dict[int, str] = {}  # job -> name of its function
        # (task, attempt) -> open span of a task; (-job, node) -> open span of a generation
        self._running: dict[tuple[int, int], Span] = {}

    def node(self, number: int) -> Row:
        return self.nodes.setdefault(number, Row(f"node {number}"))

    def job(self, number: int) -> Row:
        return self.jobs.setdefault(number, Row(self._names.get(number, "")))

    def follow(self, event: ev.Event, at_s: float) -> None:
        match event:
            case ev.BroadcastSubmitted() | ev.TaskSubmitted():
                self._names[event.job] = event.function
            case ev.GenerationStarted():
                self._generation(event, at_s)
            case ev.GenerationLost(job=job):
                self._generation_ended(job, at_s, "lost" if event.nodes else "failed")
            case ev.BroadcastFinished(job=job):
                bad = next((each for each in event.verdicts if each not in GOOD), "returned")
                self._generation_ended(job, at_s, bad)
            case ev.TaskStarted():
                span = Span("task", at_s, -1.0, self._names.get(event.job, ""), job=event.job)
                self.node(event.node).work.append(span)
                self._running[event.task, event.number] = span
            case ev.TaskFinished():
                if (began := self._running.pop((event.task, event.number), None)) is not None:
                    began.end_s, began.fate = at_s, event.verdict
            case ev.NodeLost() | ev.NodeFailed() | ev.NodeDismissed():
                self._node_left(event, at_s)
            case ev.NodeQueued():
                self._queued(self.node(event.node), event.reason, at_s)
            case ev.NodeEvent() if (kind := STATES.get(type(event))) is not None:
                begin(self.node(event.node), kind, at_s)
            case _:
                pass

    def saved(self, checkpoint: SavedCheckpoint, at_s: float) -> None:
        """Add a mark for a checkpoint to the row of its broadcast, or of the node whose task saved it."""
        row = self.jobs.get(checkpoint.job) or self.nodes.get(checkpoint.node)
        if row is not None:
            text = f"{checkpoint.name}: step {checkpoint.step:,} is saved, {size(checkpoint.size_bytes)}"
            row.marks.append(Mark(SAVED, at_s, text))

    def end(self, at_s: float) -> list[Row]:
        """End all open spans. Return all rows, first those of broadcasts."""
        rows = [*self.jobs.values(), *(self.nodes[node] for node in sorted(self.nodes))]
        for row in rows:
            end(row, at_s)
            for span in row.work:
                span.end_s = at_s if span.end_s < 0 else span.end_s
        return rows

    def _queued(self, row: Row, reason: str, at_s: float) -> None:
        """Begin a span for the time that a node waits in its provider's queue.

        If only the expected start time has changed, do nothing.
        """
        if not row.spans or (row.spans[-1].kind, row.spans[-1].text) != ("queued", reason):
            begin(row, "queued", at_s, reason)

    def _generation(self, event: ev.GenerationStarted, at_s: float) -> None:
        begin(self.job(event.job), "runs", at_s, f"g{event.generation}", event.job)
        for node in event.nodes:
            self._work_ended(-event.job, node, at_s, "")
            text = f"{self._names.get(event.job, '') or 'broadcast'} g{event.generation}"
            span = self._running[-event.job, node] = Span("runs", at_s, -1.0, text, job=event.job)
            self.node(node).work.append(span)

    def _generation_ended(self, job: int, at_s: float, fate: str) -> None:
        end(self.job(job), at_s, fate)
        for key in [key for key in self._running if key[0] == -job]:
            self._work_ended(*key, at_s, fate)

    def _node_left(self, event: ev.NodeLost | ev.NodeFailed | ev.NodeDismissed, at_s: float) -> None:
        row = self.node(event.node)
        end(row, at_s)
        fate = "" if isinstance(event, ev.NodeDismissed) else "lost"
        for span in row.work:
            if span.end_s < 0:
                span.end_s, span.fate = at_s, fate
        if isinstance(event, ev.NodeLost):
            row.marks.append(Mark("lost", at_s, f"lost: {event.cause}"))
        elif isinstance(event, ev.NodeFailed):
            row.marks.append(Mark("failed", at_s, f"did not start: {event.cause}"))

    def _work_ended(self, first: int, second: int, at_s: float, fate: str) -> None:
        span = self._running.pop((first, second), None)
        if span is not None and span.end_s < 0:
            span.end_s, span.fate = at_s, fate


def begin(row: Row, kind: str, at_s: float, text: str = "", job: int = 0) -> None:
    end(row, at_s)
    row.spans.append(Span(kind, at_s, -1.0, text, job=job))


def end(row: Row, at_s: float, fate: str = "") -> None:
    if row.spans and row.spans[-1].end_s < 0:
        row.spans[-1].end_s, row.spans[-1].fate = at_s, fate


def timeline_of(
    events: Iterable[ev.Event], began_at: float, ended_at: float, checkpoints: Iterable[SavedCheckpoint] = ()
) -> Timeline:
    """Return the timeline of a run. Spans that are open at ``ended_at`` (unix time) end there."""
    rows, closed_s = Rows(), 0.0
    for event in events:
        at_s = max(0.0, event.at - began_at)
        rows.follow(event, at_s)
        if isinstance(event, ev.PoolClosed):
            closed_s = at_s
    seconds = max(ended_at - began_at, closed_s, 0.001)
    rows.end(closed_s or seconds)
    for each in checkpoints:
        rows.saved(each, min(seconds, max(0.0, each.at - began_at)))
    lanes = packed(rows.jobs.values())
    return Timeline(
        [*lanes, *(rows.nodes[node] for node in sorted(rows.nodes))], seconds, began_at, broadcasts=len(lanes)
    )


def packed(rows: Iterable[Row]) -> list[Row]:
    """Merge rows of the same name into one row if their spans do not overlap."""
    result: list[Row] = []
    for row in rows:
        if not row.spans:
            continue
        name = row.name or "broadcast"
        for lane in result:
            if lane.name == name and lane.spans[-1].end_s <= row.spans[0].begin_s:
                lane.spans += row.spans
                lane.marks += row.marks
                break
        else:
            result.append(Row(name, list(row.spans), list(row.marks)))
    return result


Work = Literal["good", "void", "bad"]


def work_kind(span: Span) -> Work:
    return "good" if span.fate in GOOD else "void" if span.fate in VOID else "bad"


def merged(spans: Sequence[Span], least_s: float) -> list[tuple[float, float, Work]]:
    """Return (begin, end, kind of outcome) for spans of work. Spans with a gap of less than ``least_s`` are merged.

    Only spans of one kind are merged, so that one failure among a thousand stays visible.
    """
    result: list[tuple[float, float, Work]] = []
    last: dict[Work, int] = {}
    for span in sorted(spans, key=lambda each: each.begin_s):
        kind = work_kind(span)
        at = last.get(kind)
        if at is not None and span.begin_s - result[at][1] < least_s and span.kind == "task":
            result[at] = (result[at][0], max(result[at][1], span.end_s), kind)
        else:
            last[kind] = len(result)
            result.append((span.begin_s, span.end_s, kind))
    return result


def grouped(marks: Sequence[Mark], least_s: float) -> list[Mark]:
    """Return marks sorted by time, with marks of checkpoints merged.

    Checkpoints less than ``least_s`` after the first checkpoint of a group share one mark, at the time of the last.
    Other marks are never merged, so that every loss stays visible.
    """
    result: list[Mark] = []
    group: list[Mark] = []

    def end_group() -> None:
        if group:
            text = (
                group[-1].text if len(group) == 1 else f"{len(group):,} checkpoints, the last of them {group[-1].text}"
            )
            result.append(Mark(SAVED, group[-1].at_s, text))
            group.clear()

    for mark in sorted(marks, key=lambda each: each.at_s):
        if mark.kind != SAVED:
            result.append(mark)
            continue
        if group and mark.at_s - group[0].at_s >= least_s:
            end_group()
        group.append(mark)
    end_group()
    return sorted(result, key=lambda each: each.at_s)


def counts(rows: Sequence[Row], seconds: float, buckets: int) -> dict[str, list[int]]:
    """Return kind of state -> how many rows are in it, at the middle of each of ``buckets`` equal parts of the time."""
    result: dict[str, list[int]] = {}
    changes: dict[str, list[int]] = {}
    for row in rows:
        for span in row.spans:
            first, last = (min(buckets, max(0, round(at_s / seconds * buckets))) for at_s in (span.begin_s, span.end_s))
            if last > first:
                change = changes.setdefault(span.kind, [0] * (buckets + 1))
                change[first] += 1
                change[last] -= 1
    for kind in WORDS:
        if kind in changes:
            result[kind] = list(accumulate(changes[kind][:-1]))
    return result
