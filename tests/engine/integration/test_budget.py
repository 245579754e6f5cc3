"""A pool that reaches its limit is ended, with everything, and says why; what it cost can be read all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from outrider import BudgetExceeded, Local, Pool, PoolClosed, compute
from outrider.actors.events import BudgetMostlySpent
from outrider.providers.base import EntryPoints, LaunchRequest, Machine

pytestmark = pytest.mark.anyio


class Priced:
    """Local machines that cost so much."""

    name = "priced"
    local = True

    def __init__(self, hourly_cost: float) -> None:
        self.hourly_cost = hourly_cost

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[Any]:
        async with Local().open(pool, entry_points) as fleet:
            yield PricedFleet(fleet, self.hourly_cost)


class PricedFleet:
    def __init__(self, fleet: Any, hourly_cost: float) -> None:
        self._fleet, self._hourly_cost = fleet, hourly_cost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        return [replace(machine, hourly_cost=self._hourly_cost) for machine in await self._fleet.launch(request, count)]


@compute
def forever() -> None:
    import time

    time.sleep(600)


async def test_a_pool_that_costs_too_much_is_ended() -> None:
    """1 USD a second, from the launch on. On a busy computer a pool may be open, or be warned, only after 3 s."""
    for most in (3.0, 12.0, 48.0):
        pool = Pool(provider=Priced(3600.0), max_cost=most, console="silent")
        told: list[BudgetMostlySpent] = []
        watching: list[asyncio.Future[None]] = []
        began = time.monotonic()
        with pytest.raises(BudgetExceeded, match=rf"may cost {most:.2f} \(max_cost\)") as exceeded:
            async with asyncio.timeout(120), pool:
                watching.append(asyncio.ensure_future(warnings(pool, told)))
                with pytest.raises(PoolClosed):
                    await pool.run(forever())
        await asyncio.gather(*watching)
        error = exceeded.value
        assert (error.what, error.limit) == ("max_cost", most)
        assert most <= error.spent <= time.monotonic() - began
        if told:
            break
    (mostly,) = told
    assert 0.8 * most <= mostly.spent <= error.spent
    assert (mostly.limit, mostly.hourly) == (most, 3600.0)
    assert pool.cost.hourly == 0
    spent = pool.cost.spent
    await asyncio.sleep(0)
    assert pool.cost.spent == spent >= error.spent


async def warnings(pool: Pool, told: list[BudgetMostlySpent]) -> None:
    told += [event async for event in pool.events() if isinstance(event, BudgetMostlySpent)]


async def test_a_pool_that_is_open_too_long_is_ended() -> None:
    with pytest.raises(BudgetExceeded, match="its max_lifetime") as exceeded:
        async with asyncio.timeout(60), Pool(max_lifetime=1.5, console="silent") as pool:
            with pytest.raises(PoolClosed):
                await pool.run(forever())
    assert (exceeded.value.what, exceeded.value.spent) == ("max_lifetime", 0.0)


async def test_a_limit_that_is_reached_before_the_pool_is_ready_is_its_error() -> None:
    with pytest.raises(BudgetExceeded):
        async with Pool(provider=Priced(3600.0), max_cost=0.001, console="silent"):
            pytest.fail("opened")


async def test_limits_that_are_not_reached_change_nothing() -> None:
    async with Pool(provider=Priced(3600.0), max_cost=600, max_lifetime=600, console="silent") as pool:
        cost = pool.cost
        assert 0 < cost.spent < 600
        assert cost.hourly == 3600.0
    assert pool.cost.hourly == 0
    assert pool.cost.spent >= cost.spent


async def test_a_pool_may_have_a_name() -> None:
    async with Pool(name="train-1", console="silent") as pool:
        assert pool.snapshot().pool == "train-1"
        async with Pool(name="train-1", console="silent") as other:  # which is another one all the same
            assert other.snapshot().pool == "train-1"


async def test_the_cost_of_a_pool_that_was_never_open_is_no_number() -> None:
    with pytest.raises(PoolClosed):
        _ = Pool().cost
