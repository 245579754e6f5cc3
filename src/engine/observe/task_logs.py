"""Pass on what tasks log, from the links that hear of it to the record of the run. Without a record it is dropped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, cast

from ...providers.threads import in_thread
from ..wire.log_records import ARTIFACT_BYTES

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..runs.logged import Origin
    from ..serialization.payload import Payload, Received
    from ..wire.messages import Logged
    from .record import RecordSink

FETCHES = 4  # of artifacts at a time: each may take `ARTIFACT_BYTES` of memory


class TaskLogs:
    """The records of a pool's tasks. ``record``: the pool's, if it has one."""

    def __init__(self, record: Callable[[], RecordSink | None]) -> None:
        self._record = record
        self._turns = asyncio.Semaphore(FETCHES)

    @property
    def wanted(self) -> bool:
        return self._record() is not None

    def received(self, node: NodeId, order: Order, logged: Logged) -> None:
        """Handle what an attempt has logged. It costs a microsecond for each message: none is read here."""
        if (record := self._record()) is not None:
            record.logged(_origin(node, order), logged.records, logged.dropped)

    async def artifact(
        self, node: NodeId, order: Order, logged: Logged, fetch: Callable[[], Awaitable[Received]]
    ) -> Received:
        """Handle an artifact, whose content ``fetch`` gets; return when it is written, or was given up.

        Raises:
            ConnectionError: the node is lost.
        """
        record = self._record()
        async with self._turns:
            try:
                received = await fetch()
                if record is not None and len(received.data) <= ARTIFACT_BYTES:
                    await in_thread(record.artifact, _origin(node, order), logged.records, received.data)
            except ConnectionError:
                raise
            except Exception as error:  # no memory, say: that is no error of the task
                if record is not None:
                    record.lost(_origin(node, order), f"an artifact could not be fetched: {error.__cause__ or error}")
                raise
        return received


def _origin(node: NodeId, order: Order) -> Origin:
    from ..runs.logged import Origin  # which pools without a record do without

    function, job = cast("Payload", order.task.content).name, order.task.job
    if order.world is None:
        return Origin(function, job, None, node, order.number)
    return Origin(function, job, order.rank, node, order.world.generation)
