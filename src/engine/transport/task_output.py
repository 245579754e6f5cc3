"""The output and the log records of tasks, on their way from the nodes to displays and files.

`PrintedLines` joins chunks of output to lines, and publishes the lines as events. `TaskLogs` stores log records in the
run's record, the folder of the run; without a record, the log records are dropped.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from ...actors import events as ev
from ...lazy_named_tuple import NamedTuple
from ...providers.shared.threads import in_thread
from ..api.sink import Origin

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..api.sink import NewestLogged, RunRecord
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload
    from ..wire.messages import Logged, Output

STREAMS = "stdout", "stderr"
LINE_BYTES = 64 * 1024  # maximum size of an unfinished line that is kept; longer lines are published in pieces
# maximum number of artifacts that are fetched at the same time; each may need `log_records.ARTIFACT_BYTES` of memory
FETCHES = 4


class PrintedLines:
    """Joins the output of a pool's tasks to lines, and publishes the lines as events.

    The beginning of an unfinished line is kept while its attempt runs. A node may also send output of attempts that the
    client never sent to it; of these, nothing is kept. So a node cannot use more than 128 KiB of the client's memory
    per attempt.
    """

    def __init__(
        self,
        publish: Callable[[ev.TaskOutput | ev.UnfinishedLine], object],
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


def last_state(line: bytes) -> bytes:
    """Return the visible part of a line that was overwritten with carriage returns, as progress bars do."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _decoded(text: bytes) -> str:
    return text.decode(errors="replace")


class TaskLogs:
    """Handles the log records of a pool's tasks. ``record``: returns the pool's record (folder), or None."""

    def __init__(self, record: Callable[[], RunRecord | None]) -> None:
        self._record = record
        self.newest: NewestLogged | None = None  # if set, receives the metrics for a display
        self._turns = asyncio.Semaphore(FETCHES)

    @property
    def wanted(self) -> bool:
        """Return whether log records are stored now.

        They are dropped if the pool has no record (folder of the run), or if writing to the record has failed.
        """
        record = self._record()
        return record is not None and not record.failed

    def received(self, node: NodeId, order: Order, logged: Logged) -> None:
        """Store the log records of an attempt without decoding them. Takes one microsecond per message."""
        if (record := self._record()) is not None:
            origin = _origin(node, order)
            record.logged(origin, logged.records, logged.dropped)
            if self.newest is not None:
                self.newest.add(origin, logged.records)

    async def artifact(
        self,
        node: NodeId,
        order: Order,
        logged: Logged,
        fetch: Callable[[], Awaitable[Received]],
        drop: Callable[[], object],
    ) -> Received:
        """Fetch an artifact that a task has logged, and write it to the record.

        ``fetch`` gets the artifact's content from the node. If the content cannot be fetched or stored, ``drop`` is
        called, which makes the node drop the content.

        Raises:
            ConnectionError: the node is lost.
            Exception: the artifact could not be fetched or stored.
        """
        record = self._record()
        async with self._turns:
            if not self.wanted:  # writing to the record has failed while other artifacts were fetched
                drop()
                raise RuntimeError("there is no record any more")
            try:
                received = await fetch()
                if record is not None:
                    await in_thread(record.artifact, _origin(node, order), logged.records, received.data)
            except ConnectionError:
                raise
            except Exception as error:  # too large, or no memory: the task goes on
                drop()
                if record is not None:
                    record.lost(_origin(node, order), f"an artifact could not be fetched: {error.__cause__ or error}")
                raise
        return received


def _origin(node: NodeId, order: Order) -> Origin:
    function, job = cast("Payload", order.task.content).name, order.task.job
    if order.world is None:
        return Origin(function, job, None, node, order.number)
    return Origin(function, job, order.rank, node, order.world.generation)
