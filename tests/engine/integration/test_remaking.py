"""Kept results that are lost with their node are made again when they are needed, once for all who wait."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

from outrider import Local, NodeLost, Pool, PoolClosed, Ref, compute, events, instance_info

pytestmark = pytest.mark.anyio
BYTES = 1 << 20


@compute(keep=True)
def made(value: int, log: str, *, count: int = BYTES) -> bytearray:
    noted(log, f"made {value}")
    return bytearray([value]) * count


@compute(keep=True)
def increased(data: Any, log: str) -> bytearray:
    noted(log, f"increased {data[0]}")
    return bytearray([data[0] + 1]) * len(data)


@compute(keep=True)
def doubled(array: Any, log: str) -> Any:
    noted(log, "doubled")
    return array * 2


@compute(keep=True)
def grown(log: str) -> bytearray:
    noted(log, "grown")
    return bytearray([5]) * (BYTES * len(lines(log)))


@compute(keep=True)
def shrunk(log: str) -> bytearray:
    noted(log, "shrunk")
    return bytearray([5]) * (BYTES if len(lines(log)) == 1 else 10)


@compute(keep=True)
def made_once(log: str) -> bytearray:
    noted(log, "once")
    if len(lines(log)) > 1:
        raise ValueError("bad luck")
    return bytearray(BYTES)


@compute(keep=True)
def made_slowly(log: str, gate: str) -> bytearray:
    noted(log, "begun")
    while not Path(gate).exists():
        time.sleep(0.005)
    noted(log, "ended")
    return bytearray([3]) * BYTES


@compute
def first(*data: Any) -> int:
    return sum(int(each[0]) for each in data)


@compute
def thrice(data: Any) -> Iterator[int]:
    yield from [int(data[0])] * 3


@compute
def length(data: Any) -> int:
    return len(data)


@compute
def pid(*_data: Any) -> int:
    return os.getppid()


@compute
def node(*_data: Any) -> int:
    return instance_info().node


def noted(log: str, line: str) -> None:
    with Path(log).open("a") as file:
        file.write(f"{line}\n")


def lines(log: str) -> list[str]:
    return Path(log).read_text().splitlines()


@pytest.fixture
def log(tmp_path: Path) -> str:
    (tmp_path / "log").touch()
    return str(tmp_path / "log")


@pytest.fixture(params=[False, True], ids=["local", "remote"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(as_remote=request.param), nodes=2, console="silent") as pool:
        yield pool


async def lose(pool: Pool, *refs: Ref[Any]) -> None:
    """Kill the nodes that keep these, and wait until the pool knows."""
    for each in {await pool.run(pid(ref)) for ref in refs}:
        os.kill(each, signal.SIGKILL)
    with anyio.fail_after(60):
        while not all(ref._stored.at.lost for ref in refs):
            await anyio.sleep(0.01)


async def test_a_lost_result_is_made_again_where_it_is_needed(pool: Pool, log: str) -> None:
    told = pool.events()
    ref = await pool.run(made(7, log))
    await lose(pool, ref)
    assert lines(log) == ["made 7"]  # not before somebody needs it
    assert await pool.run(first(ref)) == 7
    assert (await ref.get())[:2] == b"\x07\x07"
    assert lines(log) == ["made 7"] * 2
    async for event in told:
        if isinstance(event, events.RemakeStarted):
            assert (event.function, event.number, event.times) == ("made", 1, 3)
            break


async def test_get_has_it_made_again(pool: Pool, log: str) -> None:
    ref = await pool.run(made(7, log))
    await lose(pool, ref)
    assert (await ref.get())[0] == 7
    assert await pool.broadcast(first(ref)) == [7, 7]
    assert lines(log) == ["made 7"] * 2


async def test_a_broadcast_has_it_made_again_before_it_begins(pool: Pool, log: str) -> None:
    ref = await pool.run(made(7, log))
    await lose(pool, ref)
    assert await pool.broadcast(first(ref)) == [7, 7]
    assert await pool.map(first, [ref, ref, ref]) == [7] * 3
    assert lines(log) == ["made 7"] * 2


async def test_a_chain_that_is_lost_is_made_again_from_its_beginning(pool: Pool, log: str) -> None:
    one = await pool.run(made(1, log))
    two = await pool.run(increased(one.typed, log))
    three = await pool.run(increased(two.typed, log))
    await lose(pool, one, two, three)
    assert await pool.run(first(three)) == 3
    assert lines(log) == ["made 1", "increased 1", "increased 2"] * 2


async def test_what_was_freed_is_made_again_for_what_needs_it(pool: Pool, log: str) -> None:
    one = await pool.run(made(1, log))
    two = await pool.run(increased(one.typed, log))
    other = await pool.run(increased(one.typed, log))
    del one
    gc.collect()
    await lose(pool, two, other)
    assert await pool.run(first(two, other)) == 4
    assert lines(log).count("made 1") == 2
    assert lines(log).count("increased 1") == 4


async def test_several_who_need_it_at_once_have_it_made_once(pool: Pool, log: str) -> None:
    ref = await pool.run(made(7, log))
    await lose(pool, ref)
    got = await asyncio.gather(ref.get(), *(pool.run(first(ref)) for _ in range(5)))
    assert got[1:] == [7] * 5
    assert lines(log) == ["made 7"] * 2


async def test_arguments_are_as_they_were_when_the_call_ended(pool: Pool, log: str) -> None:
    array, small = np.full(BYTES, 3, np.uint8), np.full(100, 4, np.uint8)
    large = await pool.run(doubled([array, small][0], log))
    array[:] = 9
    await lose(pool, large)
    assert await pool.run(first(large)) == 6
    assert int((await large.get())[-1]) == 6


async def test_one_that_has_another_size_this_time_is_given_to_calls_that_were_made_before(
    pool: Pool, log: str
) -> None:
    ref = await pool.run(grown(log))
    await lose(pool, ref)
    assert await pool.run(length(ref)) == 2 * BYTES
    assert len(await ref.get()) == 2 * BYTES


async def test_one_that_is_small_this_time(pool: Pool, log: str) -> None:
    ref = await pool.run(shrunk(log))
    await lose(pool, ref)
    assert await pool.run(length(ref)) == 10
    assert len(await ref.get()) == 10


async def test_one_that_fails_says_what_was_lost_and_why_it_is_not_there_again(pool: Pool, log: str) -> None:
    ref = await pool.run(made_once(log))
    last = await pool.run(increased(ref.typed, log))
    await lose(pool, ref, last)
    story = r"hat made_once on node \d has returned.*lost with that node, and could not be made again: bad luck"
    with pytest.raises(NodeLost, match=f"^W{story}") as caught:
        await ref.get()
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(NodeLost, match=f"^first was not run: w{story}") as caught:
        await pool.run(first(ref))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(NodeLost, match=f"What increased on .* made again: increased was not run: w{story}"):
        await last.get()


async def test_what_may_not_run_again_is_lost(pool: Pool, log: str) -> None:
    never = await pool.run(made(1, log).with_(retry="never"))
    none = await pool.run(made(1, log).with_(retries=0))
    ranks = await pool.broadcast(made(1, log))
    await lose(pool, never, none, ranks[0])
    with pytest.raises(NodeLost, match=r"not made again, as its function may not run twice.*Run that again"):
        await never.get()
    with pytest.raises(NodeLost, match=r"first was not run: .*as its function may not .* \(retries=0\)"):
        await pool.run(first(none))
    with pytest.raises(NodeLost, match="a broadcast's rank, which cannot run alone"):
        await ranks[0].get()


async def test_it_is_made_again_as_often_as_it_may(log: str) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        ref = await pool.run(made(1, log).with_(retries=1))
        await lose(pool, ref)
        assert await pool.run(first(ref)) == 1
        await lose(pool, ref)
        with pytest.raises(NodeLost, match="as often as its retries= allow: 1"):
            await ref.get()


async def test_what_is_not_remembered_any_more_is_named(log: str) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        core: Any = pool._core
        core.remaking.lineage._most = 1
        one = await pool.run(made(1, log))
        two = await pool.run(increased(one.typed, log))
        await lose(pool, one, two)
        with pytest.raises(NodeLost, match=r"What made on node 0 .* not made again, as its call is not remembered"):
            await one.get()
        del one
        gc.collect()
        story = "increased was not run: what made on node 0 .* not made again, as its call is not remembered"
        with pytest.raises(NodeLost, match=f"What increased on node 0 .* could not be made again: {story}"):
            await two.get()


async def test_a_generator_that_is_given_it_has_it_made_again(pool: Pool, log: str) -> None:
    ref = await pool.run(made(7, log))
    await lose(pool, ref)
    assert [each async for each in pool.stream(thrice(ref))] == [7] * 3


async def test_a_value_that_was_put_has_to_be_there(log: str) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        put = await pool.put(bytearray([1]) * BYTES)
        ref = await pool.run(increased(put.typed, log))
        await lose(pool, ref)
        assert await pool.run(first(ref)) == 2
        del put
        gc.collect()
        await lose(pool, ref)
        with pytest.raises(NodeLost, match="a value that was put, which its call was given, is not there any more"):
            await ref.get()


async def test_a_waiting_task_leaves_the_only_slot_to_what_is_made_for_it(log: str) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        one = await pool.run(made(1, log))
        two = await pool.run(increased(one.typed, log))
        jobs = [pool.submit(first(two).with_(retries=0)) for _ in range(3)]
        await lose(pool, one, two)
        with anyio.fail_after(60):
            assert await pool.run(first(two).with_(retries=0)) == 2
        for job in jobs:
            assert await job == 2


async def test_a_task_whose_object_is_lost_on_its_way_is_submitted_again_and_uses_no_retry(log: str) -> None:
    async with Pool(provider=Local(as_remote=True), nodes=2, console="silent") as pool:
        told = pool.events()
        ref = await pool.run(made(7, log))
        kept_on = await pool.run(node(ref))
        (other,) = [rank for rank in (0, 1) if await pool.run(node(), on=rank) != kept_on]
        (home,) = [node for node in pool.snapshot().nodes if node.rank == kept_on]
        job: Any = pool.submit(first(ref).with_(retry="never"), on=other)
        os.kill(int((home.facts or {})["pid"]), signal.SIGKILL)  # its executor, which would send it
        assert await job == 7
        verdicts = []
        while len(verdicts) < 2:
            event = await anext(told)
            if isinstance(event, events.TaskFinished) and event.job == job.id:
                verdicts.append(event.verdict)
        assert verdicts == ["unsent", "returned"]
        assert lines(log) == ["made 7"] * 2


async def test_who_waits_is_cancelled_alone_and_the_last_ends_the_run(log: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        ref = await pool.run(made_slowly(log, str(gate)))
        gate.unlink()
        await lose(pool, ref)
        job, got = pool.submit(first(ref)), asyncio.ensure_future(ref.get())
        await until(log, 3)
        got.cancel()
        with pytest.raises(asyncio.CancelledError):
            await got
        assert job.cancel()
        with anyio.fail_after(60):
            while pool.snapshot().submitted > pool.snapshot().finished:
                await anyio.sleep(0.01)
        later = pool.submit(first(ref))
        await until(log, 4)
        gate.touch()
        assert await later == 3
        assert lines(log) == ["begun", "ended", "begun", "begun", "ended"]


async def test_the_pools_end_ends_it(log: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        ref = await pool.run(made_slowly(log, str(gate)))
        gate.unlink()
        await lose(pool, ref)
        job, got = pool.submit(first(ref)), asyncio.ensure_future(ref.get())
        await until(log, 3)
    with pytest.raises(PoolClosed):
        await job
    with pytest.raises(PoolClosed):
        await got


async def until(log: str, count: int) -> None:
    with anyio.fail_after(60):
        while len(lines(log)) < count:
            await anyio.sleep(0.01)


def until_true(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_pool_for_threads_makes_it_again(log: str) -> None:
    with Pool(provider=Local(), nodes=2, console="silent") as pool:
        ref = made(7, log) >> pool
        os.kill(pid(ref) >> pool, signal.SIGKILL)
        until_true(lambda: ref._stored.at.lost)  # before, what the node had begun may still find it there
        assert first(ref.typed) >> pool == 7
        assert ref.get()[0] == 7
        assert lines(log) == ["made 7"] * 2


async def test_the_client_forgets_with_the_last_reference(pool: Pool, log: str) -> None:
    one = await pool.run(made(1, log))
    array = np.full(BYTES, 1, np.uint8)
    two = await pool.run(doubled(array, log))
    three = await pool.run(increased(one.typed, log))
    core: Any = pool._core
    lineage = core.remaking.lineage
    assert len(lineage) == 3
    assert lineage.size_bytes >= BYTES
    del one
    assert len(lineage) == 3
    del two, three
    with anyio.fail_after(60):
        while len(lineage):
            gc.collect()
            await anyio.sleep(0.01)
    assert lineage.size_bytes == 0
