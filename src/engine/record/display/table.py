"""The live table: converts a `PoolView` to a rich table that fits the width and height of the terminal."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ....lazy_dataclass import dataclass
from ...api.printable import one_line
from ...api.quantities import count, seconds
from .descriptions import upload
from .pool_view import PoolView, Progress, Row, chosen_rows, per_second
from .prints import origin

# states without an entry are yellow
COLOURS = {"launching": "cyan", "ready": "green", "standby": "blue", "lost": "red"}
AROUND = 5  # terminal lines that are not rows: header, progress bar, number of hidden rows, prompt
WIDE = 64  # minimum width, in columns, for showing the column with the machine
MAPS = 3  # maximum number of maps that are shown
BAR_FROM = 8  # minimum number of tasks for which a progress bar is shown
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(frozen=True, slots=True)
class View:
    pool_view: PoolView
    now: float

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        with self.pool_view.lock:
            parts = self._parts(options)
        yield Group(*parts)

    def _parts(self, options: ConsoleOptions) -> list[RenderableType]:
        pool_view = self.pool_view
        height = options.height or options.size.height
        unfinished = pool_view.unfinished.newest()[: height // 3]
        rows = chosen_rows(pool_view, max(3, height - AROUND - len(unfinished) - 2 * min(MAPS, len(pool_view.maps))))
        parts: list[RenderableType] = [self._header(), self._nodes(rows, options.max_width >= WIDE)]
        if hidden := len(pool_view.rows) - len(rows):
            parts.append(Text(f"  and {count(hidden, 'node')} more", style="dim"))
        if pool_view.upload is not None:
            parts.append(Text(upload(pool_view.upload), no_wrap=True, overflow="ellipsis"))
        width = min(60, options.max_width - 2)
        for progress in [*pool_view.maps.values()][:MAPS]:
            parts.append(self._map(progress))
            if progress.total:
                parts.append(_bar(progress.total, progress.done, width))
        if not pool_view.maps and pool_view.wanted >= BAR_FROM and pool_view.ended < pool_view.wanted:
            parts.append(_bar(pool_view.wanted, pool_view.ended, width))
        for line in unfinished:
            text = Text(f"[{origin(line)}] ", style="dim", no_wrap=True, overflow="ellipsis")
            parts.append(text.append(one_line(line.text), style="not dim"))
        return parts

    def _header(self) -> Text:
        pool_view = self.pool_view
        text = _title(pool_view, Text(no_wrap=True, overflow="ellipsis"))
        text.append(f" · {pool_view.ready} of {count(pool_view.desired, 'node')} ready")
        for state, nodes in pool_view.others.items():
            text.append(f", {nodes} {state}", style="yellow")
        if pool_view.hourly_cost:
            text.append(f" · {pool_view.hourly_cost:.2f} USD/h")
        if pool_view.wanted:
            # with a map, the total is not known, because a map submits its tasks step by step
            of = "" if pool_view.maps else f" of {pool_view.wanted:,}"
            tasks = "task" if pool_view.wanted == 1 else "tasks"
            text.append(f" · {pool_view.done:,}{of} {tasks} done")
        _unsuccessful(pool_view, text)
        if pool_view.phase != "ready":
            text.append(f" · {pool_view.phase}", style="cyan")
        return text.append(f" · {seconds(self.now - pool_view.opened_at)}", style="dim")

    def _nodes(self, rows: list[Row], wide: bool) -> Table:
        table = Table(box=None, padding=(0, 1), header_style="dim", expand=False)
        table.add_column("node", justify="right", no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=len("launching") + 2)
        if wide:
            table.add_column("where", no_wrap=True, overflow="ellipsis", max_width=28)
        table.add_column("running", no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column("done", justify="right", no_wrap=True)
        for row in rows:
            where = [Text(one_line(row.where))] if wide else []
            table.add_row(str(row.node), self._state(row), *where, self._running(row), f"{row.done:,}")
        return table

    def _map(self, progress: Progress) -> Text:
        of = "" if progress.total is None else f" of {progress.total:,}"
        text = Text(f"map {one_line(progress.function)}: {progress.done:,}{of}", no_wrap=True, overflow="ellipsis")
        if progress.failed:
            text.append(f" · {progress.failed:,} failed", style="red")
        if rate := progress.rate(self.now):
            text.append(f" · {per_second(rate)}")
        if (left_s := progress.left_s(self.now)) is not None:
            text.append(f" · {seconds(left_s)} left")
        return text

    def _state(self, row: Row) -> Text:
        sign = SPINNER[int(self.now * 10) % len(SPINNER)] if row.state == "launching" else "●"
        return Text(f"{sign} {row.state}", style=COLOURS.get(row.state, "yellow"))

    def _running(self, row: Row) -> Text:
        if row.step is not None and row.state in {"launching", "late"}:
            step, since, doing = row.step
            text = Text(f"{one_line(step)} {seconds(self.now - since)}")
            return text.append(f" · {one_line(doing)}" if doing else "", style="dim")
        if row.state == "launching":
            return Text(seconds(self.now - row.since), style="dim")
        if row.taken_at:
            left = seconds(max(0.0, row.taken_at - self.now))
            return Text(f"{one_line(row.note)}: {left} left", style="yellow")
        if row.note:
            return Text(one_line(row.note), style=COLOURS.get(row.state, "yellow"))
        if not row.running:
            return Text("idle", style="dim")
        (name, since), *others = row.running.values()
        text = Text(f"{one_line(name) or 'task'} {seconds(self.now - since)}")
        return text.append(f" and {len(others)} more", style="dim") if others else text


def _bar(total: int, done: int, width: int) -> Padding:
    # `Padding` adds the newline that a bar alone does not have
    return Padding(ProgressBar(total, done, width=width), 0)


def summary(pool_view: PoolView, now: float) -> Text:
    """Return the final line, which stays on the terminal after the pool has ended."""
    text = _title(pool_view, Text(style="dim")).append(f" · {count(pool_view.done, 'task')} done")
    return _unsuccessful(pool_view, text).append(f" · {seconds(now - pool_view.opened_at)}")


def _title(pool_view: PoolView, text: Text) -> Text:
    text.append("outrider ", style="bold")
    return text.append(" · ".join(filter(None, map(one_line, (pool_view.name, pool_view.provider)))))


def _unsuccessful(pool_view: PoolView, text: Text) -> Text:
    """Append the numbers of failed and of cancelled tasks.

    Tasks that were ended because other tasks failed count as cancelled.
    """
    if pool_view.failed:
        text.append(f" · {pool_view.failed:,} failed", style="red")
    if pool_view.cancelled:
        text.append(f"{',' if pool_view.failed else ' ·'} {pool_view.cancelled:,} cancelled", style="yellow")
    return text
