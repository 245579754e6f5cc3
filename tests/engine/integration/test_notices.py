"""A node's notice on a real pool: the task is told, its replacement comes before its end, and it gets no new work."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider import (
    SSH,
    Local,
    Pool,
    Preemption,
    SpecError,
    compute,
    events,
    instance_info,
    on_preemption,
    plugins,
    preemption,
    should_stop,
)

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
NOTICE_S = 600
BAR_S = 300.0  # half of a notice: by then it is acted on


@compute
def place() -> tuple[str, int, int]:
    """The node's directory, its process group, and which attempt this is."""
    here = Path.cwd().parent
    group = os.getpgid(int(os.environ["OUTRIDER_NOTICE_PAGE"].split("/")[2]))  # the fork server leads it
    return str(here), group, instance_info().attempt


@compute
def until_told(directory: str, stays: bool = False) -> tuple[str, float, int]:
    """The notice's source, what it leaves, and the attempt. A second attempt waits for none."""
    attempt = instance_info().attempt
    (Path(directory) / f"began-{attempt}").touch()
    deadline = time.monotonic() + PATIENCE_S
    while (notice := preemption()) is None and time.monotonic() < deadline and attempt == 1:
        time.sleep(0.005)
    if notice is None:
        return "", 0.0, attempt
    told = Path(directory) / "told.new"
    told.write_text(f"{notice.source} {notice.seconds_left}")
    told.rename(Path(directory) / "told")
    if stays:
        time.sleep(PATIENCE_S)
    return notice.source, notice.seconds_left, attempt


@compute
def until_told_otherwise(directory: str) -> bool:
    """Whether the notice that it was told of was withdrawn."""
    until_told.local(directory)
    deadline = time.monotonic() + PATIENCE_S
    while preemption() is not None and time.monotonic() < deadline:
        time.sleep(0.005)
    return preemption() is None


@compute
def until_file(path: str) -> int:
    Path(path).with_name("began").touch()
    deadline = time.monotonic() + PATIENCE_S
    while not Path(path).exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    return instance_info().attempt


@compute
def saves(directory: str) -> None:
    """A training loop that knows nothing of notices; its callback does."""
    saved = Path(directory) / "saved"
    (Path(directory) / "began").touch()

    @on_preemption
    def save(notice: Preemption) -> None:
        saved.write_text(f"{notice.source} {notice.budget_s:.0f} {instance_info().node}")

    while not saved.exists():
        time.sleep(0.005)


@compute
def trains(directory: str) -> tuple[int, str]:
    """Steps that no rank can make alone; how many there were, and whose machine is why they ended."""
    import torch
    import torch.distributed as dist

    from outrider.engine.runtime import preemption as module

    module.AGREE_S = PATIENCE_S  # on a busy computer it may take seconds
    steps = 0
    while not should_stop(everywhere=True):
        dist.all_reduce(torch.ones(1))
        steps += 1
        (Path(directory) / f"began-{instance_info().rank}").touch()
        time.sleep(0.002 * instance_info().rank)
    notice = preemption(everywhere=True)
    return steps, "" if notice is None else f"{notice.source} {notice.node}"


