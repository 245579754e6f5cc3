"""Conversion of pools to short HTML for notebooks, made from the pieces in `api/html.py`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..api.html import BAD, COMING, DIM, QUIET, READY, WARNING, dot, line, page, text
from ..api.printable import one_line
from ..api.quantities import cents, count, seconds
from .descriptions import upload
from .pool_view import PoolView, Row, chosen_rows
from .progress import Progress, per_second

if TYPE_CHECKING:
    from ..api.snapshot import PoolSnapshot
    from .newest_metrics import Newest

# maximum numbers of rows, maps, broadcasts, metrics and unfinished lines that are shown
ROWS, MAPS, BROADCASTS, METRICS, UNFINISHED = 16, 3, 3, 8, 8
CELL_CHARS = 100
COLOURS = {"ready": READY, "launching": COMING, "preparing": COMING, "standby": QUIET, "queued": QUIET, "lost": BAD}
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
        parts = [line(f"<b>outrider</b> {text(headline)}")]
        if view.phase != "closed":
            parts += _living(view, now)
    if story.metrics is not None:
        parts.append(_metrics(story.metrics))
    parts += [line(text(each)) for each in story.unfinished[:UNFINISHED]]
    parts += [line(text(each), dim=True) for each in story.news]
    if story.hidden:
        parts.append(line(text(f"{count(story.hidden, 'more line')} of tasks; the last:"), dim=True))
        parts.append(_lines(story.tail))
    if story.record and view.phase == "closed":
        parts.append(line(f"<code>outrider report {text(story.record)}</code>", dim=True))
    return page(parts), f"outrider {headline}"


def snapshot_page(pool: PoolSnapshot, described: str, cost: tuple[float, float], record: str) -> str:
    """Return the HTML of a pool's current state. ``cost``: USD spent so far, and USD per hour."""
    spent = _cost(*cost)
    nodes = pool.nodes[:ROWS]
    rows = [
        (
            str(node.node),
            _state(node.state),
            "" if node.rank is None else str(node.rank),
            text(node.hostname or node.address or node.machine, CELL_CHARS),
            str(node.accelerators or ""),
        )
        for node in nodes
    ]
    parts = [line(f"<b>Pool</b> {text(described)}{f' · {spent}' if spent else ''}")]
    if rows:
        parts.append(_table(("node", "state", "rank", "where", "accelerators"), rows, right=(0, 2, 4)))
    if hidden := len(pool.nodes) - len(nodes):
        parts.append(line(f"and {hidden:,} more {'node' if hidden == 1 else 'nodes'}", dim=True))
    if record:
        parts.append(line(f"record: <code>{text(record)}</code>", dim=True))
    return page(parts)


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
        yield line(f"and {hidden:,} more {'node' if hidden == 1 else 'nodes'}", dim=True)
    if view.upload is not None:
        yield line(text(upload(view.upload)))
    for job, generation in [*view.generations.items()][:BROADCASTS]:
        ranks = count(len(view.broadcasts.get(job, ())), "rank")
        name = one_line(view.names.get(job, "")) or f"job {job}"
        yield line(text(f"broadcast {name}: {ranks}, generation {generation}"))
    for progress in [*view.maps.values()][:MAPS]:
        yield line(_map(progress, now))


def _node_cells(row: Row, now: float) -> tuple[str, ...]:
    where, doing = text(row.where, CELL_CHARS), text(_doing(row, now), CELL_CHARS)
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
    return bar + text(" · ".join(parts))


def _metrics(newest: Newest) -> str:
    shown = [*newest.values.items()][:METRICS]
    parts = [f"<b>{text(name)}</b> {value:.4g}" for name, value in shown]
    if more := len(newest.values) - len(shown):
        parts.append(f"{more} more")
    step = "" if newest.step is None else f"step {newest.step:,}"
    rank = "" if newest.origin.rank is None else f"rank {newest.origin.rank}"
    of = ", ".join(filter(None, (step, rank, one_line(newest.origin.function))))
    return line(" · ".join(parts) + (f" <span {DIM}>{text(of)}</span>" if of else ""))


def _cost(spent: float, hourly: float) -> str:
    """Return the cost in USD as text; empty if the machines cost nothing."""
    if not spent and not hourly:
        return ""
    return f"{cents(spent)} USD" + (f", {cents(hourly)} USD/h" if hourly else "")


def _lines(texts: Sequence[str]) -> str:
    content = "\n".join(map(text, texts))
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
    return f"{dot(COLOURS.get(state, WARNING))}{text(state)}"
