"""Tries beside a try that hangs: the first that succeeds is taken, and nothing of the others stays."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from outrider.engine.transport import ssh

pytestmark = pytest.mark.anyio
SOON_S = 0.001


class Line:
    """Tries that each do what was planned for them."""

    def __init__(self, *plans: str) -> None:
        self.plans = list(plans)
        self.begun = 0
        self.cancelled: list[int] = []
        self.discarded: list[int] = []
        self.released = asyncio.Event()

    def begin(self) -> Coroutine[Any, Any, int]:
        self.begun += 1
        return self._try(self.begun, self.plans[min(self.begun, len(self.plans)) - 1])

    async def _try(self, number: int, plan: str) -> int:
        try:
            if plan == "hangs":
                await self.released.wait()
            if plan == "stubborn":
                try:
                    await self.released.wait()
                except asyncio.CancelledError:
                    return number
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        if plan == "fails":
            raise ConnectionRefusedError(number)
        return number

    async def has_begun(self, count: int) -> None:
        """So many tries are under way."""
        async with asyncio.timeout(60):
            while self.begun < count:
                await asyncio.sleep(SOON_S)
        for _ in range(3):  # turns of the loop
            await asyncio.sleep(0)

    async def first(self, at_once: int = 3) -> int:
        return await ssh.hedged(self.begin, self.discarded.append, every_s=SOON_S, at_once=at_once)


async def test_one_that_succeeds_at_once_is_the_only_one() -> None:
    line = Line("succeeds")
    assert await line.first() == 1
    assert line.begun == 1


async def test_one_that_hangs_is_overtaken_and_cancelled() -> None:
    line = Line("hangs", "hangs", "succeeds")
    assert await line.first() == 3
    await asyncio.sleep(0)
    assert line.cancelled == [1, 2]
    assert line.discarded == []


async def test_no_more_at_once_than_allowed_and_the_first_may_still_come() -> None:
    line = Line("hangs")
    waiting = asyncio.ensure_future(line.first(at_once=2))
    await line.has_begun(2)
    await asyncio.sleep(20 * SOON_S)
    assert line.begun == 2
    line.released.set()
    assert await waiting == 1
    await asyncio.sleep(0)
    assert line.discarded == [2], "it was there too"


async def test_a_failure_is_told_and_ends_the_others() -> None:
    line = Line("hangs", "fails")
    with pytest.raises(ConnectionRefusedError, match="2"):
        await line.first()
    await asyncio.sleep(0)
    assert line.cancelled == [1]


async def test_cancelled_it_leaves_none() -> None:
    line = Line("hangs", "stubborn")
    waiting = asyncio.ensure_future(line.first())
    await line.has_begun(2)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert sorted([*line.cancelled, *line.discarded]) == list(range(1, line.begun + 1))
    assert 2 in line.discarded
