"""The display of a pool in a notebook.

It appears below the cell that opened the pool, and is updated until the pool ends. The output of tasks appears below
the running cell, like output of the cell itself, up to `CELL_LINES` lines. After that, the display shows only the last
lines; the run's record contains all lines.

`NewestMetrics` has the newest metrics that tasks have logged. The functions `pool_page` and `snapshot_page` convert a
pool to short HTML, made from the pieces in `api/html.py`.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, copy_context
from threading import Lock
from typing import TYPE_CHECKING, Any

from ....actors import events as ev
from ....lazy_dataclass import dataclass
from ....lazy_named_tuple import NamedTuple
from ...api.html import BAD, COMING, DIM, QUIET, READY, WARNING, dot, line, page, text
from ...api.printable import one_line
from ...api.quantities import cents, count, seconds
from ...api.sink import PoolFacts, Sink, Spending
from ...wire.log_records import Metrics, unpacked
from .descriptions import Descriptions, failure_line, upload
from .log import shows_prints
from .plain import STDERR, UNFINISHED_S, report_unshown, stream_of, write_plain
from .pool_view import PoolView, Progress, Row, chosen_rows, per_second
from .prints import marked, origin
from .writer import Writer

if TYPE_CHECKING:
    from ...api.sink import Origin
    from ...api.snapshot import PoolSnapshot


WAITING = 64  # maximum number of unread messages that are kept; if there are more, the oldest are dropped
NAMES = 100  # maximum number of different metrics
JOBS = 1000  # maximum number of jobs for which the lowest rank is remembered


class Newest(NamedTuple):
    """The newest values of all metrics.

    ``origin`` and ``step``: the task and the step of the last log record. ``values``: metric -> value, in order of
    arrival.
    """

    origin: Origin
    step: int | None
    values: dict[str, float]


class NewestMetrics:
    """The newest value of each metric.

    Of the ranks of a broadcast, only the lowest one that logs counts, usually rank 0.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Origin, bytes]] = deque(maxlen=WAITING)
        self._lowest: dict[int, int] = {}  # job of a broadcast -> lowest rank that has logged
        self._newest: Newest | None = None

    def add(self, origin: Origin, records: bytes) -> None:
        """Store a message of log records without decoding it. Called on the event loop."""
        if origin.rank is not None:
            lowest = self._lowest.get(origin.job)
            if lowest is not None and origin.rank > lowest:
                return
            if lowest is None and len(self._lowest) >= JOBS:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[origin.job] = origin.rank
        self._waiting.append((origin, records))

    def read(self) -> Newest | None:
        """Decode the stored messages, and return the newest values; None: there are none yet.

        Called by the thread that draws.
        """
        while self._waiting:
            origin, records = self._waiting.popleft()
            for record in unpacked(records, 0.0):
                if isinstance(record, Metrics):
                    self._take(origin, record)
        return self._newest

    def _take(self, origin: Origin, record: Metrics) -> None:
        values = {} if self._newest is None else self._newest.values
        for name, value in record.values.items():
            if name in values or len(values) < NAMES:
                values[name] = value
        if values:
            self._newest = Newest(origin, record.step, values)


# maximum numbers of rows, maps, broadcasts, metrics and unfinished lines that are shown
ROWS, MAPS, BROADCASTS, METRICS, UNFINISHED = 16, 3, 3, 8, 8
TEXT_CHARS = 100
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
            text(node.hostname or node.address or node.machine, TEXT_CHARS),
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
    where, doing = text(row.where, TEXT_CHARS), text(_doing(row, now), TEXT_CHARS)
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


INTERVAL_S = 0.5
# seconds between two updates while the pool is idle; updates are rare, because notebooks save each of them
IDLE_S = 60.0
CELL_LINES, CELL_CHARS = 1000, 200_000  # maximum lines and characters of task output that appear below one cell
TAIL = 8  # number of last task lines that the display shows
NEWS = 5
FAILURES = 20  # maximum number of failures that are shown as a line
WAIT_S = 1.0  # maximum wait, in seconds, at the end of a cell for the thread that draws and prints


