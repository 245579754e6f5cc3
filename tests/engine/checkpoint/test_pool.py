"""Checkpoints of tasks: the pool says where, a lost node costs what was not saved, a notice is saved for at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import (
    BroadcastFailed,
    CheckpointError,
    Local,
    Pool,
    SpecError,
    checkpoint,
    compute,
    events,
    instance_info,
    plugins,
    should_stop,
)
from outrider.actors import generations
from outrider.engine.record.runs.lines import saved_checkpoints
from outrider.engine.record.runs.reader import runs_in

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_state")]

PATIENCE_S = 60.0


async def until(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():
            await asyncio.sleep(0.005)


@compute
def counted(steps: int) -> tuple[int, Any]:
    saving = checkpoint("count")
    start, state = saving.load()
    for step in range(start + 1, start + steps + 1):
        saving.save(step, {"total": np.full(5_000, step), "rank": instance_info().rank})
    return start, None if state is None else (int(state["total"][0]), state["rank"])


async def test_a_pool_says_where_and_a_task_that_has_ended_has_saved(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, console="silent", checkpoints=tmp_path / "kept") as pool:
        assert await pool.run(counted(5)) == (0, None)
        assert await pool.run(counted(5)) == (5, (5, 0))
        assert await pool.broadcast(counted(1)) == [(10, (10, 0))] * 2
    async with Pool(provider=Local(), nodes=2, console="silent", checkpoints=f"file://{tmp_path}/kept") as pool:
        assert await pool.broadcast(counted(1)) == [(11, (11, 0)), (11, (11, 1))]


async def test_the_record_has_each_complete_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_RUNS", "1")
    async with Pool(provider=Local(), nodes=2, console="silent", checkpoints=tmp_path / "kept", run="kept") as pool:
        await pool.broadcast(counted(3))
        await pool.run(counted(1))
    (run,) = runs_in(tmp_path / "state" / "runs")
    saved = list(saved_checkpoints((run.directory / "events.jsonl").read_bytes()))
    assert (saved[-2].step, saved[-2].rank) == (3, 0), "the last of each task is complete when it has returned"
    assert (saved[-1].step, saved[-1].rank) == (4, None)
    assert len({each.step for each in saved}) == len(saved)
    assert {each.name for each in saved} == {"count"}
    (kept,) = (tmp_path / "kept").glob("**/step-000000000004.*")
    assert saved[-1].size_bytes == sum(each.stat().st_size for each in kept.iterdir())


async def test_without_a_place_the_task_says_so(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        with pytest.raises(SpecError, match=r"Pool\(checkpoints="):
            await pool.run(counted(1))


@pytest.mark.parametrize("checkpoints", ["", 3, "s3://"])
def test_invalid_root_is_refused_before_the_pool_starts(checkpoints: Any) -> None:
    with pytest.raises(SpecError, match="checkpoints"):
        Pool(provider=Local(), checkpoints=checkpoints)


@compute
def saves_too_much(root: str) -> str:
    checkpoint("run", root=root).save(1, "state")
    return "done"


async def test_a_task_whose_last_save_failed_has_failed(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    async with Pool(provider=Local(), nodes=1, console="silent") as pool:
        with pytest.raises(CheckpointError, match="kept"):
            await pool.run(saves_too_much(str(tmp_path / "kept")))
        assert await pool.run(saves_too_much(str(tmp_path / "other"))) == "done"


@compute
def fails_after_saving() -> None:
    checkpoint("count").save(3, "before the error")
    raise ValueError("the user's own")


async def test_checkpoint_saved_before_an_error_is_complete(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent", checkpoints=tmp_path / "kept") as pool:
        with pytest.raises(ValueError, match="own"):
            await pool.run(fails_after_saving())
    assert checkpoint("count", root=tmp_path / "kept").load() == (3, "before the error")


@compute
def trains(marks: str, steps: int) -> tuple[int, int, int]:
    """In step, by a collective. Tells where its machine is, and when it is past step 20."""
    import torch
    import torch.distributed as dist

    info = instance_info()
    saving = checkpoint("training", every=4)
    start, state = saving.load()
    total = torch.zeros(1000) if state is None else state["total"]
    for step in range(start + 1, steps + 1):
        ones = torch.ones(1000)
        dist.all_reduce(ones)
        total += ones / info.world_size
        saving.save(step, {"total": total})
        if step == 20 and info.generation == 1:
            (Path(marks) / f"{info.rank}.new").write_text(f"{Path.cwd().parent} {os.getppid()}")
            (Path(marks) / f"{info.rank}.new").rename(Path(marks) / str(info.rank))
            time.sleep(10 * PATIENCE_S)  # until it is killed
    return info.generation, start, int(total[0])


@pytest.mark.parametrize("victim", [0, 2])
async def test_a_lost_node_costs_what_was_not_saved(tmp_path: Path, victim: int) -> None:
    """Rank 0, which completes the checkpoints, too."""
    torch = [plugins.torch()]
    async with Pool(provider=Local(), nodes=3, console="silent", plugins=torch, checkpoints=tmp_path / "kept") as pool:
        training = asyncio.ensure_future(pool.broadcast(trains(str(tmp_path), 40)))
        for rank in range(3):
            await until(tmp_path / str(rank))
        async with asyncio.timeout(PATIENCE_S):
            while 20 not in checkpoint("training", root=tmp_path / "kept").steps():
                await asyncio.sleep(0.01)
        lost = next(node for node in pool.snapshot().nodes if node.node == victim)
        assert lost.facts is not None
        os.killpg(int(lost.facts["group"]), signal.SIGKILL)
        assert await training == [(2, 20, 40)] * 3
    assert checkpoint("training", root=tmp_path / "kept").steps()[0] == 40


@compute
def until_told(marks: str) -> tuple[int, int]:
    """Saves for a notice alone: never otherwise."""
    import torch
    import torch.distributed as dist

    rank = instance_info().rank
    saving = checkpoint("noticed", every=1_000_000_000)
    saving.load()
    step = 0
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        stop = should_stop(everywhere=True)
        saved = saving.save(step, {"step": step, "rank": rank}, force=stop)
        if step == 5:
            (Path(marks) / f"{rank}.new").write_text(str(Path.cwd().parent))
            (Path(marks) / f"{rank}.new").rename(Path(marks) / str(rank))
        if saved:
            return step, rank
        time.sleep(0.001)


@compute
def until_told_without_asking(marks: str) -> tuple[int, int]:
    import torch
    import torch.distributed as dist

    rank = instance_info().rank
    saving = checkpoint("noticed", every=1_000_000_000)
    saving.load()
    for step in range(1, 1_000_000_000):
        dist.all_reduce(torch.ones(1))
        if saving.save(step, {"step": step, "rank": rank}):
            return step, rank
        if step == 5:
            (Path(marks) / f"{rank}.new").write_text(str(Path.cwd().parent))
            (Path(marks) / f"{rank}.new").rename(Path(marks) / str(rank))
        time.sleep(0.001)
    raise AssertionError


@pytest.mark.parametrize("function", [until_told, until_told_without_asking])
async def test_a_notice_to_one_rank_is_saved_for_at_the_same_step_by_all(tmp_path: Path, function: Any) -> None:
    torch = [plugins.torch()]
    async with Pool(provider=Local(), nodes=3, console="silent", plugins=torch, checkpoints=tmp_path / "kept") as pool:
        training = asyncio.ensure_future(pool.broadcast(function(str(tmp_path))))
        for rank in range(3):
            await until(tmp_path / str(rank))
        (Path((tmp_path / "1").read_text()) / "preempt").write_text("60")
        async with asyncio.timeout(PATIENCE_S):
            ranks = await training
    (step,) = {step for step, _ in ranks}
    assert checkpoint("noticed", root=tmp_path / "kept").steps() == [step]


@compute
def alone_until_told(marks: str) -> int:
    saving = checkpoint("alone", every=1_000_000_000)
    for step in range(1, 1_000_000_000):
        if saving.save(step, step):
            return step
        if step == 5:
            (Path(marks) / "new").write_text(str(Path.cwd().parent))
            (Path(marks) / "new").rename(Path(marks) / "place")
        time.sleep(0.001)
    raise AssertionError


async def test_a_task_alone_saves_for_its_notice(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=1, console="silent", checkpoints=tmp_path / "kept") as pool:
        training = asyncio.ensure_future(pool.run(alone_until_told(str(tmp_path))))
        await until(tmp_path / "place")
        (Path((tmp_path / "place").read_text()) / "preempt").write_text("60")
        async with asyncio.timeout(PATIENCE_S):
            step = await training
    assert checkpoint("alone", root=tmp_path / "kept").load() == (step, step)


@compute
def fails_at(step: int, how: str) -> int:
    """Rank 1 fails at a step while rank 0 waits for it, with the default timeout of 600 s."""
    saving = checkpoint(f"fails-{how}", every=1)
    begun, _ = saving.load()
    for at in range(begun + 1, 50):
        if instance_info().rank == 1 and at == step:
            if how == "raise":
                raise ValueError("bad luck")
            os._exit(3) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
        saving.save(at, {"step": at})
        saving.wait()
    return 0


async def test_failed_rank_ends_those_that_wait_at_their_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[tuple[str, Any, str]]
    ways = [("raise", "auto", "bad luck"), ("exit", "restart", "exit status 3"), ("kill", "auto", "SIGKILL")]
    monkeypatch.setattr(generations, "GRACE_S", 0.1)
    async with Pool(provider=Local(), nodes=2, console="silent", checkpoints=tmp_path / "kept") as pool:
        for how, on_loss, words in ways:
            failures, subscribed = list[str](), pool.events()
            with pytest.raises(BroadcastFailed, match=words) as caught:
                await asyncio.wait_for(pool.broadcast(fails_at.with_(on_loss=on_loss)(3, how)), PATIENCE_S)
            assert caught.value.first.rank == 1
            async with aclosing(subscribed):
                async for event in subscribed:
                    if isinstance(event, events.JobFailed):
                        failures.append(event.error)
                        assert event.ranks == (1,)
                    elif isinstance(event, events.BroadcastFinished):
                        break
            assert len(failures) == 1, "the first failure comes before the broadcast's end, and once"
