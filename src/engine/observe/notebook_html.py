"""Conversion of pools and jobs to short HTML for notebooks, without scripts and style sheets.

The HTML is readable on a light and on a dark background. Notebooks that are not trusted, and web pages that show saved
notebooks, remove scripts, CSS classes and images. So the HTML consists of simple elements with the few inline styles
that are not removed. Text has the notebook's own colour; only the state dots have colours of this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..api.printable import one_line
from .descriptions import cents, count, seconds, upload
from .pool_view import PoolView, Row, chosen_rows
from .progress import Progress, per_second

if TYPE_CHECKING:
    from .newest_metrics import Newest
    from .pool_view import PoolSnapshot

# maximum numbers of rows, maps, broadcasts, metrics and unfinished lines that are shown
ROWS, MAPS, BROADCASTS, METRICS, UNFINISHED = 16, 3, 3, 8, 8
CELL_CHARS, LINE_CHARS = 100, 300
# each colour has a contrast of at least 3:1 on white and on black
READY, COMING, WARNING, BAD, QUIET = "#1f8f5f", "#2f80c0", "#b7791f", "#d14a2b", "#7a8288"
COLOURS = {"ready": READY, "launching": COMING, "preparing": COMING, "standby": QUIET, "queued": QUIET, "lost": BAD}
JOB_COLOURS = {"under way": COMING, "returned": READY, "failed": BAD}
_DIM = 'style="opacity:.75"'
_CELL = "border:0;padding:0 1em 0 0;background:none;white-space:nowrap;text-align:"


@dataclass(slots=True)
class Story:
    """The parts of a display besides the table of nodes.

    ``ended``: how the pool ended, as text; empty while it is open. ``news``: lines about events, the newest last.
    ``unfinished``: lines that tasks have begun to print. ``hidden``: the number of task lines that are not shown below
    a cell. ``tail``: the last of these hidden lines. ``record``: the id of the run's record.
    """

    spent: float = 0.0
    hourly: float = 0.0
    metrics: Newest | None = None
    news: Sequence[str] = ()
    hidden: int = 0
    tail: Sequence[str] = ()
    record: str = ""
    ended: str = ""
    unfinished: Sequence[str] = ()


def pool_page(view: PoolView, story: Story, now: float) -> tuple[str, str]:
    """Return a pool's display as HTML, and as one line of text for programs that show no HTML.

    Acquires the view's lock.
    """
    with view.lock:
        headline = _headline(view, story, now)
        parts = [_line(f"<b>outrider</b> {_text(headline)}")]
        if view.phase != "closed":
            parts += _living(view, now)
    if story.metrics is not None:
        parts.append(_metrics(story.metrics))
    parts += [_line(_text(each)) for each in story.unfinished[:UNFINISHED]]
    parts += [_line(_text(each), dim=True) for each in story.news]
    if story.hidden:
        parts.append(_line(_text(f"{count(story.hidden, 'more line')} of tasks; the last:"), dim=True))
        parts.append(_lines(story.tail))
    if story.record and view.phase == "closed":
        parts.append(_line(f"<code>outrider report {_text(story.record)}</code>", dim=True))
    return _page(parts), f"outrider {headline}"


def snapshot_page(pool: PoolSnapshot, described: str, cost: tuple[float, float], record: str) -> str:
    """Return the HTML of a pool's current state. ``cost``: USD spent so far, and USD per hour."""
    spent = _cost(*cost)
    nodes = pool.nodes[:ROWS]
    rows = [
        (
            str(node.node),
            _state(node.state),
            "" if node.rank is None else str(node.rank),
            _text(node.hostname or node.address or node.machine, CELL_CHARS),
            str(node.accelerators or ""),
        )
        for node in nodes
    ]
    parts = [_line(f"<b>Pool</b> {_text(described)}{f' · {spent}' if spent else ''}")]
    if rows:
        parts.append(_table(("node", "state", "rank", "where", "accelerators"), rows, right=(0, 2, 4)))
    if hidden := len(pool.nodes) - len(nodes):
        parts.append(_line(f"and {hidden:,} more {'node' if hidden == 1 else 'nodes'}", dim=True))
    if record:
        parts.append(_line(f"record: <code>{_text(record)}</code>", dim=True))
    return _page(parts)


def simple_page(what: str, described: str) -> str:
    return _page([_line(f"<b>{_text(what)}</b> {_text(described)}")])


def job_page(function: str, job: int, state: str) -> str:
    """Return the HTML of a job. ``state``: "under way", "returned", "failed" or "cancelled"."""
    return _page([_line(f"{_dot(JOB_COLOURS.get(state, QUIET))}<b>job {job}</b> {_text(f'{function}: {state}')}")])


def _headline(view: PoolView, story: Story, now: float) -> str:
    """Return one line of text about the pool. While the pool is idle, the line shows the pool's age in full minutes."""
    parts = [one_line(view.name), one_line(view.provider)]
    age_s = (view.closed_at or now) - view.opened_at
    if view.phase == "closed":
        parts.append(f"{story.ended or 'ended'} after {seconds(age_s)}")
    else:
        others = "".join(f", {nodes} {state}" for state, nodes in view.others.items())
        parts.append(f"{view.ready} of {count(view.desired, 'node')} ready{others}")
    if view.wanted:
        of = "" if view.maps or view.phase == "closed" else f" of {view.wanted:,}"
        parts.append(f"{view.done:,}{of} {'task' if view.wanted == 1 else 'tasks'} done")
    if view.failed:
        parts.append(f"{view.failed:,} failed")
    if view.cancelled:
        parts.append(f"{view.cancelled:,} cancelled")
    if cost := _cost(story.spent, 0.0 if view.phase == "closed" else story.hourly):
        parts.append(cost)
    if view.phase not in ("ready", "closed"):
        parts.append(view.phase)
    if view.busy:
        parts.append(seconds(age_s))
    elif view.phase != "closed" and age_s >= 60:
        parts.append(f"open for {count(int(age_s / 60), 'minute')}")
    return " · ".join(filter(None, parts))


