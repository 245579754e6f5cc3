"""The same pool without async, and in the style of `import outrider as sky`."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

import outrider as sky
from outrider.engine.client.loop_thread import LoopThread


@sky.compute
def double(x: int) -> int:
    return 2 * x


@sky.compute
def count(n: int) -> Iterator[int]:
    yield from range(n)


@pytest.fixture(scope="module")
def pool() -> Iterator[sky.SyncPool]:
    with sky.ComputePool(provider=sky.Local(), nodes=2, console="silent") as pool:
        yield pool


def test_operators_give_values(pool: sky.SyncPool) -> None:
    assert double(2) >> pool == 4
    assert double(2) @ pool == [4, 4]
    assert (double(1) & double(2)) >> pool == (2, 4)
    assert (double(3) > pool).result() == 6
    assert ((double(1) & double(2)) > pool).result() == (2, 4)
    assert list(count(5) >> pool) == [0, 1, 2, 3, 4]
    assert sky.gather(double(1), double(2), stream=False) >> pool == (2, 4)
    assert sorted(sky.gather(double(1), double(2), stream=True) >> pool) == [2, 4]


def test_methods_give_values(pool: sky.SyncPool) -> None:
    assert pool.run(double(2), on="head") == 4
    assert pool.broadcast(double(2)) == [4, 4]
    assert pool.gather(double(1), double(2)) == (2, 4)
    assert pool.submit(double(7)).result() == 14
    assert list(pool.map(double, range(100))) == [2 * n for n in range(100)]
    assert list(pool.stream(count(3))) == [0, 1, 2]
    pool.resize(2)
    assert pool.snapshot().ready == 2
    assert (pool.cost.spent, pool.cost.hourly) == (0, 0)


def test_a_generator_on_every_node_gives_an_iterator_for_each_rank(pool: sky.SyncPool) -> None:
    assert [list(values) for values in count(50) @ pool] == [list(range(50))] * 2
    assert [*zip(*pool.broadcast(count(40)), strict=True)] == [(n, n) for n in range(40)]
    assert [list(values) for values in count(0) @ pool] == [[], []]


def test_an_iterator_of_a_rank_that_is_closed_or_forgotten_ends_its_rank(pool: sky.SyncPool) -> None:
    for begun in (False, True):
        closed, forgotten = count(10**9) @ pool
        if begun:
            assert (next(closed), next(forgotten)) == (0, 0)
        assert isinstance(closed, Generator)
        closed.close()
        del forgotten
        gc.collect()
        assert double(2) @ pool == [4, 4]  # every slot is free again


def test_a_ranks_error_is_raised_by_its_iterator(pool: sky.SyncPool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    @sky.compute
    def bad() -> Iterator[int]:
        yield 1
        if sky.instance_info().rank:
            while not gate.exists():
                time.sleep(0.01)
            raise KeyError("bad")
        threading.Event().wait()

    other, failed = bad() @ pool
    assert (next(failed), next(other)) == (1, 1)
    gate.touch()
    with pytest.raises(KeyError, match="bad"):
        next(failed)
    with pytest.raises(sky.TaskStopped):
        next(other)


def test_a_generator_in_a_group_gives_an_iterator(pool: sky.SyncPool) -> None:
    values, result = (count(30) & double(2)) >> pool
    assert (list(values), result) == (list(range(30)), 4)
    result, values = ((double(1) & count(3)) > pool).result()
    assert (result, list(values)) == (2, [0, 1, 2])
    values, result = pool.gather(count(10**9), double(3))
    assert (next(values), result) == (0, 6)
    values.close()
    values, result = ((count(10**9) & double(3)) > pool).result()
    del values
    gc.collect()
    assert double(2) @ pool == [4, 4]


def test_a_map_takes_what_another_map_a_stream_or_the_pool_itself_gives(pool: sky.SyncPool) -> None:
    assert list(pool.map(double, pool.map(double, range(200)))) == [4 * n for n in range(200)]
    assert list(pool.map(double, pool.stream(count(50)))) == [2 * n for n in range(50)]
    assert list(pool.map(double, (pool.run(double(n)) for n in range(3)))) == [0, 4, 8]
    some = pool.map(double, pool.map(double, range(1000)), limit=8)
    assert [next(some) for _ in range(3)] == [0, 4, 8]
    del some
    assert double(2) >> pool == 4


def test_items_of_a_map_are_taken_as_they_come(pool: sky.SyncPool) -> None:
    results: list[int] = []
    seen = threading.Semaphore(0)

    def items() -> Iterator[int]:
        for n in range(3):
            yield n
            assert seen.acquire(timeout=60)

    for result in pool.map(double, items()):
        results.append(result)
        seen.release()
    assert results == [0, 2, 4]


def test_errors_are_raised_where_they_are_waited_for(pool: sky.SyncPool) -> None:
    @sky.compute
    def bad() -> None:
        raise KeyError("bad")

    with pytest.raises(KeyError, match="bad"):
        bad() >> pool
    with pytest.raises(KeyError, match="bad"):
        (bad() > pool).result()


def test_threads_share_a_pool(pool: sky.SyncPool) -> None:
    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(double(n) >> pool)) for n in range(8)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [2 * n for n in range(8)]


def test_a_sync_pool_after_its_end_says_so() -> None:
    with sky.Pool(console="silent") as pool:
        assert double(1) >> pool == 2
    with pytest.raises(sky.PoolClosed):
        double(1) >> pool


@pytest.mark.parametrize("ended", ["before it is used", "while it is used"])
def test_a_verb_of_a_pool_that_another_thread_closes_meanwhile_says_so(
    ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = sky.SyncPool(sky.Pool(console="silent"))
    thread = LoopThread()
    thread.start()
    thread.stop()
    pool._thread = thread
    if ended == "while it is used":
        monkeypatch.setattr(pool, "_check_thread", lambda: setattr(pool, "_thread", None))
    with pytest.raises(sky.PoolClosed, match="has ended"):
        pool.snapshot()
