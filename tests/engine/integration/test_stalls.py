"""A task that gives no sign of life is told of, with its stacks, and may be run again."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from outrider import Local, Pool, TaskStalled, Worker, compute, events, instance_info, should_stop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@compute(stall=2.0, on_stall="restart", retries=5)
def hang_once() -> int:
    info = instance_info()
    if info.generation == 1 and info.attempt == 1:
        stuck() if info.rank == 1 else wait_for_others()
    return info.rank


def stuck() -> None:
    threading.Event().wait()


def wait_for_others() -> None:
    threading.Event().wait()


async def test_a_hung_broadcast_names_its_stuck_rank_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    for stall_s in (2.0, 8.0, 30.0):  # on a busy machine also a rank that works may be silent for longer than the first
        async with Pool(provider=Local(), nodes=3, console="silent", run=f"stalls{stall_s:g}") as pool:
            seen = pool.events()
            assert await pool.broadcast(hang_once.with_(stall=stall_s)()) == [0, 1, 2]
        told = [each async for each in seen if isinstance(each, events.Stalled | events.StackTaken)]
        stalled, *others = [each for each in told if isinstance(each, events.Stalled)]
        if not others and stalled.rank is not None:
            break
    assert not others
    assert (stalled.ranks, stalled.rank, stalled.restart, stalled.function) == ((0, 1, 2), 1, True, "hang_once")
    assert stalled.reason.startswith("it is in stuck (test_stalls.py:")
    assert ["in stuck" in each.text for each in told if isinstance(each, events.StackTaken)] == [False, True, False]
    (record,) = (tmp_path / "state" / "runs").glob(f"*-stalls{stall_s:g}-*")
    assert sorted(path.name[-12:] for path in (record / "stacks").iterdir()) == [f"rank-{n:03}.txt" for n in range(3)]
    assert '"event":"stalled"' in (record / "events.jsonl").read_text()


@compute
def steps(how: str, for_s: float) -> str:
    until = time.monotonic() + for_s
    while time.monotonic() < until:
        if how == "prints":
            print("here", flush=True)
        else:
            should_stop()
        time.sleep(0.1)
    return how


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_lines_and_steps_are_signs_of_life(kind: str) -> None:
    worker = Worker(2, kind=kind)  # type: ignore[arg-type]
    for stall_s in (1.0, 4.0, 12.0):  # a busy machine may keep a task from its next step for longer than the first
        given = steps.with_(stall=stall_s)
        async with Pool(provider=Local(), worker=worker, console="silent") as pool:
            seen = pool.events()
            calls = (given(how, 3 * stall_s) for how in ("prints", "asks"))
            assert await pool.gather(*calls) == ("prints", "asks")
        told = [each async for each in seen if isinstance(each, events.Stalled)]
        if not told:
            break
    assert told == []


async def test_a_task_that_always_hangs_ends_with_that() -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        with pytest.raises(TaskStalled, match="hang_always gave no sign of life"):
            await pool.run(hang_always())
        with pytest.raises(TaskStalled, match="hang_always gave no sign of life"):
            await pool.broadcast(hang_always())
        assert await pool.run(hang_once()) == 0, "the pool goes on"


@compute(stall=0.3, on_stall="restart", retries=1)
def hang_always() -> None:
    stuck()
