"""Workers that cannot be started: the executor says why, and ends, instead of trying for ever."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from outrider.engine.node import server
from outrider.engine.wire import messages as m

pytestmark = pytest.mark.anyio


def _remove_the_folder() -> None:
    shutil.rmtree(Path.cwd())


def _remove_it_for_good() -> None:
    folder = Path.cwd()
    folder.rmdir()
    folder.touch()  # no folder can be made there


def _exit() -> None:
    os._exit(7)


def test_workers_leave_the_cores_to_other_nodes_only_where_these_outnumber_them():
    cores = len(os.sched_getaffinity(0))
    assert server.others_start_s(cores) == 0.0
    assert server.others_start_s(cores + 1) > server.NODE_START_S
    assert server.others_start_s(8 * cores) == pytest.approx(8 * server.NODE_START_S)


async def test_where_nodes_outnumber_cores_a_worker_is_forked_for_the_first_task(make, monkeypatch):
    monkeypatch.setattr(server, "NODE_START_S", 1000.0)
    client = await make(sharing=100 * len(os.sched_getaffinity(0)))
    await client.turn()
    assert not client.server._workers._connections
    assert await client.call(os.getpid)
    assert client.server._workers._connections


async def test_it_is_forked_without_a_task_when_the_others_have_had_their_time(make, monkeypatch):
    monkeypatch.setattr(server, "NODE_START_S", 0.003)  # times 100
    client = await make(sharing=100 * len(os.sched_getaffinity(0)))
    async with asyncio.timeout(60):
        while not client.server._workers._connections:
            await client.turn()
    assert await client.call(os.getpid)


async def test_a_folder_that_a_task_removed_is_made_again(make):
    client = await make()
    await client.call(_remove_the_folder)
    assert isinstance(await client.call(_exit), m.Ended)
    assert Path(await client.call(os.getcwd)).is_dir()


async def test_where_none_can_be_started_the_executor_says_why_and_ends(make, tmp_path):
    client = await make()
    await client.call(_remove_it_for_good)
    await client.answer(client.run(_exit))
    waiting = client.run(os.getcwd, flags=int(m.RunFlag.ANNOUNCE))
    unfit = await client.expect(m.Unfit)
    assert "no worker could be started there, 5 times in a row (FileExistsError: " in unfit.reason
    assert str(tmp_path / "work") in unfit.reason
    assert client.of(waiting, m.Started, m.Output, m.Done, m.Failed, m.Ended) == []  # it never began
    await client.server.close()
    assert client.server.ended.is_set()


@pytest.mark.parametrize("flags", [m.RunFlag.FRESH, m.RunFlag.FRESH | m.RunFlag.BESIDE])
async def test_so_it_does_where_each_attempt_needs_a_new_one(make, flags):
    client = await make()
    await client.call(_remove_it_for_good)
    waiting = client.run(os.getcwd, flags=int(flags))
    await client.expect(m.Unfit)
    assert client.of(waiting, m.Done, m.Failed, m.Ended) == []


async def test_ranks_wait_while_none_is_started(make):
    client = await make(slots=2)
    for rank in [client.run(os.getcwd, world=b"\x80") for _ in range(2)]:
        await client.answer(rank)  # both workers are there
    await client.call(_remove_it_for_good)
    ranks = [client.run(_exit, world=b"\x80") for _ in range(3)]
    assert "FileExistsError" in (await client.expect(m.Unfit)).reason

    def ended() -> int:
        return sum(bool(client.of(rank, m.Ended)) for rank in ranks)

    await client.until(lambda: ended() >= 2)
    assert ended() == 2  # those that warm workers had
