"""The live table on a terminal. The output of tasks appears above the table and scrolls."""

from __future__ import annotations

import sys
import time
from threading import Lock
from typing import TYPE_CHECKING

from ....actors import events as ev
from ...api.language import worded
from ...api.sink import PoolFacts, Sink
from .descriptions import Descriptions, failure_line
from .plain import STDERR, report_unshown, stream_of, write_plain
from .pool_view import PoolView
from .prints import marked
from .writer import Writer

if TYPE_CHECKING:
    from rich.live import Live

INTERVAL_S = 0.125
FAILURES = 20  # maximum number of failures that are shown as a line

_terminal = Lock()  # held by the sink that draws in this process: a terminal has room for only one live table


class RichSink(Sink):
    """A sink that shows a live table of the pool on the terminal.

    The writer's thread imports rich, draws and prints; the event loop only updates numbers. While the table is shown,
    rich replaces `sys.stdout` and `sys.stderr` by proxies that print above the table: the output of tasks and of the
    application appears there, in order.
    """

    tasks = True

    def __init__(self, facts: PoolFacts | None = None) -> None:
        self._facts = facts or PoolFacts()
        self._claimed = False
        self._descriptions = Descriptions()
        self._failures = 0
        self._live: Live | None = None
        self._pool_view = PoolView()
        self._writer = Writer(write_plain, refresh=self._draw, finish=self._finish, interval_s=INTERVAL_S)

    @classmethod
    def claim(cls, facts: PoolFacts | None = None) -> RichSink | None:
        """Return a sink that may draw on the terminal until the sink is closed.

        None: another sink of this process draws there.
        """
        if not _terminal.acquire(blocking=False):
            return None
        sink = cls(facts)
        sink._claimed = True
        return sink

    def show(self, event: ev.Event) -> None:
        if isinstance(event, (ev.TaskOutput, ev.UnfinishedLine)):
            self._pool_view.unfinished.apply(event)
            if isinstance(event, ev.TaskOutput):
                self._writer.put(marked(event), stream_of(event))
            return
        if isinstance(event, ev.JobFailed):
            self._tell_failure(event)
            return
        self._pool_view.apply(event)
        if isinstance(event, ev.PoolStarting):
            self._writer.start()
        elif not isinstance(event, (ev.PoolReady, ev.PoolResized)) and (line := self._descriptions.line(event)):
            self._writer.put(f"outrider: {worded(line)}\n", STDERR)

    def _tell_failure(self, event: ev.JobFailed) -> None:
        """Print a line for each of the first `FAILURES` failures.

        The others are only counted in the table; awaiting a call raises the call's failure in any case.
        """
        self._failures += 1
        if self._failures <= FAILURES:
            self._writer.put(f"outrider: {failure_line(event)}\n", STDERR)
        elif self._failures == FAILURES + 1:
            self._writer.put("outrider: further failures are counted in the table alone\n", STDERR)

    def lags(self) -> bool:
        return self._writer.is_behind

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002
        report_unshown(self._writer, self._facts)
        if self._claimed:
            self._claimed = False
            _terminal.release()

    def _draw(self) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.live import Live

            from .table import View

            self._live = Live(
                console=Console(stderr=True),
                get_renderable=lambda: View(self._pool_view, time.time()),
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            )
            self._live.start()
        self._live.refresh()

    def _finish(self) -> None:
        if self._live is not None:
            from .table import summary

            self._live.stop()
            self._live.console.print(summary(self._pool_view, time.time()))
