"""The way of the tasks' log records from the nodes' links to the run's record. Without a record they are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from ...providers.threads import in_thread

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..runs.logged import Origin
    from ..serialization.payload import Payload, Received
    from ..wire.messages import Logged
    from .newest_metrics import NewestMetrics
    from .record import RecordSink

FETCHES = 4  # most artifacts that are fetched at a time: each may take `log_records.ARTIFACT_BYTES` of memory


class TaskLogs:
    """The log records of a pool's tasks. ``record``: the pool's record, if it has one."""

    def __init__(self, record: Callable[[], RecordSink | None]) -> None:
        self._record = record
        self.newest: NewestMetrics | None = None  # receives the newest metrics for a display
        self._turns = asyncio.Semaphore(FETCHES)

    @property
    def wanted(self) -> bool:
        """Return whether log records are kept from now on; a failed record keeps none."""
        record = self._record()
        return record is not None and not record.failed

    def received(self, node: NodeId, order: Order, logged: Logged) -> None:
        """Handle the log records of an attempt without reading them: a message takes a microsecond."""
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
        """Handle an artifact; return when it is written.

        ``fetch`` gets the artifact's content. If the artifact is too large, ``drop`` is called instead, and the node
        drops the content.

        Raises:
            ConnectionError: the node is lost.
            Exception: the transfer was given up.
        """
        record = self._record()
        async with self._turns:
            if not self.wanted:  # the record failed during other fetches
                drop()
                raise RuntimeError("there is no record any more")
            try:
                received = await fetch()
                if record is not None:
                    await in_thread(record.artifact, _origin(node, order), logged.records, received.data)
            except ConnectionError:
                raise
            except Exception as error:  # too large, or no memory: not an error of the task
                drop()
                if record is not None:
                    record.lost(_origin(node, order), f"an artifact could not be fetched: {error.__cause__ or error}")
                raise
        return received


def _origin(node: NodeId, order: Order) -> Origin:
    from ..runs.logged import Origin  # imported only here: pools without a record do not need the module

    function, job = cast("Payload", order.task.content).name, order.task.job
    if order.world is None:
        return Origin(function, job, None, node, order.number)
    return Origin(function, job, order.rank, node, order.world.generation)
