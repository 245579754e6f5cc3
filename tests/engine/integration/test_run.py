"""What a user writes, on four real local nodes, in async form."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider import (
    DeadlineExceeded,
    InstanceInfo,
    Local,
    Pool,
    SpecError,
    Worker,
    compute,
    gather,
    instance_info,
    shard,
)

pytestmark = pytest.mark.anyio


@compute
def double(x: int) -> int:
    return 2 * x


@compute
async def triple(x: int) -> int:
    return 3 * x


@compute
def hang() -> None:
    threading.Event().wait()


@compute(deadline=0.2)
def late_item(_: int) -> None:
    hang.local()


@compute
def where() -> InstanceInfo:
    return instance_info()


async def test_a_call_runs_on_a_node(pool: Pool) -> None:
    assert await pool.run(double(21)) == 42
    assert await (double(4) >> pool) == 8
    assert await pool.run(triple(5)) == 15


async def test_a_broadcast_gives_results_by_rank(pool: Pool) -> None:
    infos = await pool.broadcast(where())
    assert [info.rank for info in infos] == [0, 1, 2, 3]
    assert {info.world_size for info in infos} == {4}
    assert {(info.head_addr, info.head_port) for info in infos} == {(infos[0].head_addr, infos[0].head_port)}
    assert [info.is_head for info in infos] == [True, False, False, False]
    assert await (double(1) @ pool) == [2, 2, 2, 2]


async def test_async_tasks_wait_beside_each_other_in_the_threads_of_one_process(tmp_path: Path) -> None:
    @compute
    async def meet(own: str, other: str) -> int:
        (tmp_path / own).touch()
        while not (tmp_path / other).exists():
            await asyncio.sleep(0.01)
        return os.getpid()

    async with Pool(provider=Local(), worker=Worker(2, kind="thread"), console="silent") as pool:
        assert len(set(await pool.gather(meet("a", "b"), meet("b", "a")))) == 1


async def test_calls_run_together(pool: Pool) -> None:
    assert await pool.gather(double(1), triple(2)) == (2, 6)
    assert await ((double(1) & triple(2) & double(3)) >> pool) == (2, 6, 6)
    assert await (gather(double(1), double(2)) >> pool) == (2, 4)
    assert sorted([each async for each in gather(double(1), double(2), stream=True) >> pool]) == [2, 4]


async def test_a_submitted_job_is_awaited_later(pool: Pool) -> None:
    job = pool.submit(double(5))
    other = double(6) > pool
    assert await other == 12
    assert await job == 10
    assert job.done()
    assert job.result() == 10
    assert not job.cancel()


async def test_a_job_whose_awaiter_was_cancelled_says_so(pool: Pool) -> None:
    job = pool.submit(hang())
    assert not job.cancelled()

    async def wait() -> None:
        await job

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert (job.done(), job.cancelled()) == (True, True)
    with pytest.raises(asyncio.CancelledError):
        job.exception()


async def test_deadline_ends_a_call_and_frees_its_slot(pool: Pool) -> None:
    late = hang.with_(deadline=0.2, queue_timeout=60)
    for call in (pool.run(late()), pool.broadcast(late()), pool.map(late_item, [1])):
        with pytest.raises(DeadlineExceeded) as raised:
            await call
        assert isinstance(raised.value, TimeoutError)
        assert raised.value.deadline_s == 0.2
        assert raised.value.where
    assert [*await pool.broadcast(double(2))] == [4] * 4


async def test_deadline_does_not_end_what_is_done_before(pool: Pool) -> None:
    job = pool.submit(double.with_(deadline=600)(2))
    assert await job == 4
    assert job._deadline is not None  # type: ignore[attr-defined]
    assert job._deadline.cancelled()  # type: ignore[attr-defined]


async def test_a_group_that_is_submitted_is_one_job(pool: Pool) -> None:
    job = (double(1) & double(2)) > pool
    assert not job.done()
    assert await job == (2, 4)
    assert (job.done(), job.result(), job.cancel()) == (True, (2, 4), False)
    cancelled = (double(1) & double(2)) > pool
    assert cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled


async def test_a_task_alone_is_a_world_of_one(pool: Pool) -> None:
    info = await pool.run(where())
    assert (info.rank, info.world_size, info.is_head, info.total_nodes) == (0, 1, True, 4)
    assert info.head_port > 0
    assert len(info.peers) == 4 or len(info.peers) == 1


@pytest.mark.parametrize("rank", range(4))
async def test_a_call_runs_where_it_is_told(pool: Pool, rank: int) -> None:
    assert (await pool.run(where(), on=rank)).node == rank
    assert (await pool.run(where(), on="head")).node == 0


async def test_the_environment_says_what_instance_info_says(pool: Pool) -> None:
    @compute
    def both() -> tuple[dict[str, object], InstanceInfo]:
        return json.loads(os.environ["COMPUTE_POOL"]), instance_info()

    said, info = await pool.run(both())
    for name in (
        "pool",
        "job",
        "node",
        "total_nodes",
        "rank",
        "world_size",
        "head_addr",
        "head_port",
        "hostname",
        "attempt",
    ):
        assert said[name] == getattr(info, name), name


async def test_shards_cover_each_item_once(pool: Pool) -> None:
    @compute
    def mine(n: int) -> list[int]:
        return list(shard(list(range(n)), shuffle=True, seed=3))

    shards = await pool.broadcast(mine(103))
    assert sorted(item for each in shards for item in each) == list(range(103))


async def test_tasks_run_in_the_nodes_own_directory(pool: Pool) -> None:
    @compute
    def here() -> str:
        return str(Path.cwd())

    places = await pool.broadcast(here())
    assert len(set(places)) == 4


async def test_large_arguments_and_results_arrive_whole(pool: Pool) -> None:
    numpy = pytest.importorskip("numpy")

    @compute
    def scaled(array: object, factor: float) -> object:
        return array * factor  # type: ignore[operator]

    array = numpy.arange(3_000_000, dtype=float)
    result = await pool.run(scaled(array, 2.0))
    assert (result == array * 2).all()
    result[0] = 5.0  # what arrives is the caller's own
    for part in await pool.broadcast(scaled(array, 3.0)):
        assert (part == array * 3).all()
    big = await pool.run(double("x" * 5_000_000))  # type: ignore[arg-type]
    assert len(big) == 10_000_000  # type: ignore[arg-type]


@dataclass(frozen=True)
class Point:
    """Of a module that nodes cannot import."""

    x: int


async def test_types_of_a_module_that_nodes_cannot_import_travel_too(pool: Pool) -> None:
    @compute
    def moved(point: Point) -> Point:
        return Point(point.x + 1)

    assert await pool.run(moved(Point(1))) == Point(2)


async def test_many_tasks_at_once(pool: Pool) -> None:
    jobs = [pool.submit(double(n)) for n in range(2000)]
    assert [await job for job in jobs] == [2 * n for n in range(2000)]


async def test_a_map_keeps_order_or_not(pool: Pool) -> None:
    assert [each async for each in pool.map(double, range(500))] == [2 * n for n in range(500)]
    assert await pool.map(double, range(500), limit=8) == [2 * n for n in range(500)]
    assert sorted(await pool.map(double, range(500), ordered=False)) == [2 * n for n in range(500)]
    assert await pool.map(triple, range(50)) == [3 * n for n in range(50)]
    assert await pool.map(double, []) == []


async def test_a_map_takes_no_more_than_its_limit(pool: Pool) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in range(200):
            taken += 1
            yield n

    seen = 0
    async for _ in pool.map(double, items(), limit=16):
        seen += 1
        assert taken - seen <= 16


async def test_a_map_takes_async_items_and_plain_functions(pool: Pool) -> None:
    async def items() -> AsyncIterator[int]:
        for n in range(20):
            yield n

    assert await pool.map(lambda n: n + 1, items()) == list(range(1, 21))


async def test_a_map_raises_an_items_error_in_its_place(pool: Pool) -> None:
    def picky(n: int) -> int:
        if n == 37:
            raise ValueError("not 37")
        return n

    seen: list[int] = []
    with pytest.raises(ValueError, match="not 37"):
        async for each in pool.map(picky, range(100)):
            seen.append(each)  # noqa: PERF401  what came before the error is kept
    assert seen == list(range(37))


@compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


@compute
async def count_slowly(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


async def test_a_generators_values_come_as_they_are_made(pool: Pool) -> None:
    assert [each async for each in pool.stream(count(200))] == list(range(200))
    assert [each async for each in count_slowly(50) >> pool] == list(range(50))


async def test_a_generator_runs_on_the_node_of_ones_choice(pool: Pool) -> None:
    @compute
    def places(count: int) -> Iterator[int]:
        yield from [instance_info().node] * count

    streams = [pool.stream(places(40), on=rank) for rank in range(4)]
    for node, stream in enumerate(streams):
        assert [each async for each in stream] == [node] * 40
    assert [each async for each in pool.stream(places(1), on="head")] == [0]
    with pytest.raises(SpecError, match="on=9"):
        await anext(pool.stream(places(1), on=9))


async def test_leaving_a_stream_early_ends_it(pool: Pool) -> None:
    stream = pool.stream(count(10**9))
    async for each in stream:
        if each == 100:
            break
    await stream.aclose()
    assert await pool.broadcast(double(1)) == [2] * 4  # every slot is free again


async def test_a_streams_error_comes_after_its_values(pool: Pool) -> None:
    @compute
    def breaks() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("three")

    seen: list[int] = []
    with pytest.raises(KeyError, match="three"):
        async for each in pool.stream(breaks()):
            seen.append(each)  # noqa: PERF401
    assert seen == [1, 2]


async def test_an_iterator_argument_is_streamed_to_the_node(pool: Pool) -> None:
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for n in range(1000):
            taken += 1
            yield n

    @compute
    def total(items: Iterator[int]) -> int:
        return sum(items)

    @compute
    def first(items: Iterator[int]) -> int:
        return next(items)

    @compute
    async def total_async(items: AsyncIterator[int]) -> int:
        return sum([each async for each in items])

    assert await pool.run(total(numbers())) == sum(range(1000))
    taken = 0
    assert await pool.run(first(numbers())) == 0
    assert taken < 100  # back-pressure: it was not read to its end
    assert await pool.run(total_async(numbers())) == sum(range(1000))  # type: ignore[arg-type]


async def test_streams_both_ways_keep_pace(pool: Pool) -> None:
    numpy = pytest.importorskip("numpy")

    @compute
    def echo(items: Iterator[object]) -> Iterator[object]:
        yield from items

    arrays = [numpy.full(100_000, float(n)) for n in range(40)]  # 800 kB each: they travel as blobs
    seen = [each async for each in pool.stream(echo(iter(arrays)))]
    assert all((a == b).all() for a, b in zip(arrays, seen, strict=True))


async def test_functions_that_nobody_has_any_more_are_forgotten(pool: Pool) -> None:
    much = b"x" * 1_000_000
    assert pool._core is not None
    gc.collect()
    before = len(pool._core._packer.definitions)
    for n in range(10):
        assert await pool.map(lambda x, n=n: len(much) + x + n, [1, 2]) == [n + 1_000_001, n + 1_000_002]
    definitions = pool._core._packer.definitions
    await until(lambda: len(definitions) <= before + 1)


async def until(condition: Callable[[], bool]) -> None:
    """Copies of a map's items, which run where others took long, may have to be ended first."""
    async with asyncio.timeout(60):
        while not condition():
            gc.collect()
            await asyncio.sleep(0.01)


async def test_so_is_what_they_closed_over_and_it_is_sent_anew_when_it_comes_again(pool: Pool) -> None:
    def plus(much: bytes) -> Callable[[int], int]:
        return lambda n: len(much) + n

    core = pool._core
    assert core is not None
    connections, much = list(core.connector._connections.values()), os.urandom(200_000)
    for _ in range(2):
        assert await pool.map(plus(much), range(8)) == list(range(200_000, 200_008))
        await until(lambda: not any(connection.link._codes for connection in connections))


async def test_a_function_that_closes_over_much_travels_once(pool: Pool) -> None:
    much = b"x" * 3_000_000

    @compute
    def length(factor: int) -> int:
        return factor * len(much)

    assert await pool.gather(length(1), length(2)) == (3_000_000, 6_000_000)
    assert await pool.broadcast(length(1)) == [3_000_000] * 4
