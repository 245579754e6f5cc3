"""A generator's node is lost when it has returned, and its last values are still on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from outrider import Local, NodeLost, Pool, compute
from outrider.engine.transport.link import NodeLink

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
    fetched = NodeLink._fetch_item
    ended = asyncio.Event()
    numbers = iter(range(10))

    async def lost_after_the_first(self: NodeLink, order: Any, item: Any) -> Any:
        received = await fetched(self, order, item)
        if next(numbers):
            await ended.wait()
            raise ConnectionResetError("the node is lost")
        return received

    monkeypatch.setattr(NodeLink, "_fetch_item", lost_after_the_first)
    async with Pool(provider=Local(as_remote=True), nodes=1, console="silent") as pool:
        events = pool.events()

        async def wait_for_the_end() -> None:
            async for event in events:
                if type(event).__name__ == "TaskFinished":
                    ended.set()

        waiting = asyncio.ensure_future(wait_for_the_end())
        await asyncio.sleep(0)
        stream = pool.stream(pieces(4))
        assert (await anext(stream))[0] == 0
        with pytest.raises(NodeLost, match="before all its values had been fetched"):
            await anext(stream)
        waiting.cancel()
