"""A generator's node is lost when it has returned, and its last values are still on their way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import Local, NodeLost, Pool, compute
from outrider.engine.transport.node_reports import NodeReports
from outrider.engine.transport.task_streams import TaskStreams

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@compute
def pieces(count: int) -> Iterator[bytes]:
    for number in range(count):
        yield bytes([number]) * 300_000


async def test_values_that_are_lost_after_the_generators_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by random faults: the stream ended after its first value as if there had been no more."""
    fetched, finish = TaskStreams.bring, NodeReports._finish_when_fetched
    ended, lost = asyncio.Event(), asyncio.Event()
    numbers = iter(range(10))

    async def lost_after_the_first(self: TaskStreams, order: Any, item: Any) -> Any:
        if next(numbers):
            await lost.wait()
            raise ConnectionResetError("the node is lost")
        return await fetched(self, order, item)

    async def ends(self: NodeReports, *of: Any) -> None:
        ended.set()
        await finish(self, *of)

    monkeypatch.setattr(TaskStreams, "bring", lost_after_the_first)
    monkeypatch.setattr(NodeReports, "_finish_when_fetched", ends)
    async with Pool(provider=Local(as_remote=True), nodes=1, console="silent") as pool:
        stream = pool.stream(pieces(4))
        assert (await anext(stream))[0] == 0
        await ended.wait()
        (node,) = pool.snapshot().nodes
        os.kill(int((node.facts or {})["pid"]), signal.SIGKILL)
        lost.set()
        with pytest.raises(NodeLost):
            await anext(stream)
