"""Generators in broadcasts and groups: an iterator for each rank, and one in the generator's place of a group."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from outrider import (
    Local,
    NodeLost,
    NotACall,
    Pool,
    PoolClosed,
    SerializationError,
    SpecError,
    TaskKilled,
    TaskStopped,
    Worker,
    compute,
    gather,
    instance_info,
)
from outrider.engine.serialization.client_streams import AHEAD

pytestmark = pytest.mark.anyio


@compute
def double(x: int) -> int:
    return 2 * x


@compute
def places(count: int) -> Iterator[tuple[int, int]]:
    for number in range(count):
        yield instance_info().rank, number


@compute
async def places_async(count: int) -> AsyncIterator[tuple[int, int]]:
    for number in range(count):
        await asyncio.sleep(0)
        yield instance_info().rank, number


@compute
def hangs_after_one() -> Iterator[int]:
    yield os.getpid()
    threading.Event().wait()


@compute
def marked(folder: str, count: int) -> Iterator[int]:
    """It leaves a file for each value that it has begun to make."""
    for number in range(count):
        (Path(folder) / f"{instance_info().rank}-{number}").touch()
        yield number


@compute
def fails_on(rank: int, *, count: int, gate: str = "/") -> Iterator[int]:
    """That rank fails after its values, once there is a file."""
    yield from range(count)
    if instance_info().rank == rank:
        while not Path(gate).exists():
            time.sleep(0.01)
        raise KeyError("bad luck")
    threading.Event().wait()


async def every(values: AsyncIterator[object]) -> list[object]:
    return [value async for value in values]


async def all_slots_are_free(pool: Pool) -> None:
    async with asyncio.timeout(60):
        assert len(await pool.broadcast(double(1))) == pool.snapshot().ready


async def is_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.01)


async def test_each_rank_has_an_iterator_over_its_values_in_their_order(pool: Pool) -> None:
    ranks = await (places(100) @ pool)
    assert await asyncio.gather(*map(every, ranks)) == [[(rank, n) for n in range(100)] for rank in range(4)]
    ranks = await pool.broadcast(places_async(40))
    for rank in (3, 0, 2, 1):  # in any order, one after another
        assert await every(ranks[rank]) == [(rank, n) for n in range(40)]
    for empty in await (places(0) @ pool):
        assert await every(empty) == []
    await all_slots_are_free(pool)


@compute
def trained(steps: int) -> Iterator[tuple[int, int, bytes]]:
    for step in range(steps):
        yield instance_info().rank, step, bytes(200_000)  # some do not fit a frame


@pytest.mark.parametrize(
    ("provider", "worker"),
    [(Local(), Worker(2, "thread")), (Local(as_remote=True), Worker()), (Local(shared_memory=False), Worker())],
    ids=["threads", "SSH", "socket"],
)
async def test_ranks_stream_from_threads_and_from_machines_that_share_nothing(provider: Local, worker: Worker) -> None:
    async with Pool(provider=provider, nodes=2, worker=worker, console="silent") as pool:
        ranks = await (trained(8) @ pool)
        values = await asyncio.gather(*map(every, ranks))
        assert values == [[(rank, step, bytes(200_000)) for step in range(8)] for rank in range(len(ranks))]
        first, *_ = failing = await (fails_on(1, count=3) @ pool)
        with pytest.raises(KeyError, match="bad luck"):
            await every(failing[1])
        with pytest.raises(TaskStopped):
            await every(first)
        closed, *others = await (places(1000) @ pool)
        assert await anext(closed) == (0, 0)
        await closed.aclose()
        for rank, other in enumerate(others, 1):
            assert await every(other) == [(rank, number) for number in range(1000)]
        await all_slots_are_free(pool)


async def test_a_rank_of_which_nobody_takes_waits_a_few_values_ahead(pool: Pool, tmp_path: Path) -> None:
    first, *others = await (marked(str(tmp_path), 500) @ pool)
    assert await every(first) == [*range(500)]
    begun = [len(list(tmp_path.glob(f"{rank}-*"))) for rank in range(4)]
    assert begun[0] == 500
    assert max(begun[1:]) <= AHEAD
    for other in others:
        assert await every(other) == [*range(500)]


async def test_a_ranks_error_comes_after_its_values_and_ends_the_others(pool: Pool, tmp_path: Path) -> None:
    ranks = await (fails_on(2, count=3, gate=str(tmp_path / "gate")) @ pool)
    for rank in (0, 1, 3):
        assert [await anext(ranks[rank]) for _ in range(2)] == [0, 1]
    (tmp_path / "gate").touch()
    failed, *others = await asyncio.gather(*map(with_error, [ranks[2], ranks[0], ranks[1], ranks[3]]))
    assert failed[0] == [0, 1, 2]
    assert isinstance(failed[1], KeyError)
    assert any("rank 2" in note for note in failed[1].__notes__)
    for seen, error in others:
        assert seen in ([2], [])  # it may not have been made yet
        assert isinstance(error, TaskStopped)
        assert isinstance(error.__cause__, KeyError)
    await all_slots_are_free(pool)


async def with_error(values: AsyncIterator[object]) -> tuple[list[object], Exception]:
    seen: list[object] = []
    try:
        async for value in values:
            seen.append(value)  # noqa: PERF401  what came before the error
    except Exception as error:  # noqa: BLE001
        return seen, error
    raise AssertionError("it has ended without an error")


async def test_a_rank_whose_process_dies_says_so_before_the_others_are_ended(pool: Pool) -> None:
    ranks = await (hangs_after_one() @ pool)
    pids = [await anext(values) for values in ranks]
    os.kill(pids[1], signal.SIGSEGV)
    with pytest.raises(TaskKilled) as killed:
        await anext(ranks[1])
    assert (killed.value.rank, killed.value.signal) == (1, signal.SIGSEGV)
    with pytest.raises(TaskStopped) as stopped:
        await anext(ranks[0])
    assert isinstance(stopped.value.__cause__, TaskKilled)
    await all_slots_are_free(pool)


async def test_closing_one_iterator_ends_its_rank_alone(pool: Pool) -> None:
    ranks = await (hangs_after_one() @ pool)
    left, *others = ranks
    pid = await anext(left)
    await left.aclose()
    await is_gone(pid)
    assert await pool.run(double(4), on=0) == 8  # its slot is free
    pids = [await anext(values) for values in others]
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    for values in others:
        await values.aclose()
    await all_slots_are_free(pool)


async def test_the_others_go_on_to_their_end_when_one_is_left(pool: Pool) -> None:
    left, *others = await (places(300) @ pool)
    await left.aclose()  # before its first value
    assert [await every(values) for values in others] == [[(rank, n) for n in range(300)] for rank in (1, 2, 3)]
    assert await every(left) == []


async def test_iterators_that_are_forgotten_end_their_ranks(pool: Pool) -> None:
    ranks = await (hangs_after_one() @ pool)
    pid = await anext(ranks[0])
    del ranks
    gc.collect()
    await is_gone(pid)
    await all_slots_are_free(pool)


async def test_cancelling_who_takes_values_ends_that_rank(pool: Pool) -> None:
    ranks = await (hangs_after_one() @ pool)
    pids = [await anext(values) for values in ranks]
    waiting = asyncio.create_task(every(ranks[3]))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    await is_gone(pids[3])
    assert Path(f"/proc/{pids[0]}").exists()
    for values in ranks:
        await values.aclose()
    await all_slots_are_free(pool)


async def test_cancelling_a_broadcast_that_waits_for_its_nodes_ends_it(pool: Pool) -> None:
    busy = await (hangs_after_one() @ pool)
    waiting = asyncio.create_task(pool.broadcast(places(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for values in busy:
        await values.aclose()
    await all_slots_are_free(pool)


async def test_bad_input_is_refused_before_anything_runs(pool: Pool) -> None:
    @compute
    def echo(items: Iterator[int]) -> Iterator[int]:
        yield from items

    @compute
    def of(value: object) -> Iterator[object]:
        yield value

    with pytest.raises(SpecError, match="streams an argument"):
        await pool.broadcast(echo(iter([1])))
    with pytest.raises(SerializationError):
        await (of(threading.Lock()) @ pool)
    with pytest.raises(NotACall, match="leave out stream=True"):
        gather(places(1), stream=True)  # type: ignore[call-overload]


async def test_a_lost_node_is_an_error_and_nothing_is_run_again(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, on_loss="restart", console="silent") as pool:
        ranks = await (marked(str(tmp_path), 10**6).with_(max_restarts=3) @ pool)
        seen = [[await anext(values) for _ in range(5)] for values in ranks]
        assert seen == [[0, 1, 2, 3, 4]] * 2
        (lost,) = [node for node in pool.snapshot().nodes if node.rank == 1]
        os.kill(int((lost.facts or {})["pid"]), signal.SIGKILL)
        more, error = await with_error(ranks[1])
        assert isinstance(error, NodeLost)
        assert more == [*range(5, 5 + len(more))]  # those that had come, once
        more, error = await with_error(ranks[0])
        assert isinstance(error, TaskStopped)
        assert isinstance(error.__cause__, NodeLost)
        assert more == [*range(5, 5 + len(more))]
        async with asyncio.timeout(60):
            assert await pool.broadcast(double(1)) == [2, 2]  # on the replacement too


async def test_a_pool_that_ends_ends_the_iterators() -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        ranks = await (hangs_after_one() @ pool)
        pids = [await anext(values) for values in ranks]
    for rank in ranks:
        with pytest.raises(PoolClosed):
            await anext(rank)
    for pid in pids:
        await is_gone(pid)


# --- groups -----------------------------------------------------------------------------------------------------------


async def test_a_generator_in_a_group_gives_an_iterator_in_its_place(pool: Pool) -> None:
    result, values, other = await ((double(1) & places(3) & double(2)) >> pool)
    assert (result, other) == (2, 4)
    assert await every(values) == [(0, 0), (0, 1), (0, 2)]
    values, more = await pool.gather(places(2), places_async(1))
    assert await every(more) == [(0, 0)]
    assert await every(values) == [(0, 0), (0, 1)]
    job = (places(1) & double(5)) > pool
    values, result = await job
    assert (await every(values), result) == ([(0, 0)], 10)
    await all_slots_are_free(pool)


async def test_a_generator_does_not_keep_the_slot_that_its_group_needs() -> None:
    async with Pool(provider=Local(), console="silent") as pool, asyncio.timeout(60):
        values, result = await ((places(10 * AHEAD) & double(2)) >> pool)
        assert result == 4
        assert len(await every(values)) == 10 * AHEAD


async def test_a_calls_error_ends_the_generators_of_its_group(pool: Pool, tmp_path: Path) -> None:
    @compute
    def fails_when(path: str) -> None:
        while not Path(path).exists():
            time.sleep(0.005)
        raise KeyError(path)

    @compute
    def tells(path: str) -> Iterator[int]:
        Path(path).with_suffix(".new").write_text(str(os.getpid()))
        Path(path).with_suffix(".new").rename(path)
        yield 1
        threading.Event().wait()

    path = str(tmp_path / "pid")
    with pytest.raises(KeyError):
        await ((tells(path) & fails_when(path)) >> pool)
    await is_gone(int(Path(path).read_text()))
    await all_slots_are_free(pool)


async def test_a_generators_error_in_a_group_is_its_iterators(pool: Pool) -> None:
    values, result = await ((fails_on(0, count=2) & double(1)) >> pool)
    assert result == 2
    seen, error = await with_error(values)
    assert seen == [0, 1]
    assert isinstance(error, KeyError)


async def test_the_iterator_of_a_group_that_is_closed_or_forgotten_ends_its_generator(pool: Pool) -> None:
    closed, _ = await ((hangs_after_one() & double(1)) >> pool)
    await closed.aclose()  # before its first value
    forgotten, _ = await ((hangs_after_one() & double(1)) >> pool)
    pid = await anext(forgotten)
    del forgotten
    gc.collect()
    await is_gone(pid)
    await all_slots_are_free(pool)
