"""Events as lines for people: the pool's events on stderr, the output of tasks on the stream that they wrote to."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress

from ...actors import events as ev
from ..api.language import worded
from .descriptions import Descriptions, count, seconds, upload
from .log import shows_prints
from .prints import Printed, UnfinishedLines, marked
from .sink import PoolFacts, Sink, Writer

STDOUT, STDERR = 1, 2
UNFINISHED_S = 10.0  # time between two printed states of an unfinished line: a progress bar must not fill a file
REFRESH_S = 1.0  # pause between two checks for unfinished lines to print
REPORT_S = 2.0  # time limit for printing the line about lines that were not shown


class PrintsSink(Sink):
    """A sink for the output of tasks, unless the log shows it already: for notebooks, and applications that log.

    The newest state of an unfinished line is printed every `UNFINISHED_S`.
    """

    def __init__(self, facts: PoolFacts | None = None) -> None:
        self._facts = facts or PoolFacts()
        self._unfinished = UnfinishedLines()
        self._writer = Writer(write_plain, refresh=self._write_unfinished, interval_s=REFRESH_S)

    def show(self, event: ev.Event) -> None:
        if isinstance(event, (ev.TaskOutput, ev.UnfinishedLine)) and not shows_prints():
            self._print(event)

    def lags(self) -> bool:
        return self._writer.is_behind and blocks_as_print()

    def close(self, error: BaseException | None = None) -> None:  # noqa: ARG002
        report_unshown(self._writer, self._facts)

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
    """A sink for pipes, files and CI logs: the output of tasks, and the pool's events."""

    def __init__(self, facts: PoolFacts | None = None) -> None:
        super().__init__(facts)
        self._descriptions = Descriptions()
        self._opened_at: float | None = None
        self._ready = False
        self._upload_reported_at: float | None = None  # None: the next event is reported

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
            case ev.NodeReady() if self._ready:  # `PoolReady` reports the nodes that became ready before
                self._print_line(f"node {event.node} ready, {event.ready} of {count(event.wanted, 'node')}")
            case ev.PoolClosed() if self._opened_at is not None:
                self._print_line(f"closed after {seconds(event.at - self._opened_at)}")
        if line := self._descriptions.line(event):
            self._print_line(line)

    def _tell_upload(self, event: ev.UploadProgress) -> None:
        """Print the progress of large arguments: the first state, then one state every `UNFINISHED_S`, and the end."""
        if event.ended or self._upload_reported_at is None or event.at - self._upload_reported_at >= UNFINISHED_S:
            if line := upload(event):
                self._print_line(line)
            self._upload_reported_at = None if event.ended else event.at

    def _print_line(self, line: str) -> None:
        self._writer.put(f"outrider: {worded(line)}\n", STDERR)


def write_plain(text: str, stream: int, dropped: int) -> None:
    """Write to `sys.stdout` or `sys.stderr`; a character that the stream cannot encode is replaced by "?".

    The stream is looked up on each call, because applications and tests replace it.

    Raises:
        ValueError: there is no such stream, or it is closed.
        OSError: the write failed, for example because the stream has no reader any more.
    """
    if dropped:
        print(f"outrider: {count(dropped, 'line')} of output not shown, stdout was too slow", file=sys.stderr)
    if not text:
        return
    target = sys.stdout if stream == STDOUT else sys.stderr
    if target is None:
        raise ValueError("the program has no such stream")
    try:
        target.write(text)
    except UnicodeEncodeError as error:
        target.write(text.encode(error.encoding, "replace").decode(error.encoding))
    target.flush()


def blocks_as_print() -> bool:
    """Return whether stdout is a pipe, a file or a terminal, and not an object of the application."""
    try:
        return isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.fileno() >= 0
    except (OSError, ValueError):
        return False


def report_unshown(writer: Writer, facts: PoolFacts) -> None:
    """Close the writer; if lines were not shown, print to stderr how many, and where to find them."""
    if not (unshown := writer.close()):
        return
    record = facts.record()
    kept = "Pool(run=NAME) would have kept them." if record is None else f"`outrider logs {record.name}` shows them."
    why = "stdout was not read" if writer.error is None else f"stdout failed ({writer.error})"
    kept = worded(kept)
    line = f"outrider: {count(unshown, 'line')} of output not shown, as {why}: {kept}\n"
    report = threading.Thread(target=_report, args=(line,), name="outrider-console", daemon=True)
    report.start()
    report.join(REPORT_S)  # stderr may be the same stopped terminal, which blocks this thread


def _report(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()


def stream_of(event: Printed) -> int:
    return STDERR if event.stream == "stderr" else STDOUT
