"""A buffer is filled again while its calls wait: each call has what the buffer held when the call was made."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import Local, Pool, SyncPool, Worker, compute, gather

pytestmark = pytest.mark.anyio
STEPS = 4
SIZES = {"in a frame": 1_000, "small": 30_000, "large": 1_100_000}  # of float64
EXPECTED = [(float(step), float(step)) for step in range(STEPS)]


@pytest.fixture(
    scope="module",
    params=[
        (Local(), "process", list(SIZES.values())),
        (Local(), "thread", [SIZES["small"]]),
        (Local(as_remote=True), "process", [SIZES["large"]]),
    ],
    ids=["mapped", "thread", "SSH"],
)
async def one_slot(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Pool, list[int]]]:
    """A pool with one slot, and the sizes of arrays to try there."""
    provider, kind, sizes = request.param
    async with Pool(provider=provider, nodes=1, worker=Worker(kind=kind), console="silent") as pool:
        yield pool, sizes


@pytest.fixture(scope="module")
def sync_slot() -> Iterator[SyncPool]:
    with Pool(provider=Local(), nodes=1, console="silent") as pool:
        yield pool


@compute
def wait_for(gate: str) -> None:
    while not Path(gate).exists():
        time.sleep(0.002)


@compute
def ends(array: Any) -> tuple[float, float]:
    return float(array[0]), float(array[-1])


@compute
def ends_of_first(pair: Any) -> tuple[float, float]:
    return float(pair[0][0]), float(pair[0][-1])


@compute
def stream_ends(array: Any) -> Iterator[tuple[float, float]]:
    yield float(array[0]), float(array[-1])


@compute
def ends_of_each(arrays: Iterator[Any]) -> list[tuple[float, float]]:
    return [(float(array[0]), float(array[-1])) for array in arrays]


class Batch:
    def __init__(self, data: Any) -> None:
        self.data = data

    @compute
    def ends(self) -> tuple[float, float]:
        return float(self.data[0]), float(self.data[-1])


class Source:
    """A buffer that is filled again for each step. The pool's slot is busy until the last but one."""

    def __init__(self, size: int, gate: Path) -> None:
        self.buffer, self.gate = np.empty(size), gate

    def fill(self, step: int) -> Any:
        self.buffer[:] = step
        if step >= STEPS - 2:
            self.gate.touch()
        return self.buffer

    def __iter__(self) -> Iterator[Any]:
        return (self.fill(step) for step in range(STEPS))

    async def arrays(self) -> AsyncIterator[Any]:
        for array in self:
            yield array

    def spoil(self) -> None:
        self.buffer[:] = -1
        self.gate.touch()


# --- verbs of a pool in an event loop ---------------------------------------------------------------------------------


async def by_submit(pool: Pool, source: Source) -> list[Any]:
    return await asyncio.gather(*[pool.submit(ends(array)) for array in source])


async def by_operator(pool: Pool, source: Source) -> list[Any]:
    return await asyncio.gather(*[ends(array) > pool for array in source])


async def on_a_node(pool: Pool, source: Source) -> list[Any]:
    return await asyncio.gather(*[pool.submit(ends(array), on="head") for array in source])


async def in_an_object(pool: Pool, source: Source) -> list[Any]:
    return await asyncio.gather(*[pool.submit(Batch(array).ends()) for array in source])


async def by_view(pool: Pool, source: Source) -> list[Any]:
    return await asyncio.gather(*[pool.submit(ends(np.broadcast_to(array, array.shape))) for array in source])


async def kept(pool: Pool, source: Source) -> list[Any]:
    jobs = [pool.submit(ends(array), keep=True) for array in source]
    return [await (await job).get() for job in jobs]


async def by_group(pool: Pool, source: Source) -> list[Any]:
    groups = [pool.submit_group(ends(array) & ends(array)) for array in source]
    results = [await group for group in groups]
    assert all(first == second for first, second in results)
    return [first for first, _ in results]


async def by_stream_group(pool: Pool, source: Source) -> list[Any]:
    results, arrays = [], [np.full(source.buffer.size, step, float) for step in range(STEPS)]
    source.gate.touch()
    async for result in gather(*[ends(array) for array in arrays], stream=True) >> pool:
        for array in arrays:
            array[:] = -1
        results.append(result)
    return sorted(results)


async def by_map(pool: Pool, source: Source) -> list[Any]:
    return await pool.map(ends, iter(source))


async def by_map_of_pairs(pool: Pool, source: Source) -> list[Any]:
    return await pool.map(ends_of_first, ((array, {}) for array in source))


async def by_map_of_an_async_iterator(pool: Pool, source: Source) -> list[Any]:
    return await pool.map(ends, source.arrays())


async def by_as_completed(pool: Pool, source: Source) -> list[Any]:
    return sorted([each async for each in pool.as_completed(ends(array) for array in source)])


async def by_as_completed_of_an_async_iterator(pool: Pool, source: Source) -> list[Any]:
    return sorted([each async for each in pool.as_completed(ends(array) async for array in source.arrays())])


async def by_put(pool: Pool, source: Source) -> list[Any]:
    references = [await pool.put(array) for array in source]
    return [await pool.run(ends(each.typed)) for each in references]


async def as_an_iterator(pool: Pool, source: Source) -> list[Any]:
    source.gate.touch()
    return await pool.run(ends_of_each(iter(source)))


async def as_an_async_iterator(pool: Pool, source: Source) -> list[Any]:
    source.gate.touch()
    return await pool.run(ends_of_each(source.arrays()))


