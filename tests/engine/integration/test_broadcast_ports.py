"""Free ports of real nodes: broadcasts that are cancelled at each moment, and connections that break between them."""

from __future__ import annotations

import asyncio

import pytest

from outrider import Local, Pool, compute
from outrider.actors.interfaces import NodeId
from outrider.engine.node.freeports import KEPT

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0
AT_ONCE = 8


@compute
def square(number: int) -> int:
    return number * number


async def cancelled_after(pool: Pool, turns: int) -> None:
    """Cancel several broadcasts when the event loop has turned so many times: their ranks' orders share one write."""
    broadcasts = [asyncio.ensure_future(pool.broadcast(square(2))) for _ in range(6)]
    for _ in range(turns):
        await asyncio.sleep(0)
    for each in broadcasts:
        each.cancel()
    await asyncio.gather(*broadcasts, return_exceptions=True)


async def test_ports_of_broadcasts_that_are_cancelled_at_each_moment_come_back() -> None:
    async with Pool(provider=Local(), nodes=2, worker=6, console="silent") as pool:
        for turns in [*range(12)] * 4:
            await cancelled_after(pool, turns)
        async with asyncio.timeout(PATIENCE_S):
            assert [*await pool.broadcast(square(3))] == [9] * 2
        assert pool.snapshot().waits == ()


async def test_ports_survive_connections_that_break(pool: Pool) -> None:
    """Each reconnect is one at which the node could open ports of which its client never hears."""
    core = pool._opened()
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(KEPT // AT_ONCE + 1):
            tasks = [asyncio.ensure_future(pool.broadcast(square(number))) for number in range(AT_ONCE)]
            await asyncio.sleep(0)
            for node in range(4):
                core.connector.cut(NodeId(node), "cut by a test")
            assert [[*each] for each in await asyncio.gather(*tasks)] == [[n * n] * 4 for n in range(AT_ONCE)]
