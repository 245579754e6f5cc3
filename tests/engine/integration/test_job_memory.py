"""Jobs that their caller holds: each has its value, and no longer the pickle that it came in."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outrider import Local, Pool, compute, gather

pytestmark = pytest.mark.anyio
COUNT, SIZE_BYTES = 24, 1 << 20
DATA_BYTES = COUNT * SIZE_BYTES


@compute
def text(number: int) -> str:
    return f"{number:04}" * (SIZE_BYTES // 4)


@pytest.fixture
def traced() -> Iterator[Callable[[], int]]:
    """A function that returns how many bytes Python objects have taken since the test began."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    yield lambda: tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()


async def _await_each(pool: Pool) -> Any:
    jobs = [pool.submit(text(number)) for number in range(COUNT)]
    for job in jobs:
        await job
    return jobs


async def _await_together(pool: Pool) -> Any:
    jobs = [pool.submit(text(number)) for number in range(COUNT)]
    await asyncio.gather(*jobs)
    assert [job.result() for job in jobs] == await asyncio.gather(*jobs)
    return jobs


async def _gather(pool: Pool) -> Any:
    return await pool.gather(*map(text, range(COUNT)))


async def _gather_as_ready(pool: Pool) -> Any:
    return [value async for value in gather(*map(text, range(COUNT)), stream=True) >> pool]


async def _as_completed(pool: Pool) -> Any:
    return [value async for value in pool.as_completed(map(text, range(COUNT)))]


@pytest.mark.parametrize("form", [_await_each, _await_together, _gather, _gather_as_ready, _as_completed])
async def test_held_results_take_their_memory_once(
    pool: Pool, traced: Callable[[], int], form: Callable[[Pool], Any]
) -> None:
    held = await form(pool)
    assert len(held) == COUNT
    assert DATA_BYTES <= traced() < 1.5 * DATA_BYTES


def test_held_results_of_a_synchronous_pool_take_their_memory_once(traced: Callable[[], int]) -> None:
    with Pool(provider=Local(), nodes=1, console="silent", run=False) as pool:
        jobs = [pool.submit(text(number)) for number in range(COUNT)]
        assert [job.result()[:4] for job in jobs] == [f"{number:04}" for number in range(COUNT)]
        assert DATA_BYTES <= traced() < 1.5 * DATA_BYTES
