"""The table of a pool in a notebook: one display in the cell that opened the pool, updated while the pool is open.

The output of tasks appears below the running cell, like the cell's own output, up to `CELL_LINES` lines. Beyond that,
the display shows only the last lines; the record of the run has all lines.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from threading import Lock
from typing import Any

from ...actors import events as ev
from ..api.printable import one_line
from ..runs.status import Spending
from .descriptions import Descriptions
from .failures import failure_line
from .log import shows_prints
from .newest_metrics import NewestMetrics
from .notebook_html import Story, pool_page
from .plain import STDERR, UNFINISHED_S, report_unshown, stream_of, write_plain
from .pool_view import PoolView
from .prints import marked, origin
from .sink import PoolFacts, Sink, Writer

INTERVAL_S = 0.5
IDLE_S = 60.0  # time between two updates for an idle pool: notebooks save each change
CELL_LINES, CELL_CHARS = 1000, 200_000  # most lines and characters of task output below one cell
TAIL = 8  # number of last lines that the display shows
NEWS = 5
FAILURES = 20  # most failures that get a line of their own
WAIT_S = 1.0  # longest wait, at the end of a cell, for the thread that draws and prints


class NotebookSink(Sink):
    """A table of the pool. Drawing and printing happen in the writer's thread; the event loop only counts."""

    tasks = True

    def __init__(self, facts: PoolFacts) -> None:
        self._facts = facts
        self.metrics = self._metrics = NewestMetrics()
        self._view = PoolView()
        self._descriptions = Descriptions()
        self._news: deque[str] = deque(maxlen=NEWS)
        self._failures = 0
        self._spending = Spending()
        self._spent = 0.0  # USD, as shown last
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
        """Draw when a cell ends: if a program runs and saves the notebook, later updates are not in the saved file."""
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
        # the display is in another cell, probably out of sight
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
    """The task output shown below each cell, and the last lines of the hidden output. No I/O."""

    def __init__(self) -> None:
        self._cell = ""
        self._lines = self._chars = 0
        self.hidden = 0  # number of hidden lines
        self.tail: deque[str] = deque(maxlen=TAIL)  # the last hidden lines

    def take(self, text: str, cell: str) -> tuple[str, bool]:
        """Return (the lines of ``text`` to show below ``cell``, whether this call hides the cell's first line)."""
        if cell != self._cell:
            self._cell, self._lines, self._chars, self.hidden = cell, 0, 0, 0
            self.tail.clear()
        lines = text.splitlines(keepends=True)
        shown: list[str] = []
        for line in lines:
            if self._lines >= CELL_LINES or self._chars + len(line) > CELL_CHARS or self.hidden:
                break
            self._lines += 1
            self._chars += len(line)
            shown.append(line)
        rest = lines[len(shown) :]
        first = bool(rest) and not self.hidden
        self.hidden += len(rest)
        self.tail.extend(line.rstrip("\n") for line in rest[-TAIL:])
        return "".join(shown), first


class CellDisplay:
    """One IPython display. In a notebook, IPython is imported already.

    A display appears in the cell that opened the pool, even if a background task opened the pool while another cell
    ran.
    Updates are sent in the name of the running cell, or of the last cell: programs that run notebooks ignore updates in
    the name of other cells. They find the display by its id.
    """

    def __init__(self) -> None:
        self._id = f"outrider-{os.urandom(8).hex()}"
        self._opened = Context()
        self._is_there = False
        self.cell = ""

    def open(self, cell_ended: Callable[..., object]) -> None:
        """Bind the display to the cell whose code calls this. ``cell_ended`` is called at each cell's end."""
        self._opened = copy_context()
        self.cell = _cell()
        _shell().events.register("post_run_cell", cell_ended)

    def close(self, cell_ended: Callable[..., object]) -> None:
        try:
            _shell().events.unregister("post_run_cell", cell_ended)
        except Exception as error:  # noqa: BLE001  for example, the callback is not registered
            _tell(error)

    def running_cell(self) -> str:
        """Return an id of the running cell, or of the last one."""
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
    """Return an id of the cell whose code calls this function; outside of any cell, of the running or last cell."""
    try:
        return str(_shell().display_pub.parent_header["msg_id"])
    except Exception as error:  # noqa: BLE001  another kernel than IPython's own, or no cell has run yet
        _tell(error)
        return ""


def _ended(error: BaseException | None) -> str:
    """Return how a pool ended, in words."""
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
