"""Large objects: each node is sent one once, results stay where they were made, and what is lost says so."""

from __future__ import annotations

import gc
import os
import pickle
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from outrider import Local, NodeLost, Pool, Ref, SerializationError, SpecError, Worker, compute, events, instance_info

pytestmark = pytest.mark.anyio
BYTES = 4 << 20
FEW = 100_000  # bytes of frames


@compute
def first(data: Any, and_set: int | None = None) -> int:
    before = int(data[0])
    if and_set is not None:
        data[0] = and_set
    return before


@compute
def total(data: Any, small: Any, _name: str) -> int:
    assert data.flags.writeable
    assert small.flags.writeable
    assert small.flags.aligned
    return int(data.sum()) + int(small.sum())


@compute
def sum_there(data: Any) -> int:
    return int(data.sum())


@compute
def made(value: int, count: int = BYTES) -> bytearray:
    return bytearray([value]) * count


@compute
def increased(data: Any) -> bytearray:
    return bytearray([data[0] + 1]) * len(data)


@compute
def where(*_data: Any) -> int:
    return instance_info().node


@compute
def sum_of(parts: dict[str, list[Any]]) -> int:
    return sum(each[0] for each in parts["all"])


@compute
def pid(*_data: Any) -> int:
    return os.getppid()


def traffic(pool: Pool) -> int:
    """The bytes that the pool's client has sent and received since the last call."""
    now = sum(node.sent_bytes + node.received_bytes for node in pool.snapshot().nodes)
    before = getattr(pool, "traffic_before", 0)
    vars(pool)["traffic_before"] = now
    return now - before


def reroutes(pool: Pool) -> list[events.TransferRerouted]:
    """Return what gathers the events of hops that break from now on."""
    core = pool._core
    assert core is not None
    told: list[events.TransferRerouted] = []
    peers = core.connector._settings.peers
    assert peers is not None
    observe = peers._observe

    def told_too(event: events.Event) -> None:
        assert isinstance(event, events.TransferRerouted)
        told.append(event)
        observe(event)

    peers._observe = told_too
    return told


def sent_here(told: list[events.TransferRerouted]) -> int:
    """Return the bytes that this program sent after all, as a busy machine let nodes stand still for too long."""
    waited_for = "nothing came for", "within"
    assert all(any(words in each.reason for words in waited_for) for each in told), "only a node that stands still"
    return sum(each.size_bytes - each.have_bytes for each in told if each.instead is None)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def objects(pool: Pool) -> list[Any]:
    core = pool._core
    assert core is not None
    return [link.objects.memory for link in core.connector.links]


async def until_freed(pool: Pool, count: int) -> None:
    gc.collect()
    with anyio.fail_after(60):
        while sum(map(len, objects(pool))) > count:
            await anyio.sleep(0.01)


