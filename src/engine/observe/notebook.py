"""The display of a pool in a notebook.

It appears below the cell that opened the pool, and is updated until the pool ends.

The output of tasks appears below the running cell, like output of the cell itself, up to `CELL_LINES` lines. After
that, the display shows only the last lines; the run's record contains all lines.
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
from ..api.sink import PoolFacts, Sink, Spending
from .descriptions import Descriptions, failure_line
from .log import shows_prints
from .newest_metrics import NewestMetrics
from .notebook_html import Story, pool_page
from .plain import STDERR, UNFINISHED_S, report_unshown, stream_of, write_plain
from .pool_view import PoolView
from .prints import marked, origin
from .sink import Writer

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
