"""A pool of machines with a price says what it costs, and ends at what it may."""

from __future__ import annotations

import asyncio

import pytest

from outrider import BudgetExceeded, Pool, PoolClosed, compute

pytestmark = pytest.mark.anyio


@compute
def forever() -> None:
    import time

    time.sleep(987654)


async def test_a_pool_ends_at_its_max_cost_and_says_what_it_cost(cloud, hypervisor, aws):
    async with Pool(provider=aws(), nodes=2, console="silent") as pool:
        hourly = pool.cost.hourly
        assert hourly > 0
        assert 0 < pool.cost.spent < hourly * 200 / 3600
    assert pool.cost.hourly == 0
    limit = pool.cost.spent + hourly * 5 / 3600
    with pytest.raises(BudgetExceeded) as exceeded:
        async with asyncio.timeout(120), Pool(provider=aws(), nodes=2, max_cost=limit, console="silent") as pool:
            with pytest.raises(PoolClosed):
                await pool.run(forever())
    assert limit <= exceeded.value.spent < 10 * limit
    assert cloud.left() == []
    assert hypervisor.hosts == {}