class NotebookSink(Sink):
    """A sink that shows a table of the pool in a notebook.

    The writer's thread draws and prints; the event loop only updates numbers.
    """

    tasks = True

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self.metrics = self._metrics = NewestMetrics()
        self._view = PoolView()
        self._descriptions = Descriptions()
        self._news: deque[str] = deque(maxlen=NEWS)
        self._failures = 0
        self._spending = Spending()
        self._spent = 0.0  # cost in USD that was shown last; the shown cost never decreases
        self._error: BaseException | None = None
        self._cell = CellOutput()
        self._display = CellDisplay()
        self._shown = ""
        self._drawing = Lock()
        self._writer = Writer(self._write, refresh=self._refresh, finish=self._draw, interval_s=INTERVAL_S)

    def show(self, event: ev.Event) -> None:
        match event:
            case ev.TaskOutput() | ev.UnfinishedLine():
                self._view.unfinished.apply(event)
                if isinstance(event, ev.TaskOutput) and not shows_prints():
                    self._writer.put(marked(event), stream_of(event))
                return
            case ev.JobFailed():
                self._failures += 1
                if self._failures <= FAILURES:
                    self._news.append(failure_line(event))
                return
        self._view.apply(event)
        if not isinstance(event, ev.JobEvent):
            self._spending = self._facts.spending()
        match event:
            case ev.PoolStarting():
                self._writer.start()
                self._display.open(self._cell_ended)
            case ev.PoolReady() | ev.PoolResized():
                pass
            case _ if line := self._descriptions.line(event):
                self._news.append(line)

    def close(self, error: BaseException | None = None) -> None:
        self._error = error
        self._spending = self._facts.spending()
        self._display.close(self._cell_ended)
        report_unshown(self._writer, self._facts)

    def _cell_ended(self, *_: object) -> None:
        """Update the display at the end of each cell.

        If a program executes the notebook and saves it, the saved file does not contain later updates.
        """
        self._writer.catch_up(WAIT_S)
        if self._drawing.acquire(timeout=WAIT_S):
            try:
                self._draw_locked()
            except Exception as error:  # noqa: BLE001 - the edge
                _tell(error)
            finally:
                self._drawing.release()

    def _write(self, text: str, stream: int, dropped: int) -> None:
        shown, note = self._cell.take(text, self._display.running_cell())
        write_plain(shown, stream, dropped)
        if note:
            record = self._facts.record()
            where = f"; outrider logs {record.name} has all" if record is not None else ""
            write_plain(f"outrider: of further lines the pool's display has the last ones{where}\n", STDERR, 0)

    def _refresh(self) -> None:
        # the display is below another cell and probably not visible, so also print unfinished lines, such as progress
        # bars
        if self._display.running_cell() != self._display.cell and not shows_prints():
            for event in self._view.unfinished.due(time.time(), UNFINISHED_S):
                self._write(marked(event), stream_of(event), 0)
        self._draw()

    def _draw(self) -> None:
        with self._drawing:
            self._draw_locked()

    def _draw_locked(self) -> None:
        now = time.time()
        if not self._view.busy:
            now -= (now - self._view.opened_at) % IDLE_S
        html, text = pool_page(self._view, self._story(now), now)
        if html != self._shown or self._view.busy:
            self._display.show(html, text)
            self._shown = html

    def _story(self, now: float) -> Story:
        ended, record = self._view.phase == "closed", self._facts.record()
        self._spent = max(self._spent, self._spending.until(now))
        return Story(
            spent=self._spent,
            hourly=self._spending.hourly,
            metrics=self._metrics.read(),
            news=[*self._news],
            hidden=self._cell.hidden,
            tail=[*self._cell.tail],
            record="" if record is None else record.name,
            ended=_ended(self._error or self._facts.failure()) if ended else "",
            unfinished=[f"[{origin(each)}] {one_line(each.text)}" for each in self._view.unfinished.newest()],
        )


class CellOutput:
    """Counts the task output shown below the current cell, and keeps the last lines that were not shown. No I/O."""

    def __init__(self) -> None:
        self._cell = ""
        self._lines = self._chars = 0
        self.hidden = 0  # number of lines that were not shown
        self.tail: deque[str] = deque(maxlen=TAIL)  # the last lines that were not shown

    def take(self, text: str, cell: str) -> tuple[str, bool]:
        """Decide which lines of ``text`` to show below ``cell``.

        Returns:
            The lines to show, and whether a line is hidden for the first time below this cell.
        """
        if cell != self._cell:
            self._cell, self._lines, self._chars, self.hidden = cell, 0, 0, 0
            self.tail.clear()
        lines = text.splitlines(keepends=True)
        shown: list[str] = []
        for each in lines:
            if self._lines >= CELL_LINES or self._chars + len(each) > CELL_CHARS or self.hidden:
                break
            self._lines += 1
            self._chars += len(each)
            shown.append(each)
        rest = lines[len(shown) :]
        first = bool(rest) and not self.hidden
        self.hidden += len(rest)
        self.tail.extend(line.rstrip("\n") for line in rest[-TAIL:])
        return "".join(shown), first


class CellDisplay:
    """One IPython display, which can be updated. IPython is already imported in a notebook.

    The display appears below the cell that opened the pool, even if a background task opened the pool while another
    cell was running. Updates carry the id of the running cell, or of the last cell: programs that execute notebooks
    ignore updates for other cells. They find the display by the id of the display.
    """

    def __init__(self) -> None:
        self._id = f"outrider-{os.urandom(8).hex()}"
        self._opened = Context()
        self._is_there = False
        self.cell = ""

    def open(self, cell_ended: Callable[..., object]) -> None:
        """Bind the display to the cell whose code calls this method.

        ``cell_ended`` is called at the end of each cell.
        """
        self._opened = copy_context()
        self.cell = _cell()
        _shell().events.register("post_run_cell", cell_ended)

    def close(self, cell_ended: Callable[..., object]) -> None:
        try:
            _shell().events.unregister("post_run_cell", cell_ended)
        except Exception as error:  # noqa: BLE001  for example, the callback is not registered
            _tell(error)

    def running_cell(self) -> str:
        """Return the id of the running cell or, if no cell is running, of the last cell."""
        return Context().run(_cell)

    def show(self, html: str, text: str) -> None:
        show: Callable[..., object] = importlib.import_module("IPython.display").display
        bundle = {"text/html": html, "text/plain": text}
        if self._is_there:
            Context().run(show, bundle, raw=True, display_id=self._id, update=True)
        else:
            self._opened.run(show, bundle, raw=True, display_id=self._id)
            self._is_there = True


def _shell() -> Any:
    return sys.modules["IPython"].get_ipython()


def _cell() -> str:
    """Return the id of the cell whose code calls this function.

    If the code does not belong to a cell, return the id of the running or last cell.
    """
    try:
        return str(_shell().display_pub.parent_header["msg_id"])
    except Exception as error:  # noqa: BLE001  another kernel than IPython's own, or no cell has run yet
        _tell(error)
        return ""


def _ended(error: BaseException | None) -> str:
    """Return a text about how a pool ended."""
    match error:
        case None:
            return "ended"
        case Exception():
            return f"ended with {type(error).__name__}: {one_line(str(error))}".rstrip(": ")
        case SystemExit():
            return "ended by exit"
        case _:
            return "interrupted"


def _tell(error: Exception) -> None:
    logging.getLogger("outrider").debug("notebook: %r", error)
