"""A pool whose GPUs do nothing is ended, also under a call that does not end; one that works is not."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import pytest

from outrider import Local, Pool, PoolClosed, PoolIdle, compute
from outrider.actors import events as ev
from outrider.providers.local import computer

from ..fake_gpus import built

pytestmark = pytest.mark.anyio
PATIENCE_S = 200.0  # on a busy computer a sample may come too late for the time before it to count


@compute
def sleeps() -> None:
    time.sleep(600)


@compute
def answers() -> int:
    return 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("gpus")).parent


@pytest.fixture
def gpus(folder: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """This computer has two GPUs, which do nothing."""
    monkeypatch.setattr(computer, "_driver_is_loaded", lambda: True)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    monkeypatch.setenv("NVML_SAYS", "use=0")
    return monkeypatch


def pool_of(nodes: int = 2, **options: Any) -> Pool:
    return Pool(provider=Local(), nodes=nodes, max_idle=0.6, sample_every=0.1, console="silent", **options)


@pytest.mark.usefixtures("gpus")
async def test_calls_that_leave_their_gpus_idle_end_with_the_pool() -> None:
    pool, told = pool_of(), list[ev.Event]()

    async def watch() -> None:
        told.extend([event async for event in pool.events()])

    with pytest.raises(PoolIdle) as ended:
        async with asyncio.timeout(PATIENCE_S), pool:
            watching = asyncio.ensure_future(watch())
            job = pool.submit(sleeps())
            with pytest.raises(PoolIdle, match="2 calls did not end: look for what they wait for"):
                await pool.run(sleeps())
            with pytest.raises(PoolIdle):
                await job
            with pytest.raises(PoolClosed):
                await pool.run(sleeps())
    await watching
    error = ended.value
    assert "none of its 2 GPUs was used for more than 2% of the time" in str(error)
    assert (error.gpus, error.use, error.limit, error.calls) == (2, 0.02, 0.6, 2)
    assert error.idle_s >= 0.6
    assert abs(error.since + error.idle_s - time.time()) < 60
    (event,) = [event for event in told if isinstance(event, ev.PoolIdleTooLong)]
    assert (event.idle_s, event.limit_s, event.gpus, event.use) == (error.idle_s, 0.6, 2, 0.02)
    assert isinstance(told[-1], ev.PoolClosed)


@pytest.mark.usefixtures("gpus")
async def test_ranks_that_leave_their_gpus_idle_and_a_pool_without_calls_end_too() -> None:
    with pytest.raises(PoolIdle, match="1 call did not end"):
        async with asyncio.timeout(PATIENCE_S), pool_of() as pool:
            await pool.broadcast(sleeps())
    with pytest.raises(PoolIdle, match="No call ran"):
        async with asyncio.timeout(PATIENCE_S), pool_of() as pool:
            async for _ in pool.events():  # until its last one
                pass


@pytest.mark.parametrize("said", ["use=40", "MIG", "lost0"])
async def test_gpus_that_work_or_cannot_be_seen_keep_the_pool(gpus: pytest.MonkeyPatch, said: str) -> None:
    gpus.setenv("NVML_SAYS", said)
    async with asyncio.timeout(PATIENCE_S), pool_of() as pool:
        count = 0
        async for event in pool.events():
            if not isinstance(event, ev.NodeSampled):
                continue
            assert {gpu.index for gpu in event.gpus} <= {event.node}, "each node has one of the two"
            count += 1
            if count == 25:  # of two nodes: twice the time
                break
        assert await pool.run(answers()) == 1
