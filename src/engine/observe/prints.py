"""The output of tasks as lines. Chunks of output are joined to lines, and lines are shown with their origin. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, cast

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple
from ..api.printable import lines, one_line

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..serialization.task_payload import Payload
    from ..wire.messages import Output

STREAMS = "stdout", "stderr"
LINE_BYTES = 64 * 1024  # maximum size of an unfinished line that is kept; longer lines are published in pieces

Printed = ev.TaskOutput | ev.UnfinishedLine


class PrintedLines:
    """Joins the output of a pool's tasks to lines, and publishes the lines as events.

    The beginning of an unfinished line is kept while its attempt runs. For attempts that the client did not send,
    nothing is kept, so a node cannot use more than 128 KiB of the client's memory per attempt.
    """

    def __init__(
        self,
        publish: Callable[[Printed], object],
        *,
        wanted: Callable[[], bool] = lambda: True,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._publish, self._wanted, self._now = publish, wanted, now
        # (attempt, stream) -> beginning of an unfinished line. If this is empty, callers need not report the ends of
        # attempts.
        self.begun: dict[tuple[int, str], bytes] = {}

    def wrote(self, node: NodeId, order: Order | None, output: Output) -> None:
        """Handle output of an attempt. ``order``: the attempt that printed it; None: that attempt is already over."""
        if not self._wanted():
            return
        source, at = _Source.of(node, order, STREAMS[output.stream == 2]), self._now()
        if order is None:
            self._publish(source.whole(output.text, at, output.dropped))
            return
        key = order.attempt, source.stream
        begun = self.begun.pop(key, b"")
        if output.dropped and begun:
            self._publish(source.whole(begun, at))
            begun = b""
        text, newline, rest = (begun + output.text).rpartition(b"\n")
        text, rest = text + newline, last_state(rest)
        if len(rest) > LINE_BYTES:
            text, rest = text + rest, b""
        if text or output.dropped:
            self._publish(source.whole(text, at, output.dropped))
        if rest:
            self.begun[key] = rest
            self._publish(source.unfinished(rest, at))

    def ended(self, node: NodeId, order: Order) -> None:
        """Handle the end of an attempt: publish its unfinished lines as complete lines."""
        for stream in STREAMS:
            if begun := self.begun.pop((order.attempt, stream), b""):
                erased = not begun.strip()  # a progress bar may overwrite itself with spaces at its end
                self._publish(_Source.of(node, order, stream).whole(b"" if erased else begun, self._now()))


class _Source(NamedTuple):
    job: int
    node: int
    rank: int
    ranks: int
    stream: str
    function: str

    @classmethod
    def of(cls, node: NodeId, order: Order | None, stream: str) -> _Source:
        if order is None:
            return cls(0, node, 0, 1, stream, "")
        ranks = 1 if order.world is None else order.world.size
        return cls(order.task.job, node, order.rank, ranks, stream, cast("Payload", order.task.content).name)

    def whole(self, text: bytes, at: float, dropped: int = 0) -> ev.TaskOutput:
        job, node, rank, ranks, stream, function = self
        return ev.TaskOutput(job, node, rank, stream, _decoded(text), function, dropped, ranks, at=at)

    def unfinished(self, text: bytes, at: float) -> ev.UnfinishedLine:
        job, node, rank, ranks, stream, function = self
        return ev.UnfinishedLine(job, node, rank, stream, _decoded(text), function, ranks, at=at)


class UnfinishedLines:
    """The newest state of each line that a task has begun and not finished, such as a progress bar."""

    def __init__(self) -> None:
        self._lines: dict[tuple[int, int, int, str], _Unfinished] = {}
        # held by the event loop while it changes lines, and by the thread that draws or prints while it reads lines
        self._lock = Lock()

    def apply(self, event: Printed) -> None:
        key = event.job, event.node, event.rank, event.stream
        with self._lock:
            if isinstance(event, ev.TaskOutput):
                self._lines.pop(key, None)
            elif (line := self._lines.get(key)) is None:
                self._lines[key] = _Unfinished(event, event.at)
            else:
                line.newest = event

    def newest(self) -> list[ev.UnfinishedLine]:
        """Return the newest state of each unfinished line, sorted by rank and node."""
        with self._lock:
            events = [line.newest for line in self._lines.values() if line.newest.text.strip()]
        return sorted(events, key=lambda event: (event.rank, event.node, event.job))

    def due(self, now: float, every_s: float) -> list[ev.UnfinishedLine]:
        """Return the unfinished lines that have changed since they were last returned.

        Only lines that were last returned, or began, at least ``every_s`` seconds ago are returned.
        """
        due: list[ev.UnfinishedLine] = []
        with self._lock:
            for line in self._lines.values():
                if line.newest is not line.reported and now - line.reported_at >= every_s and line.newest.text.strip():
                    line.reported, line.reported_at = line.newest, now
                    due.append(line.newest)
        return due


class _Unfinished:
    """An unfinished line, its last returned state, and the time of that return (at first: of the line's beginning)."""

    __slots__ = ("newest", "reported", "reported_at")

    def __init__(self, newest: ev.UnfinishedLine, began_at: float) -> None:
        self.newest, self.reported_at = newest, began_at
        self.reported: ev.UnfinishedLine | None = None


def last_state(line: bytes) -> bytes:
    """Return the visible part of a line that was overwritten with carriage returns, as progress bars do."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def marked(event: Printed) -> str:
    """Return the output of a task as text, with the origin at the beginning of each line."""
    mark = f"[{origin(event)}] "
    dropped = event.dropped if isinstance(event, ev.TaskOutput) else 0
    gap = f"{mark}... {dropped:,} bytes were lost here\n" if dropped else ""
    return gap + "".join(f"{mark}{line}\n" for line in lines(event.text))


def origin(event: Printed) -> str:
    """Return the origin of a line: ``rank 3 · train`` in a broadcast, else ``node 2 · f #17``, where 17 is the job."""
    name = one_line(event.function)
    if event.ranks > 1:
        return f"rank {event.rank} · {name or event.job}"
    if not event.job:  # the job is not known, because the attempt was already over
        return f"node {event.node}"
    return f"node {event.node} · {name or 'task'} #{event.job}"


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")
