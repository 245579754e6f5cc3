"""The timeline of a run: its computation from events (no I/O), and its drawing as HTML and SVG.

`timeline_of` converts events to rows with the states of each node, its work, and the generations. A generation is one
run of a broadcast with fixed ranks; after a loss, the next generation begins. `gantt` draws a bar for each node and
generation, and below a node's bar the work of that node. All positions are percentages of the width, so that the
timeline fits every screen, and the markup contains no style. A page with a script can zoom the timeline by the times in
the attributes ``data-a`` and ``data-b``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ...api import quantities
from ...api.quantities import size
from ..runs.lines import SavedCheckpoint
from .markup import text

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
GOOD = ("", "returned")  # values of `Span.fate` that show no problem
SAVED = "saved"  # kind of a mark that shows a saved checkpoint
VOID = ("lost", "killed", "terminated", "unsent")  # values of `Span.fate` for work that was ended from outside


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


# Most rows of nodes. If there are more nodes, only nodes with notable events get a row, and a chart sums up all nodes.
MOST_ROWS = 40
MOST_LANES = 24  # most rows of broadcasts
ROW, BAR, WORK = 30, 16, 5  # heights in pixels: of a row, of the bar in it, of the strip of work below the bar
MOST_MARKS = 150  # most marks of checkpoints on a row: checkpoints whose marks would touch share one mark
STRIP_BUDGET = 6000  # most spans of work on a page
# Width of one letter on a small screen, as a fraction of the timeline's width. A label that is longer than its bar is
# left out.
LABEL_PART = 0.012
FATES = {
    "lost": "lost a node",
    "failed": "a rank failed, and ran again",
    "returned": "returned",
    "raised": "raised an error",
    "died": "its process died",
}
TICKS_S = (
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    20,
    30,
    60,
    120,
    300,
    600,
    1800,
    3600,
    7200,
    21600,
    43200,
    86400,
)


class Shown(NamedTuple):
    """The nodes that have their own rows, and the number of ``others``."""

    rows: Sequence[Row]
    others: int


def shown_nodes(nodes: Sequence[Row], most: int = MOST_ROWS) -> Shown:
    """Return the nodes that get a row: all nodes if they are few, otherwise nodes with notable events and some more."""
    if len(nodes) <= most:
        return Shown(nodes, 0)
    eventful = [place for place, row in enumerate(nodes) if row.eventful][: most - 2]
    quiet = [place for place, row in enumerate(nodes) if not row.eventful]
    places = sorted([*eventful, *quiet[: max(2, 8 - len(eventful))]])
    return Shown([nodes[place] for place in places], len(nodes) - len(places))


def gantt(line: Timeline) -> str:
    """Return the HTML of the whole timeline."""
    shown = shown_nodes(line.nodes)
    lanes = line.rows[: min(line.broadcasts, MOST_LANES)]
    least_s = line.seconds / max(60.0, STRIP_BUDGET / max(1, len(shown.rows)))
    parts = [f'<div class="gantt" data-seconds="{line.seconds:.3f}">']
    if lanes:
        more = line.broadcasts - len(lanes)
        parts += _group("Broadcasts", lanes, line.seconds, least_s, f"{more:,} more are in events.jsonl" * (more > 0))
    if shown.others:
        parts.append(_sum(line.nodes, line.seconds))
    note = f"{shown.others:,} others, to which nothing happened, are in the sum above" if shown.others else ""
    if shown.rows:
        parts += _group("Nodes", shown.rows, line.seconds, least_s, note)
    parts += [*_axis(line.seconds), "</div>"]
    return "".join(parts)


def key(line: Timeline) -> str:
    """Return the legend with the colours that the timeline uses."""
    entries = [f'<li><i class="k-{kind}"></i>{WORDS[kind]}</li>' for kind in line.kinds]
    work = [span for row in line.nodes for span in row.work]
    if work:
        entries.append('<li><i class="k-work"></i>what ran on a node</li>')
    kinds = {work_kind(span) for span in work}
    if "void" in kinds:
        entries.append('<li><i class="k-void"></i>and ended with a lost node</li>')
    if "bad" in kinds:
        entries.append('<li><i class="k-bad"></i>and failed</li>')
    kinds_of_marks = {mark.kind for row in line.rows for mark in row.marks}
    if SAVED in kinds_of_marks:
        entries.append('<li><i class="k-save"></i>a checkpoint is complete</li>')
    if kinds_of_marks - {SAVED}:
        entries.append('<li><i class="k-mark"></i>lost, or never ready</li>')
    return f'<ul class="key" aria-label="What the colours mean">{"".join(entries)}</ul>'


def timed_words(span: Span) -> str:
    """Describe a span in words, with its times."""
    return f"{span_words(span)}, {clock(span.begin_s)} to {clock(span.end_s)}"


def span_words(span: Span) -> str:
    """Describe a span in words."""
    what = f"{span.text}: {WORDS[span.kind]}" if span.text else WORDS[span.kind]
    return f"{what}, {FATES.get(span.fate, span.fate)}" if span.fate else what


def clock(at_s: float) -> str:
    """Format a time in seconds since the run's beginning."""
    return quantities.seconds(at_s, digits=2)


