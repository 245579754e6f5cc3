"""A report as rows of spans: the state of each node over time, the generations, and the faults. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....actors import events as ev

if TYPE_CHECKING:
    from .report import Report

COLOURS = {  # they differ in lightness, so that people with colour blindness can tell them apart
    "launching": "#d9d9d9",
    "late": "#efd9a0",
    "standby": "#b8cfe6",
    "ready": "#4c8bbf",
    "suspect": "#f2c14e",
    "noticed": "#e08e2b",
    "draining": "#a3b899",
    "runs": "#3d7a57",
    "ends": "#b7d3c0",
}
WORDS = {
    "launching": "being launched",
    "late": "not answering yet",
    "standby": "standing by",
    "ready": "ready",
    "suspect": "not answering",
    "noticed": "will be taken",
    "draining": "finishing",
    "runs": "a generation",
}


@dataclass(slots=True)
class Span:
    kind: str
    begin_s: float
    end_s: float
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment on a row. ``kind`` is a fault's, or "lost"."""

    kind: str
    at_s: float
    text: str


@dataclass(slots=True)
class Row:
    name: str
    spans: list[Span] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Timeline:
    """Rows of spans and marks. Seconds count from the beginning."""

    rows: Sequence[Row]  # the generations of each broadcast first, then the nodes by number
    seconds: float
    began_at: float = 0.0  # since the epoch

    @property
    def kinds(self) -> list[str]:
        used = {span.kind for row in self.rows for span in row.spans}
        return [kind for kind in WORDS if kind in used]


STATES: dict[type[Any], str] = {
    ev.NodeLaunching: "launching",
    ev.NodeLate: "late",
    ev.NodeStandby: "standby",
    ev.NodeReady: "ready",
    ev.NodeResumed: "ready",
    ev.NodeNoticeWithdrawn: "ready",
    ev.NodeSuspect: "suspect",
    ev.NodeNoticed: "noticed",
    ev.NodeDraining: "draining",
}


def timeline(report: Report) -> Timeline:
    times = [at for at in (report.began_at, report.ended_at) if at is not None]
    times += [event.at for event in report.events]
    times += [at for strike in report.strikes for at in (strike.at, strike.taken_at)]
    if not times:
        return Timeline([], 0.0)
    began, end = min(times), max(times)
    nodes: dict[int, Row] = {}
    jobs: dict[int, Row] = {}
    for found in report.found:
        kind = found.state if found.state in WORDS else "launching"
        rank = "" if found.rank is None else f"rank {found.rank}"
        _begin(nodes.setdefault(found.node, Row(f"node {found.node}")), kind, 0.0, rank)
    for event in report.events:
        _follow(event, event.at - began, nodes, jobs)
    for strike in report.strikes:
        row = nodes.setdefault(strike.node, Row(f"node {strike.node}"))
        row.marks.append(Mark(strike.kind, strike.at - began, strike.fault))
        if strike.kind == "preempt" and strike.over_at is not None:
            row.marks.append(Mark("kill", strike.over_at - began, "its end"))
    for number, row in jobs.items():
        row.name = f"job {number}" if len(jobs) > 1 else row.name
    rows = [*jobs.values(), *(nodes[node] for node in sorted(nodes))]
    for row in rows:
        _end(row, end - began)
    return Timeline(rows, end - began, began)


def _follow(event: Any, at_s: float, nodes: dict[int, Row], jobs: dict[int, Row]) -> None:
    match event:
        case ev.GenerationStarted(job=job, generation=generation):
            _begin(jobs.setdefault(job, Row("generations")), "runs", at_s, f"g{generation}")
        case ev.GenerationLost(job=job) | ev.BroadcastFinished(job=job):
            _end(jobs.setdefault(job, Row("generations")), at_s)
        case ev.NodeLost(node=node) | ev.NodeFailed(node=node) | ev.NodeDismissed(node=node):
            row = nodes.setdefault(node, Row(f"node {node}"))
            _end(row, at_s)
            if isinstance(event, ev.NodeLost):
                row.marks.append(Mark("lost", at_s, f"lost: {event.cause}"))
        case _:
            if (kind := STATES.get(type(event))) is not None:
                row = nodes.setdefault(event.node, Row(f"node {event.node}"))
                rank = f"rank {event.rank}" if isinstance(event, ev.NodeReady) else ""
                if kind == "ready" and not rank:  # it keeps the rank that it had
                    rank = next((span.text for span in reversed(row.spans) if span.text), "")
                _begin(row, kind, at_s, rank)


def _begin(row: Row, kind: str, at_s: float, text: str) -> None:
    _end(row, at_s)
    row.spans.append(Span(kind, at_s, -1.0, text))


def _end(row: Row, at_s: float) -> None:
    if row.spans and row.spans[-1].end_s < 0:
        row.spans[-1].end_s = at_s
