"""A start that is given up on its way, or fails, is undone to its end: nothing cuts the end of its machines short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Never

import anyio
import pytest

from outrider import Pool, SpecError
from outrider.engine.client.budget import BudgetWatch
from outrider.providers.base import EntryPoints, LaunchRequest, MachineEvent, MachineGone, MachineId
from outrider.providers.errors import BadRequest

pytestmark = pytest.mark.anyio

SOON_S = 0.1  # in which what should not end would have ended


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Slow:
    """A provider that takes its time to open and to end what it has; `may_open` and `may_end` let it."""

    name = "slow"
    local = True

    def __init__(self) -> None:
        self.opening, self.ending = asyncio.Event(), asyncio.Event()
        self.may_open, self.may_end = asyncio.Event(), asyncio.Event()
        self.opened = self.ended = False

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Refusing]:
        self.opening.set()
        with anyio.CancelScope(shield=True):
            await self.may_open.wait()
        self.opened = True
        try:
            yield Refusing()
        finally:
            self.ending.set()
            with anyio.CancelScope(shield=True):
                await self.may_end.wait()
            self.ended = True


class Refusing:
    async def launch(self, request: LaunchRequest, count: int) -> Never:
        raise BadRequest("there is no such machine")

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        raise AssertionError("there are none")

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        raise AssertionError("there are none")

    async def events(self) -> AsyncIterator[MachineEvent]:
        await asyncio.Event().wait()
        yield MachineGone(MachineId("none"), "there never was one")


async def test_a_start_that_has_failed_is_undone_though_it_is_cancelled_meanwhile() -> None:
    slow = Slow()
    slow.may_open.set()
    entering = asyncio.ensure_future(Pool(provider=slow, console="silent").__aenter__())  # type: ignore[arg-type]
    await slow.ending.wait()
    for _ in range(2):
        entering.cancel()
        assert not (await asyncio.wait([entering], timeout=SOON_S))[0]
    slow.may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert slow.ended


async def test_what_is_being_opened_when_the_start_is_cancelled_is_undone() -> None:
    slow = Slow()
    slow.may_end.set()
    entering = asyncio.ensure_future(Pool(provider=slow, console="silent").__aenter__())  # type: ignore[arg-type]
    await slow.opening.wait()
    entering.cancel()
    assert not (await asyncio.wait([entering], timeout=SOON_S))[0]
    slow.may_open.set()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert slow.ended is slow.opened


async def test_a_limit_that_is_reached_while_a_failed_start_is_undone_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached = asyncio.Event()

    async def watch(meter: BudgetWatch) -> Never:
        await reached.wait()
        raise meter._error("max_lifetime")

    monkeypatch.setattr(BudgetWatch, "_watch", watch)
    slow = Slow()
    slow.may_open.set()
    pool = Pool(provider=slow, max_lifetime=60, console="silent")  # type: ignore[arg-type]
    entering = asyncio.ensure_future(pool.__aenter__())
    await slow.ending.wait()
    reached.set()
    assert not (await asyncio.wait([entering], timeout=SOON_S))[0]
    slow.may_end.set()
    with pytest.raises(SpecError, match="no such machine"):
        await entering
    assert slow.ended
