"""Values that many calls refer to: each node is sent them once, and its workers map the same memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import Local, Pool, SerializationError, SpecError, Worker, compute
from outrider.engine.serialization.packer import Packer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=[True, False], ids=["local", "like a remote one"])
async def busy(request: pytest.FixtureRequest) -> AsyncIterator[Pool]:
    local = Local(shared_memory=request.param)
    async with Pool(provider=local, nodes=2, worker=Worker(concurrency=2), console="silent") as pool:
        yield pool


def packer(pool: Pool) -> Packer:
    return pool._opened().packer


@compute
def looked_at(array: Any, number: int) -> tuple[float, bool, int, frozenset[str]]:
    """Its sum and more: the process, and the blobs that are mapped here."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    inodes = frozenset(line.split()[4] for line in maps if "memfd:" in line and "blob" in line)
    return float(array.sum()) + number, array.flags.writeable, os.getpid(), inodes


@compute
def rows(array: Any) -> Iterator[float]:
    for row in array:
        yield float(row.sum())


@compute
def fails(array: Any) -> None:
    raise ValueError(str(array.shape))


async def test_all_workers_of_a_node_map_one_copy_and_cannot_change_it(busy: Pool) -> None:
    array = np.arange(300_000.0).reshape(300, 1000)
    shared = packer(busy).share(array)
    try:
        seen = await busy.gather(*(looked_at(shared, number) for number in range(24)))
    finally:
        shared.close()

    assert [total - number for number, (total, _, _, _) in enumerate(seen)] == [array.sum()] * 24
    assert not any(writeable for _, writeable, _, _ in seen)
    by_inode = {inode for _, _, _, inodes in seen for inode in inodes}
    assert 1 <= len(by_inode) <= 2  # a copy per node at the most, for up to four processes


async def test_streams_broadcasts_and_failing_calls_take_it_as_well(busy: Pool) -> None:
    array = np.ones((5, 20_000))
    shared = packer(busy).share(array)
    assert [row async for row in busy.stream(rows(shared))] == [20_000.0] * 5
    assert [seen[0] for seen in await busy.broadcast(looked_at(shared, 0))] == [100_000.0] * 2
    with pytest.raises(ValueError, match=r"\(5, 20000\)"):
        await busy.run(fails(shared))
    shared.close()


async def test_it_stays_until_the_last_call_that_refers_to_it_and_is_gone_then(busy: Pool) -> None:
    shared = packer(busy).share(np.ones(100_000))
    job = busy.submit(looked_at(shared, 1))
    shared.close()
    assert (await job)[0] == 100_001
    with pytest.raises(SpecError, match="closed"):
        busy.submit(looked_at(shared, 1))
    after = await busy.gather(*(looked_at(np.ones(2), 0) for _ in range(16)))
    assert {inode for _, _, _, inodes in after for inode in inodes} == set()


async def test_what_fails_to_be_packed_is_no_user_of_it(busy: Pool) -> None:
    shared = packer(busy).share(np.ones(10))
    with pytest.raises(SerializationError):
        busy.submit(looked_at(shared, (each for each in ())))
    assert (await busy.run(looked_at(shared, 2)))[0] == 12
    assert shared._uses == 0
    shared.close()


async def test_threads_of_one_worker_share_it() -> None:
    async with Pool(provider=Local(), worker=Worker(concurrency=3, kind="thread"), console="silent") as pool:
        shared = packer(pool).share(np.ones(50_000))
        seen = await pool.gather(*(looked_at(shared, number) for number in range(9)))
        assert [total - number for number, (total, _, _, _) in enumerate(seen)] == [50_000.0] * 9
        shared.close()
