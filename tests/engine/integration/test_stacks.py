"""`Pool.stacks` shows what all that runs is at, and the record keeps it."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from outrider import Local, Pool, TaskStack, Worker, compute, events, instance_info

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@compute
def hang(folder: str) -> int:
    rank = instance_info().rank
    Path(folder, f"begun-{rank}").touch()
    if rank == 1:
        stuck(folder)
    while not Path(folder, "end").exists():
        time.sleep(0.005)
    return rank


def stuck(folder: str) -> None:
    while not Path(folder, "end").exists():
        time.sleep(0.005)


def is_stuck(found: list[TaskStack]) -> bool:
    return any("in stuck" in each.text for each in found if each.rank == 1)


def wait_for_ranks(folder: Path, ranks: int) -> None:
    while len(list(folder.glob("begun-*"))) < ranks:
        time.sleep(0.005)


async def test_all_ranks_are_shown_and_go_on(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=3, console="silent") as pool:
        assert await pool.stacks() == []
        seen = pool.events()
        running = asyncio.ensure_future(pool.broadcast(hang(str(tmp_path))))
        await asyncio.to_thread(wait_for_ranks, tmp_path, 3)
        while len(found := await pool.stacks()) < 3 or "in stuck" not in found[1].text:
            pass
        (tmp_path / "end").touch()
        assert await running == [0, 1, 2]
    assert [(each.rank, each.ranks, each.function, each.generation) for each in found] == [
        (rank, 3, "hang", 1) for rank in range(3)
    ]
    assert ["in stuck" in each.text for each in found] == [False, True, False]
    assert found[1].where.startswith("stuck (test_stacks.py:")
    told = [each async for each in seen if isinstance(each, events.StackTaken)][-3:]
    assert [(each.rank, each.text) for each in told] == [(each.rank, each.text) for each in found]
    assert len({each.at for each in told}) == 1


def test_a_sync_pool_is_asked_from_another_thread_and_the_record_has_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("OUTRIDER_RUNS", raising=False)
    with Pool(provider=Local(), nodes=2, worker=Worker(2, kind="thread"), console="silent", run="hung") as pool:
        results: list[list[int]] = []
        thread = threading.Thread(target=lambda: results.append(hang(str(tmp_path)) @ pool))
        thread.start()
        wait_for_ranks(tmp_path, 2)
        single = hang(str(tmp_path)) > pool
        while len(found := [each for each in pool.stacks() if each.where]) < 3 or not is_stuck(found):
            time.sleep(0.005)
        (tmp_path / "end").touch()
        thread.join()
        assert results == [[0, 1]]
        assert single.result() == 0
    assert sorted((each.generation, each.rank) for each in found) == [(0, 0), (1, 0), (1, 1)]
    (record,) = (tmp_path / "state" / "runs").glob("*-hung-*")
    files = sorted(path.name.partition("Z-")[2] for path in (record / "stacks").iterdir())
    assert {"rank-000.txt", "rank-001.txt"} <= {*files}
    assert any(name.startswith("node-00") and name.endswith("-job-2.txt") for name in files)
    newest = max((record / "stacks").glob("*-rank-001.txt"))
    assert newest.read_text().startswith("hang: rank 1 of 2, generation 1, node ")
    assert "in stuck" in newest.read_text()
    assert "stack_taken" not in (record / "events.jsonl").read_text()
