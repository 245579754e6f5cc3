"""Events as plain lines: events of the pool on stderr, the output of tasks on the stream to which the task wrote it."""

from __future__ import annotations

import io
import sys
import threading
import time
from contextlib import suppress

from ....actors import events as ev
from ...api.language import worded
from ...api.quantities import count, seconds
from ...api.sink import PoolFacts, Sink
from .descriptions import Descriptions, upload
from .log import shows_prints
from .prints import Printed, UnfinishedLines, marked
from .writer import Writer

STDOUT, STDERR = 1, 2
# minimum seconds between two printed states of an unfinished line, so that a progress bar does not fill a file
UNFINISHED_S = 10.0
REFRESH_S = 1.0  # seconds between two checks for unfinished lines that must be printed
REPORT_S = 2.0  # maximum seconds for printing the final message about lines that were not shown


class PrintsSink(Sink):
    """A sink that prints the output of tasks, unless the log already shows it. For applications with logging.

    If a task does not finish a line, such as a progress bar, the line's newest state is printed every `UNFINISHED_S`.
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
    """A sink for pipes, files and CI logs. It prints the output of tasks and the pool's events."""

    def __init__(self, facts: PoolFacts | None = None) -> None:
        super().__init__(facts)
        self._descriptions = Descriptions()
        self._opened_at: float | None = None
        self._ready = False
        # time of the last printed upload progress; None: print the next one
        self._upload_reported_at: float | None = None

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
            # nodes that are ready before the pool get no line each: the line of `PoolReady` has their number
            case ev.NodeReady() if self._ready:
                self._print_line(f"node {event.node} ready, {event.ready} of {count(event.wanted, 'node')}")
            case ev.PoolClosed() if self._opened_at is not None:
                self._print_line(f"closed after {seconds(event.at - self._opened_at)}")
        if line := self._descriptions.line(event):
            self._print_line(line)

    def _tell_upload(self, event: ev.UploadProgress) -> None:
        """Print the progress of sending large arguments: at the start, every `UNFINISHED_S`, and at the end."""
        if event.ended or self._upload_reported_at is None or event.at - self._upload_reported_at >= UNFINISHED_S:
            if line := upload(event):
                self._print_line(line)
            self._upload_reported_at = None if event.ended else event.at

    def _print_line(self, line: str) -> None:
        self._writer.put(f"outrider: {worded(line)}\n", STDERR)


def write_plain(text: str, stream: int, dropped: int) -> None:
    """Write to `sys.stdout` or `sys.stderr`. A character that the stream cannot encode is replaced by "?".

    The stream is looked up in each call, because applications and tests may replace it.

    Raises:
        ValueError: the program has no such stream, or the stream is closed.
        OSError: the write failed, for example because nobody reads the pipe any more.
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
    """Return whether stdout is a real file, pipe or terminal, which may block, and not an object of the application."""
    try:
        return isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.fileno() >= 0
    except (OSError, ValueError):
        return False


def report_unshown(writer: Writer, facts: PoolFacts) -> None:
    """Close the writer. If lines were not shown, print to stderr how many, and where to find them."""
    if not (unshown := writer.close()):
        return
    record = facts.record()
    kept = "Pool(run=NAME) would have kept them." if record is None else f"`outrider logs {record.name}` shows them."
    why = "stdout was not read" if writer.error is None else f"stdout failed ({writer.error})"
    kept = worded(kept)
    line = f"outrider: {count(unshown, 'line')} of output not shown, as {why}: {kept}\n"
    report = threading.Thread(target=_report, args=(line,), name="outrider-console", daemon=True)
    report.start()
    report.join(REPORT_S)  # printing may block if stderr is the same stopped terminal: then do not wait for the thread


def _report(line: str) -> None:
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(line)
            sys.stderr.flush()


def stream_of(event: Printed) -> int:
    return STDERR if event.stream == "stderr" else STDOUT