def tick_s(seconds: float, most: int = 6) -> float:
    """Return the seconds between two ticks of an axis with at most ``most`` ticks."""
    return next((step for step in TICKS_S if seconds <= most * step), TICKS_S[-1] * (int(seconds / 86400 / most) + 1))


def _group(title: str, rows: Sequence[Row], seconds: float, least_s: float, note: str) -> Iterator[str]:
    yield f'<div class="rows" role="group" aria-label="{text(title)}"><p class="rows-title">{text(title)}</p>'
    for row in rows:
        yield from _row(row, seconds, least_s)
    if note:
        yield f'<p class="note">{text(note)}.</p>'
    yield "</div>"


def _row(row: Row, seconds: float, least_s: float) -> Iterator[str]:
    marks = grouped(row.marks, seconds / MOST_MARKS)
    words = "; ".join(
        [*map(timed_words, row.spans[:12]), *(f"{mark.text} at {clock(mark.at_s)}" for mark in marks[:12])]
    )
    yield f'<div class="row"><span class="row-name" title="{text(row.name)}">{text(row.name)}</span>'
    yield f'<svg class="track" width="100%" height="{ROW}" role="img" aria-label="{text(f"{row.name}: {words}")}">'
    top = (ROW - BAR) // 2 - (2 if row.work else 0)
    for span in row.spans:
        yield from _bar(span, seconds, top)
    yield from _work(row.work, seconds, top + BAR + 1, least_s)
    # draw losses last, so that they are above checkpoints
    for mark in sorted(marks, key=lambda each: each.kind != SAVED):
        yield from _mark(mark, seconds, top)
    yield "</svg></div>"


def _mark(mark: Mark, seconds: float, top: int) -> Iterator[str]:
    yield f'<svg class="at" x="{_part(mark.at_s, seconds)}" data-a="{mark.at_s:.3f}" overflow="visible">'
    yield f'<g class="{"save" if mark.kind == SAVED else "mark"}">'
    yield f"<title>{text(mark.text)} at {clock(mark.at_s)}</title>"
    if mark.kind == SAVED:
        yield f'<path d="M0 {top - 4.5}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"/></g></svg>'
        return
    middle = top + BAR // 2
    yield f'<path d="M0 {top - 3}v{BAR + 6}"/><circle r="6" cy="{middle}"/>'
    yield f'<path class="cross" d="M-2.5 {middle - 2.5}l5 5m0 -5l-5 5"/></g></svg>'


def _bar(span: Span, seconds: float, top: int) -> Iterator[str]:
    width = max(0.0, span.end_s - span.begin_s)
    box = f'x="{_part(span.begin_s, seconds)}" width="{_part(width, seconds)}"'
    times = f'data-a="{span.begin_s:.3f}" data-b="{span.end_s:.3f}"'
    broken = f" f-{span.fate}" if span.fate in FATES and span.fate != "returned" else ""
    kind = "generation" if span.kind == "runs" else "node"
    yield f'<svg class="bar b-{span.kind}{broken}" data-bar="{kind}" {box} {times} y="{top}" height="{BAR}">'
    yield f'<title>{text(timed_words(span))}</title><rect width="100%" height="{BAR}" rx="2.5"/>'
    if broken:
        yield f'<svg x="100%" overflow="visible"><path class="end" d="M-4 0h4v{BAR}h-4z"/></svg>'
    if span.text and width / seconds > LABEL_PART * len(span.text):
        yield f'<text x="6" y="12">{text(span.text)}</text>'
    yield "</svg>"


