"""Events as lines for people: the pool's own on stderr, the output of tasks on the stream that they wrote to."""

from __future__ import annotations

import sys
import time

from ...actors import events as ev
from .descriptions import Descriptions, count, seconds, upload
from .log import shows_prints
from .prints import Printed, UnfinishedLines, marked
from .sink import Sink, Writer

STDOUT, STDERR = 1, 2
UNFINISHED_S = 10.0  # between states of a line without an end: a progress bar in a file is to be short
REFRESH_S = 1.0  # between looks at which are due


class PrintsSink(Sink):
    """A sink for what tasks print, where the log does not show it already: for notebooks, and applications that log.

    A line without an end is shown every `UNFINISHED_S`.
    """

    def __init__(self) -> None:
        self._unfinished = UnfinishedLines()
        self._writer = Writer(write_plain, refresh=self._write_unfinished, interval_s=REFRESH_S)

    def show(self, event: ev.Event) -> None:
        if isinstance(event, (ev.TaskOutput, ev.UnfinishedLine)) and not shows_prints():
            self._print(event)

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002
        self._writer.close()

    def _print(self, event: Printed) -> None:
        self._unfinished.apply(event)
        if isinstance(event, ev.TaskOutput):
            self._writer.put(marked(event), stream_of(event))
        else:
            self._writer.start()

    def _write_unfinished(self) -> None:
        for event in self._unfinished.due(time.time(), UNFINISHED_S):
            write_plain(marked(event), stream_of(event), 0)


class PlainSink(PrintsSink):
    """A sink for pipes, files and CI logs: what tasks print, and what happens to the pool."""

    def __init__(self) -> None:
        super().__init__()
        self._descriptions = Descriptions()
        self._opened_at: float | None = None
        self._ready = False
        self._upload_told_at: float | None = None  # None: the next one is told of

    def show(self, event: ev.Event) -> None:
        match event:
            case ev.TaskOutput() | ev.UnfinishedLine():
                self._print(event)
                return
            case ev.PoolStarting():
                self._opened_at = event.at
            case ev.PoolReady():
                self._ready = True
            case ev.UploadProgress():
                self._tell_upload(event)
                return
            case ev.NodeReady() if self._ready:  # before that, `PoolReady` counts the nodes
                self._print_line(f"node {event.node} ready, {event.ready} of {count(event.wanted, 'node')}")
            case ev.PoolClosed() if self._opened_at is not None:
                self._print_line(f"closed after {seconds(event.at - self._opened_at)}")
        if line := self._descriptions.line(event):
            self._print_line(line)

    def _tell_upload(self, event: ev.UploadProgress) -> None:
        """Print the first state of large arguments on their way, one each `UNFINISHED_S`, and the end."""
        if event.ended or self._upload_told_at is None or event.at - self._upload_told_at >= UNFINISHED_S:
            if line := upload(event):
                self._print_line(line)
            self._upload_told_at = None if event.ended else event.at

    def _print_line(self, line: str) -> None:
        self._writer.put(f"outrider: {line}\n", STDERR)


def write_plain(text: str, stream: int, dropped: int) -> None:
    """Write to `sys.stdout` or `sys.stderr`, looked up on each call: applications and tests replace them."""
    if dropped:
        print(f"outrider: {count(dropped, 'piece')} of output not shown, stdout was too slow", file=sys.stderr)
    target = sys.stdout if stream == STDOUT else sys.stderr
    if text and target is not None:
        target.write(text)
        target.flush()


def stream_of(event: Printed) -> int:
    return STDERR if event.stream == "stderr" else STDOUT
