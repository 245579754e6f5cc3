"""Passes the log records of tasks from the nodes to the run's record. Without a record, they are dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from ...providers.threads import in_thread

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..runs.logged import Origin
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload
    from ..wire.messages import Logged
    from .newest_metrics import NewestMetrics
    from .record import RecordSink

# maximum number of artifacts that are fetched at the same time; each may need `log_records.ARTIFACT_BYTES` of memory
FETCHES = 4


class TaskLogs:
    """Handles the log records of a pool's tasks. ``record``: returns the pool's record, or None."""

    def __init__(self, record: Callable[[], RecordSink | None]) -> None:
        self._record = record
        self.newest: NewestMetrics | None = None  # if set, receives the metrics for a display
        self._turns = asyncio.Semaphore(FETCHES)

    @property
    def wanted(self) -> bool:
        """Return whether log records are stored now.

        They are not if the pool has no record, or the record has failed.
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
            if not self.wanted:  # the record has failed while other artifacts were fetched
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
    from ..runs.logged import Origin  # imported here, because pools without a record do not need it

    function, job = cast("Payload", order.task.content).name, order.task.job
    if order.world is None:
        return Origin(function, job, None, node, order.number)
    return Origin(function, job, order.rank, node, order.world.generation)
