"""Plain lines: the pool's own on stderr, the output of tasks on the stream that they wrote to."""

from __future__ import annotations

import sys

from ...actors import events as ev
from .descriptions import count, describe, printed, seconds
from .sink import Sink
from .writer import Writer

STDOUT, STDERR = 1, 2


def stream_of(event: ev.TaskOutput) -> int:
    return STDERR if event.stream == "stderr" else STDOUT


class PlainSink(Sink):
    """A sink for pipes, files and CI logs."""

    def __init__(self) -> None:
        self._writer = Writer(write_plain)
        self._opened_at: float | None = None
        self._ready = False

    def show(self, event: ev.Event) -> None:
        match event:
            case ev.TaskOutput():
                self._writer.put(printed(event), stream_of(event))
                return
            case ev.PoolStarting():
                self._opened_at = event.at
            case ev.PoolReady():
                self._ready = True
            case ev.NodeReady() if self._ready:  # before that, `PoolReady` counts the nodes
                self._print_line(f"node {event.node} ready, {event.ready} of {count(event.wanted, 'node')}")
            case ev.PoolClosed() if self._opened_at is not None:
                self._print_line(f"closed after {seconds(event.at - self._opened_at)}")
        if line := describe(event):
            self._print_line(line)

    def close(self) -> None:
        self._writer.close()

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
