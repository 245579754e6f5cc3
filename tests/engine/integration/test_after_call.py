"""AFTER-1 on a real pool: a rank whose destructors hang has answered, and its worker is replaced."""

from __future__ import annotations

import asyncio
import os
import sys
import time

import pytest

from outrider import Local, Pool, compute, events
from outrider.engine.node import after_call

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(sys.gettrace() is not None, reason="with a tracer locals end with their function"),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Hangs:
    def __del__(self) -> None:
        time.sleep(600)


@compute
def leaves() -> int:
    after_call.FREE_S = 0.2
    hangs = Hangs()
    assert hangs
    return os.getpid()


@compute
def number() -> int:
    return os.getpid()


async def test_broadcast_ends_though_destructors_of_its_ranks_hang() -> None:
    async with asyncio.timeout(60), Pool(provider=Local(), nodes=2, console="silent") as pool:
        seen = pool.events()
        first = await pool.broadcast(leaves())
        second = await pool.broadcast(number())
        assert not {*first} & {*second}
        told = 0
        async for event in seen:
            told += isinstance(event, events.TaskOutput) and "did not free its local variables" in event.text
            if told == 2:
                break