@pytest.fixture(params=[False, True], ids=["local", "remote"])
async def pool(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    async with Pool(provider=Local(as_remote=request.param), nodes=2, console="silent") as pool:
        pool.remote = request.param  # type: ignore[attr-defined]
        yield pool


async def test_what_is_put_is_sent_to_each_node_once_and_is_each_tasks_own(pool: Pool) -> None:
    traffic(pool)
    ref = await pool.put(bytearray([7]) * BYTES)
    assert await pool.broadcast(first(ref, and_set=9)) == [7, 7]
    assert traffic(pool) < (2 * BYTES if pool.remote else 0) + FEW  # type: ignore[attr-defined]
    assert await pool.broadcast(first(ref, and_set=9)) == [7, 7]
    assert await pool.run(sum_of({"all": [ref, ref]})) == 14
    assert await pool.map(first, [ref] * 5) == [7] * 5
    assert traffic(pool) < FEW
    value = await ref.get()
    value[0] = 1
    assert (await ref.get())[0] == 7


async def test_a_pipeline_stays_on_its_node(pool: Pool) -> None:
    begun = await pool.run(made(1), keep=True)
    assert isinstance(begun, Ref)
    traffic(pool)
    second = await pool.submit(increased(begun), keep=True)
    third = await pool.run(increased(second), keep=True)
    assert await pool.run(first(third)) == 3
    assert len({await pool.run(where(ref)) for ref in (begun, second, third)}) == 1
    assert traffic(pool) < FEW
    assert (await third.get())[:2] == b"\x03\x03"


@pytest.mark.nightly
async def test_a_gigabyte_of_a_pipeline_never_comes_here(pool: Pool) -> None:
    begun = await pool.run(made(1, 10**9), keep=True)
    memory, _ = resident_bytes(), traffic(pool)
    second = await pool.run(increased(begun), keep=True)
    assert await pool.run(first(second)) == 2
    assert resident_bytes() - memory < 20_000_000
    assert traffic(pool) < FEW


async def test_a_call_whose_node_has_its_objects_is_sent_at_once(pool: Pool) -> None:
    ref = await pool.put(bytearray(BYTES))
    core = pool._core
    assert core is not None
    links = core.connector.links
    await pool.broadcast(first(ref))
    job = pool.submit(first(ref))
    await anyio.lowlevel.checkpoint()
    assert not any(link._attempts.held_back for link in links)
    assert await job == 0


async def test_another_node_gets_it_too(pool: Pool) -> None:
    ref = await pool.run(made(5), keep=True)
    assert await pool.broadcast(first(ref)) == [5, 5]
    traffic(pool)
    assert await pool.broadcast(first(ref)) == [5, 5]
    assert traffic(pool) < FEW


async def test_a_small_result_is_a_ref_as_well(pool: Pool) -> None:
    ref = await pool.run(made(5, 10), keep=True)
    assert (await ref.get(), await pool.run(first(ref))) == (bytearray([5]) * 10, 5)


async def test_it_is_freed_with_the_last_reference(pool: Pool) -> None:
    ref = await pool.run(made(1), keep=True)
    job = pool.submit(increased(ref), keep=True)
    del ref
    later = await job
    del job
    await until_freed(pool, 1)
    assert await pool.run(first(later)) == 2
    del later
    await until_freed(pool, 0)


async def test_what_its_node_kept_is_lost_with_it() -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        ref = await pool.run(made(1).with_(retry="never"), keep=True)
        other = await pool.put(bytearray(BYTES))
        assert await pool.broadcast(first(other)) == [0, 0]
        os.kill(await pool.run(pid(ref)), signal.SIGKILL)
        with pytest.raises(NodeLost, match=r"[Ww]hat made on node \d has returned.*lost.*Run that again"):
            while True:
                await ref.get()
                await anyio.sleep(0.01)
        with pytest.raises(NodeLost, match=r"first was not run: what made on node \d has returned"):
            await pool.run(first(ref))
        assert await pool.run(first(other)) == 0


async def test_a_ref_is_of_its_pool_and_goes_nowhere_else(pool: Pool) -> None:
    ref = await pool.put(bytearray(BYTES))
    with pytest.raises(SerializationError, match="argument of calls of its pool"):
        pickle.dumps(ref)
    with pytest.raises(SerializationError, match="as a global"):
        await pool.run(compute(lambda: len([ref]))())
    with pytest.raises(SerializationError, match="cannot be pickled otherwise"):
        await pool.put([ref])
    async with Pool(provider=Local(), nodes=1, console="silent") as another:
        with pytest.raises(SerializationError, match=r"args\[0\].*of another pool"):
            await another.run(first(ref))
    assert await pool.run(first(ref)) == 0


async def test_an_argument_is_remembered_by_another_computer_and_no_change_is_missed() -> None:
    async with Pool(provider=Local(as_remote=True), nodes=2, console="silent") as pool:
        data, small = np.full(BYTES, 1, np.uint8), np.full(1001, 2, np.uint8)
        assert await pool.broadcast(total(data, small, "x")) == [BYTES + 2002] * 2
        traffic(pool)
        assert await pool.broadcast(total(data, small, "x")) == [BYTES + 2002] * 2
        assert await pool.broadcast(first(data)) == [1, 1]
        assert await pool.broadcast(first(np.full(BYTES, 1, np.uint8), and_set=3)) == [1, 1]
        assert traffic(pool) < FEW
        data[0] = 2
        assert await pool.broadcast(first(data)) == [2, 2]
        data[0] = 1
        traffic(pool)
        assert await pool.broadcast(first(data)) == [1, 1]
        assert traffic(pool) < FEW


async def test_a_large_argument_is_sent_before_its_digest_is_known_and_found_by_that_later() -> None:
    async with Pool(provider=Local(as_remote=True), nodes=2, console="silent") as pool:
        data = np.full(20 << 20, 1, np.uint8)
        told = reroutes(pool)
        traffic(pool)
        assert await pool.broadcast(first(data)) == [1, 1]
        assert traffic(pool) < data.nbytes + FEW + sent_here(told)
        for _ in range(2):
            assert await pool.broadcast(first(data.copy())) == [1, 1]
        assert traffic(pool) < FEW
        data[1000] = 2  # where nothing is looked at before the digest is taken
        assert await pool.broadcast(sum_there(data)) == [data.nbytes + 1] * 2
        assert traffic(pool) > data.nbytes
        assert await pool.broadcast(sum_there(data)) == [data.nbytes + 1] * 2
        assert traffic(pool) < FEW


async def test_what_has_no_room_in_memory_goes_to_the_disk_and_then_away() -> None:
    worker = Worker(object_memory_gb=0.006, object_disk_gb=0.013)
    async with Pool(provider=Local(as_remote=True), nodes=1, worker=worker, console="silent") as pool:
        refs = [await pool.run(made(number), keep=True) for number in (1, 2, 3)]
        (memory,) = objects(pool)
        assert (memory.memory_bytes // BYTES, memory.disk_bytes // BYTES) == (1, 2)
        for number, ref in enumerate(refs, 1):
            assert await pool.run(first(ref, and_set=9)) == number
            assert (await ref.get())[0] == number
        traffic(pool)
        for number in (4, 5, 6, 4):
            assert await pool.run(first(bytearray([number]) * BYTES)) == number
        assert traffic(pool) > 4 * BYTES  # the first was dropped: what a Ref refers to stays
        for number, ref in enumerate(refs, 1):
            assert (await ref.get())[0] == number


def test_a_pool_for_threads_has_the_same() -> None:
    with Pool(provider=Local(), nodes=1, console="silent") as pool:
        ref = pool.put(bytearray([4]) * BYTES)
        assert first(ref) >> pool == 4
        kept = pool.run(increased(ref), keep=True)
        later = pool.submit(increased(kept), keep=True).result()
        assert (later.get()[0], pool.run(first(later))) == (6, 6)
        assert [ref.get()[0] for ref in made_and_kept(8) @ pool] == [8]


@compute(keep=True)
def made_and_kept(value: int, count: int = BYTES) -> bytearray:
    return bytearray([value + instance_info().rank]) * count


async def test_a_function_may_say_itself_that_its_results_stay(pool: Pool) -> None:
    begun = await pool.run(made_and_kept(1))
    assert isinstance(begun, Ref)
    second, third = await pool.gather(increased(begun.typed), made_and_kept(7, 10))
    assert second[0] == (await begun.get())[0] + 1
    assert isinstance(third, Ref)
    assert made_and_kept.local(1, 3) == bytearray([1, 1, 1])


async def test_results_of_a_broadcast_stay_on_their_nodes(pool: Pool) -> None:
    traffic(pool)
    refs = await pool.broadcast(made_and_kept(1))
    assert traffic(pool) < FEW
    assert [await pool.run(first(ref)) for ref in refs] == [1, 2]
    assert sorted([await pool.run(where(ref)) for ref in refs]) == [0, 1]
    assert [(await ref.get())[0] for ref in refs] == [1, 2]
    del refs
    await until_freed(pool, 0)


async def test_what_comes_here_anyway_cannot_be_kept(pool: Pool) -> None:
    with pytest.raises(SpecError, match="results of a map come here"):
        pool.map(made_and_kept, [1])
    with pytest.raises(SpecError, match="keep=True is not for it"):
        compute(keep=True)(numbers)
    with pytest.raises(SpecError, match="keep takes True or False, not 1"):
        compute(keep=1)  # type: ignore[call-overload]


def numbers() -> Iterator[int]:
    yield 1