class Watched:
    """Everything that a pool has told."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self._changed = asyncio.Event()

    async def read(self, pool: Pool) -> None:
        async for event in pool.events():
            self.events.append(event)
            self._changed.set()

    def all(self, kind: type[Any], node: int | None = None) -> list[Any]:
        return [
            event for event in self.events if isinstance(event, kind) and node in (None, getattr(event, "node", None))
        ]

    async def wait(self, kind: type[Any], node: int | None = None) -> Any:
        async with asyncio.timeout(PATIENCE_S):
            while not (found := self.all(kind, node)):
                self._changed.clear()
                await self._changed.wait()
        return found[0]


@asynccontextmanager
async def watched(**options: Any) -> AsyncIterator[tuple[Pool, Watched]]:
    async with Pool(provider=Local(), console="silent", **options) as pool:
        seen = Watched()
        reading = asyncio.ensure_future(seen.read(pool))
        await asyncio.sleep(0)
        yield pool, seen
    await reading


async def until(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():
            await asyncio.sleep(0.005)


async def test_a_notice_is_told_replaced_and_left_alone(tmp_path: Path) -> None:
    async with watched(nodes=2) as (pool, seen):
        directory, group, _ = await pool.run(place(), on=0)
        job = pool.submit(until_told(str(tmp_path), stays=True), on=0)
        await until(tmp_path / "began-1")
        began = time.monotonic()
        (Path(directory) / "preempt").write_text(f"{NOTICE_S}")
        await until(tmp_path / "told")
        assert time.monotonic() - began < BAR_S
        source, left_s = (tmp_path / "told").read_text().split()
        assert source == "file"
        assert NOTICE_S - BAR_S < float(left_s) <= NOTICE_S
        await seen.wait(events.NodeReady, 2)
        assert time.monotonic() - began < BAR_S
        (noticed,) = seen.all(events.NodeNoticed)
        assert directory not in {(await pool.run(place()))[0] for _ in range(4)}
        assert directory not in {(await pool.run(place(), on=rank))[0] for rank in range(2)}
        assert seen.all(events.NodeLost) == []
        os.kill(-group, signal.SIGKILL)
        assert await job == ("", 0.0, 2)
        lost = await seen.wait(events.NodeLost)
        assert (lost.node, lost.noticed) == (noticed.node, True)
        assert [event.count for event in seen.all(events.NodesRequested)] == [1]


async def test_a_withdrawn_notice_brings_the_node_back_and_nothing_is_replaced_twice(tmp_path: Path) -> None:
    async with watched(nodes=2) as (pool, seen):
        directory, _, _ = await pool.run(place(), on=0)
        busy = pool.submit(until_file(str(tmp_path / "go")), on=0)
        await until(tmp_path / "began")
        file = Path(directory) / "preempt"
        file.write_text("600")
        await seen.wait(events.NodeReady, 2)
        file.unlink()
        assert (await seen.wait(events.NodeNoticeWithdrawn)).node == (await seen.wait(events.NodeNoticed)).node
        await seen.wait(events.NodeDraining, 2)
        (tmp_path / "go").touch()
        assert await busy == 1
        assert directory in {(await pool.run(place(), on=rank))[0] for rank in range(2)}
        assert [await pool.run(_pending(), on=rank) for rank in range(2)] == [None, None]
        assert [event.count for event in seen.all(events.NodesRequested)] == [1]
        assert seen.all(events.NodeLost) == []


@compute
def _pending() -> Preemption | None:
    return preemption()


async def test_signals_to_a_local_machine_are_a_notice_and_its_withdrawal(tmp_path: Path) -> None:
    """The task is told both. (The pool need not hear of the second: it may have replaced the node by then.)"""
    async with watched(nodes=1) as (pool, seen):
        _, group, _ = await pool.run(place())
        job = pool.submit(until_told_otherwise(str(tmp_path)))
        await until(tmp_path / "began-1")
        os.kill(-group, signal.SIGUSR1)
        await until(tmp_path / "told")
        source, left_s = (tmp_path / "told").read_text().split()
        assert source == "signal"
        assert 0 <= float(left_s) <= 30
        assert seen.all(events.NodeLost) == []
        os.kill(-group, signal.SIGUSR2)
        assert await job


async def test_a_source_that_there_is_not_is_the_users_error() -> None:
    with pytest.raises(SpecError, match=r"notices: 'oracle' is no source of notices: aws, "):
        async with Pool(provider=SSH(["127.0.0.1:9"], notices=["oracle"]), console="silent"):
            pass


async def test_a_callback_saves_while_the_loop_goes_on(tmp_path: Path) -> None:
    async with watched(nodes=1) as (pool, _):
        directory, _, _ = await pool.run(place())
        job = pool.submit(saves(str(tmp_path)))
        await until(tmp_path / "began")
        (Path(directory) / "preempt").write_text("30")
        await job
        assert (tmp_path / "saved").read_text().split()[0::2] == ["file", "0"]


async def test_all_ranks_stop_at_the_same_step_when_any_of_them_will_be_taken(tmp_path: Path) -> None:
    async with watched(nodes=3, plugins=[plugins.torch()]) as (pool, _):
        places = await pool.broadcast(place())
        job = asyncio.ensure_future(pool.broadcast(trains(str(tmp_path))))
        for rank in range(3):
            await until(tmp_path / f"began-{rank}")
        (Path(places[1][0]) / "preempt").write_text("60")
        ranks = await asyncio.wait_for(job, PATIENCE_S)
        assert len({steps for steps, _ in ranks}) == 1
        assert ranks[0][0] > 0
        assert [why for _, why in ranks] == ["file 1"] * 3