Entry = Callable[[Pool, Source], Awaitable[list[Any]]]
ENTRIES: list[Entry] = [
    *(by_submit, by_operator, on_a_node, in_an_object, by_view, kept),
    *(by_group, by_stream_group, by_map, by_map_of_pairs, by_map_of_an_async_iterator),
    *(by_as_completed, by_as_completed_of_an_async_iterator, by_put, as_an_iterator, as_an_async_iterator),
]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.__name__)
async def test_a_call_has_its_arguments_as_they_were(
    one_slot: tuple[Pool, list[int]], tmp_path: Path, entry: Entry
) -> None:
    pool, sizes = one_slot
    for size in sizes:
        source = Source(size, tmp_path / f"gate-{size}")
        blocker = pool.submit(wait_for(str(source.gate)))
        assert await entry(pool, source) == EXPECTED, f"{size} elements"
        await blocker


# --- generators: their caller goes on before they have begun ----------------------------------------------------------


async def by_group_of_streams(pool: Pool, source: Source) -> list[Any]:
    group = pool.submit_group(stream_ends(source.fill(0)) & ends(source.fill(0)))
    source.spoil()
    values, result = await group
    return [result, *[value async for value in values]]


async def by_gathered_streams(pool: Pool, source: Source) -> list[Any]:
    (values,) = await pool.gather(stream_ends(source.fill(0)))
    source.spoil()
    return [value async for value in values]


async def by_broadcast(pool: Pool, source: Source) -> list[Any]:
    source.gate.touch()
    (values,) = await pool.broadcast(stream_ends(source.fill(0)))
    source.spoil()
    return [value async for value in values]


@pytest.mark.parametrize(
    "entry", [by_group_of_streams, by_gathered_streams, by_broadcast], ids=lambda entry: entry.__name__
)
async def test_a_generator_has_its_arguments_as_they_were(
    one_slot: tuple[Pool, list[int]], tmp_path: Path, entry: Entry
) -> None:
    pool, sizes = one_slot
    for size in sizes:
        source = Source(size, tmp_path / f"gate-{size}")
        blocker = pool.submit(wait_for(str(source.gate)))
        assert set(await entry(pool, source)) == {EXPECTED[0]}, f"{size} elements"
        await blocker


# --- verbs of a pool whose verbs wait ---------------------------------------------------------------------------------


def sync_submit(pool: SyncPool, source: Source) -> list[Any]:
    return [job.result() for job in [pool.submit(ends(array)) for array in source]]


def sync_operator(pool: SyncPool, source: Source) -> list[Any]:
    return [job.result() for job in [ends(array) > pool for array in source]]


def sync_group(pool: SyncPool, source: Source) -> list[Any]:
    return [job.result()[1] for job in [(ends(array) & ends(array)) > pool for array in source]]


def sync_map(pool: SyncPool, source: Source) -> list[Any]:
    return list(pool.map(ends, iter(source)))


def sync_map_in_any_order(pool: SyncPool, source: Source) -> list[Any]:
    return sorted(pool.map(ends_of_first, ((array, {}) for array in source), ordered=False))


def sync_as_completed(pool: SyncPool, source: Source) -> list[Any]:
    return sorted(pool.as_completed(ends(array) for array in source))


def sync_put(pool: SyncPool, source: Source) -> list[Any]:
    return [pool.run(ends(each.typed)) for each in [pool.put(array) for array in source]]


def sync_iterator(pool: SyncPool, source: Source) -> list[Any]:
    source.gate.touch()
    return ends_of_each(iter(source)) >> pool


@pytest.mark.parametrize(
    "entry",
    [
        *(sync_submit, sync_operator, sync_group, sync_map, sync_map_in_any_order),
        *(sync_as_completed, sync_put, sync_iterator),
    ],
)
def test_a_call_of_a_thread_has_its_arguments_as_they_were(
    sync_slot: SyncPool, tmp_path: Path, entry: Callable[[SyncPool, Source], list[Any]]
) -> None:
    for size in SIZES.values():
        source = Source(size, tmp_path / f"gate-{size}")
        blocker = sync_slot.submit(wait_for(str(source.gate)))
        assert entry(sync_slot, source) == EXPECTED, f"{size} elements"
        blocker.result()


# --- items that share a task, and calls that run again ----------------------------------------------------------------


@compute
def total(cells: Any) -> float:
    return float(sum(cells))


def refilled(cells: Any, count: int) -> Iterator[Any]:
    for number in range(count):
        cells[0] = number
        yield cells


@pytest.mark.parametrize(
    "make", [lambda: [0], lambda: np.zeros(10), lambda: bytearray(1)], ids=["list", "array", "bytes"]
)
def test_items_of_one_object_that_share_a_task_are_as_they_were(sync_slot: SyncPool, make: Callable[[], Any]) -> None:
    assert list(sync_slot.map(total, refilled(make(), 250))) == list(range(250))


async def test_items_of_one_object_in_an_event_loop_are_as_they_were(one_slot: tuple[Pool, list[int]]) -> None:
    pool, _ = one_slot
    assert await pool.map(total, refilled(np.zeros(10), 250)) == list(range(250))


@compute
def ends_at_gate(started: str, gate: str, array: Any) -> tuple[float, float]:
    Path(started).touch()
    while not Path(gate).exists():
        time.sleep(0.002)
    return float(array[0]), float(array[-1])


async def test_a_call_that_runs_again_after_a_loss_has_the_same_arguments(tmp_path: Path) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        array = np.zeros(SIZES["large"])
        job = pool.submit(ends_at_gate(str(started), str(gate), array))
        array[:] = 1
        while not started.exists():
            await asyncio.sleep(0.01)
        os.killpg(int(pool.snapshot().nodes[0].facts["group"]), signal.SIGKILL)  # type: ignore[index]
        gate.touch()
        assert await job == (0.0, 0.0)
