"""Artifacts of tasks are fetched for a record that takes them, and no others."""

from __future__ import annotations

from typing import Any, cast

import pytest

from outrider.actors.interfaces import AttemptId, JobId, NodeId, Order, Task, TaskId
from outrider.engine.record.record_sink import RecordSink
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.transport.task_output import FETCHES, TaskLogs
from outrider.engine.wire.messages import Logged, Value

pytestmark = pytest.mark.anyio
ORDER = Order(
    AttemptId(1),
    Task(TaskId(1), JobId(1), b"d", Payload("train", b"d", b"", Value(b"", None)), None, 3, False, None),
    1,
)
LOGGED = Logged(1, b"records", 0, "blob")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Record:
    def __init__(self) -> None:
        self.failed = False
        self.taken: list[bytes] = []
        self.told: list[str] = []

    def artifact(self, origin: object, records: bytes, content: bytes) -> None:
        self.taken.append(content)

    def lost(self, origin: object, why: str) -> None:
        self.told.append(why)


class Artifacts:
    """What a link does with them."""

    def __init__(self, record: Record | None) -> None:
        self.logs = TaskLogs(lambda: cast("RecordSink | None", record))
        self.fetched = self.dropped = 0
        self.error: Exception | None = None

    async def fetch(self) -> Received:
        self.fetched += 1
        if self.error is not None:
            raise self.error
        return Received(b"content", None, 0.0)

    def drop(self) -> None:
        self.dropped += 1

    async def comes(self) -> Any:
        return await self.logs.artifact(NodeId(0), ORDER, LOGGED, self.fetch, self.drop)


async def test_an_artifact_is_fetched_and_recorded() -> None:
    record = Record()
    node = Artifacts(record)
    assert node.logs.wanted
    await node.comes()
    assert (record.taken, record.told, node.dropped) == ([b"content"], [], 0)


async def test_one_that_cannot_be_fetched_is_told_and_dropped() -> None:
    record = Record()
    node = Artifacts(record)
    node.error = ValueError("it has 12 bytes, and at most 10 are taken")
    with pytest.raises(ValueError, match="12 bytes"):
        await node.comes()
    assert record.told == ["an artifact could not be fetched: it has 12 bytes, and at most 10 are taken"]
    assert node.dropped == 1


async def test_a_lost_node_has_nothing_left_to_drop() -> None:
    record = Record()
    node = Artifacts(record)
    node.error = ConnectionResetError()
    with pytest.raises(ConnectionResetError):
        await node.comes()
    assert (record.told, node.dropped) == ([], 0)


async def test_nothing_is_fetched_for_a_record_that_has_failed_meanwhile() -> None:
    record = Record()
    node = Artifacts(record)
    for _ in range(FETCHES):
        await node.logs._turns.acquire()
    record.failed = True
    assert not node.logs.wanted
    for _ in range(FETCHES):
        node.logs._turns.release()
    with pytest.raises(RuntimeError, match="no record any more"):
        await node.comes()
    assert (node.fetched, node.dropped) == (0, 1)


def test_without_a_record_nothing_is_wanted() -> None:
    assert not Artifacts(None).logs.wanted