def _living(view: PoolView, now: float) -> Iterable[str]:
    rows = chosen_rows(view, ROWS)
    cells = [_node_cells(row, now) for row in rows]
    if cells:
        yield _table(("node", "state", "where", "running", "done"), cells, right=(0, 4))
    if hidden := len(view.rows) - len(rows):
        yield _line(f"and {hidden:,} more {'node' if hidden == 1 else 'nodes'}", dim=True)
    if view.upload is not None:
        yield _line(_text(upload(view.upload)))
    for job, generation in [*view.generations.items()][:BROADCASTS]:
        ranks = count(len(view.broadcasts.get(job, ())), "rank")
        name = one_line(view.names.get(job, "")) or f"job {job}"
        yield _line(_text(f"broadcast {name}: {ranks}, generation {generation}"))
    for progress in [*view.maps.values()][:MAPS]:
        yield _line(_map(progress, now))


def _node_cells(row: Row, now: float) -> tuple[str, ...]:
    where, doing = _text(row.where, CELL_CHARS), _text(_doing(row, now), CELL_CHARS)
    return str(row.node), _state(row.state), where, doing, f"{row.done:,}"


def _doing(row: Row, now: float) -> str:
    """Return one line of text about what a node is doing now."""
    if row.step is not None and row.state in {"launching", "late"}:
        step, since, text = row.step
        return f"{step} {seconds(now - since)}{f' · {text}' if text else ''}"
    if row.state == "launching":
        return seconds(now - row.since)
    if row.taken_at:
        return f"{row.note}: {seconds(max(0.0, row.taken_at - now))} left"
    if row.note:
        return row.note
    if not row.running:
        return "idle"
    (name, since), *others = row.running.values()
    more = f" and {len(others)} more" if others else ""
    return f"{name or 'task'} {seconds(now - since)}{more}"


def _map(progress: Progress, now: float) -> str:
    of = "" if progress.total is None else f" of {progress.total:,}"
    parts = [f"map {progress.function}: {progress.done:,}{of}"]
    if progress.failed:
        parts.append(f"{progress.failed:,} failed")
    if rate := progress.rate(now):
        parts.append(per_second(rate))
    if (left_s := progress.left_s(now)) is not None:
        parts.append(f"{seconds(left_s)} left")
    bar = ""
    if progress.total:
        bar = f'<progress max="{progress.total}" value="{min(progress.done, progress.total)}"></progress> '
    return bar + _text(" · ".join(parts))


def _metrics(newest: Newest) -> str:
    shown = [*newest.values.items()][:METRICS]
    parts = [f"<b>{_text(name)}</b> {value:.4g}" for name, value in shown]
    if more := len(newest.values) - len(shown):
        parts.append(f"{more} more")
    step = "" if newest.step is None else f"step {newest.step:,}"
    rank = "" if newest.origin.rank is None else f"rank {newest.origin.rank}"
    of = ", ".join(filter(None, (step, rank, one_line(newest.origin.function))))
    return _line(" · ".join(parts) + (f" <span {_DIM}>{_text(of)}</span>" if of else ""))


def _cost(spent: float, hourly: float) -> str:
    """Return the cost in USD as text; empty if the machines cost nothing."""
    if not spent and not hourly:
        return ""
    return f"{cents(spent)} USD" + (f", {cents(hourly)} USD/h" if hourly else "")


def _page(parts: Iterable[str]) -> str:
    return f'<div style="line-height:1.5">{"".join(parts)}</div>'


def _line(content: str, *, dim: bool = False) -> str:
    return f"<div {_DIM}>{content}</div>" if dim else f"<div>{content}</div>"


def _lines(texts: Sequence[str]) -> str:
    content = "\n".join(map(_text, texts))
    return f'<pre style="margin:0;background:none">{content}</pre>'


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int]) -> str:
    """Return an HTML table. ``head``, ``rows``: the cells, as HTML. ``right``: indexes of the right-aligned columns."""
    side = ["right" if place in right else "left" for place in range(len(head))]
    heads = "".join(
        f'<th style="{_CELL}{side[place]};font-weight:normal;opacity:.75">{each}</th>'
        for place, each in enumerate(head)
    )
    body = "".join(
        "<tr>" + "".join(f'<td style="{_CELL}{side[place]}">{cell}</td>' for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<table style="margin:0;border:0"><tr>{heads}</tr>{body}</table>'


def _state(state: str) -> str:
    return f"{_dot(COLOURS.get(state, WARNING))}{_text(state)}"


def _dot(colour: str) -> str:
    return f'<span style="color:{colour}">●</span> '


def _text(value: str, most: int = LINE_CHARS) -> str:
    line = one_line(value)
    return escape(line if len(line) <= most else f"{line[: most - 3]}...")
