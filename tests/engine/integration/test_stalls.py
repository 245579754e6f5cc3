"""A task that gives no sign of life is told of, with its stacks, and may be run again."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from outrider import Local, Pool, TaskStalled, Worker, compute, events, instance_info, should_stop

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@compute(stall=2.0, on_stall="restart")  # on a busy machine a generation that works imports for longer than 0.5 s
def hang_once(folder: str) -> int:
    info = instance_info()
    if info.generation == 1 and info.attempt == 1:
        stuck(folder) if info.rank == 1 else wait_for_others(folder)
    return info.rank


def stuck(folder: str) -> None:
    while not Path(folder, "never").exists():
        time.sleep(0.01)


def wait_for_others(folder: str) -> None:
    while not Path(folder, "never").exists():
        time.sleep(0.01)


async def test_a_hung_broadcast_names_its_stuck_rank_and_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    async with Pool(provider=Local(), nodes=3, console="silent", run="stalls") as pool:
        seen = pool.events()
        assert await pool.broadcast(hang_once(str(tmp_path))) == [0, 1, 2]
    told = [each async for each in seen if isinstance(each, events.Stalled | events.StackTaken)]
    (stalled,) = [each for each in told if isinstance(each, events.Stalled)]
    assert (stalled.ranks, stalled.rank, stalled.restart, stalled.function) == ((0, 1, 2), 1, True, "hang_once")
    assert stalled.reason.startswith("it is in stuck (test_stalls.py:")
    assert ["in stuck" in each.text for each in told if isinstance(each, events.StackTaken)] == [False, True, False]
    (record,) = (tmp_path / "state" / "runs").glob("*-stalls-*")
    assert sorted(path.name[-12:] for path in (record / "stacks").iterdir()) == [f"rank-{n:03}.txt" for n in range(3)]
    assert '"event":"stalled"' in (record / "events.jsonl").read_text()


@compute(stall=1.0)
def steps(how: str) -> str:
    for _ in range(30):
        if how == "prints":
            print("here", flush=True)
        else:
            should_stop()
        time.sleep(0.1)
    return how


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_lines_and_steps_are_signs_of_life(kind: str) -> None:
    worker = Worker(2, kind=kind)  # type: ignore[arg-type]
    async with Pool(provider=Local(), worker=worker, console="silent") as pool:
        seen = pool.events()
        assert await pool.gather(steps("prints"), steps("asks")) == ("prints", "asks")
    assert [each async for each in seen if isinstance(each, events.Stalled)] == []


async def test_a_task_that_always_hangs_ends_with_that(tmp_path: Path) -> None:
    hang = hang_once.with_(retries=1)
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        with pytest.raises(TaskStalled, match="hang_always gave no sign of life"):
            await pool.run(hang_always(str(tmp_path)))
        with pytest.raises(TaskStalled, match="hang_always gave no sign of life"):
            await pool.broadcast(hang_always(str(tmp_path)))
        assert await pool.run(hang(str(tmp_path))) == 0, "the pool goes on"


@compute(stall=0.3, on_stall="restart", retries=1)
def hang_always(folder: str) -> None:
    stuck(folder)