def _work(spans: Sequence[Span], seconds: float, y: int, least_s: float) -> Iterator[str]:
    """Draw the work of a node: one SVG path for each kind of outcome."""
    digits = 3 if seconds < 1000 else 0
    paths: dict[Work, str] = {"good": "", "void": "", "bad": ""}
    for begin_s, end_s, kind in merged(spans, least_s):
        paths[kind] += f"M{begin_s:.{digits}f} 0H{max(end_s, begin_s + least_s / 2):.{digits}f}V1H{begin_s:.{digits}f}z"
    if not spans:
        return
    yield f'<svg class="work" y="{y}" height="{WORK}" viewBox="0 0 {seconds:.3f} 1" preserveAspectRatio="none">'
    for kind, path in paths.items():
        if path:
            yield f'<path class="w-{kind}" d="{path}"/>'
    yield "</svg>"


def _sum(nodes: Sequence[Row], seconds: float) -> str:
    """Draw how many nodes were in each state over time, as stacked areas."""
    buckets = 240
    by_kind = counts(nodes, seconds, buckets)
    order = [
        kind
        for kind in ("ready", "noticed", "draining", "suspect", "standby", "late", "launching", "queued")
        if kind in by_kind
    ]
    base, most = [0] * buckets, max((sum(each) for each in zip(*by_kind.values(), strict=True)), default=1) or 1
    paths = []
    for kind in order:
        top = [below + more for below, more in zip(base, by_kind[kind], strict=True)]
        area = _area(base, top, seconds / buckets, most)
        paths.append(f'<path class="b-{kind}" d="{area}"><title>{WORDS[kind]}</title></path>')
        base = top
    words = f"{len(nodes):,} nodes; at most {most:,} at the same time. " + ", ".join(
        f"{WORDS[kind]}: at most {max(by_kind[kind]):,}" for kind in order
    )
    return (
        '<div class="rows" role="group" aria-label="All nodes"><p class="rows-title">All nodes by state</p>'
        f'<div class="row tall"><span class="row-name">{most:,}<br><small>nodes</small></span>'
        f'<svg class="track sum" width="100%" height="120" role="img" aria-label="{text(words)}">'
        f'<svg class="work" height="120" viewBox="0 0 {seconds:.3f} {most}" preserveAspectRatio="none">'
        f'{"".join(paths)}</svg></svg></div><p class="note">{text(words)}.</p></div>'
    )


def _area(low: Sequence[int], high: Sequence[int], width: float, most: int) -> str:
    """Return the SVG path around an area with stepped edges. ``low`` and ``high`` count from the bottom."""
    there = _stairs(enumerate(high), width, most)
    back = "".join(f"V{most - value}H{place * width:.3f}" for place, value in reversed(list(enumerate(low))))
    return f"M0 {most - high[0]}{there}{back}z"


def _stairs(values: Iterable[tuple[int, int]], width: float, most: int) -> str:
    return "".join(f"V{most - value}H{(place + 1) * width:.3f}" for place, value in values)


def _axis(seconds: float) -> Iterator[str]:
    step = tick_s(seconds)
    yield '<div class="row axis" aria-hidden="true"><span class="row-name"></span>'
    yield '<svg class="ticks" width="100%" height="22">'
    for number in range(int(seconds / step) + 1):
        place = _part(number * step, seconds)
        anchor = "start" if number == 0 else "end" if number * step > 0.93 * seconds else "middle"
        yield f'<text x="{place}" y="15" text-anchor="{anchor}">{text(_tick(number * step))}</text>'
    yield "</svg></div>"


def _tick(at_s: float) -> str:
    return f"{at_s:g} s" if at_s < 60 else clock(at_s)


def _part(at_s: float, seconds: float) -> str:
    return f"{100 * at_s / seconds:.3f}%"
