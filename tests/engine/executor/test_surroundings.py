"""What a node watches and keeps besides its tasks: notices, ports, memory, its fork server."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outrider.engine.executor import context, notices, process
from outrider.engine.executor.board import Board
from outrider.engine.executor.freeports import FEW, KEPT, FreePorts
from outrider.engine.executor.memory import OomKills
from outrider.engine.wire import messages as m
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio


# --- notices ---------------------------------------------------------------------------------------------------------


async def test_a_notice_reaches_the_client_and_the_running_task(make: Any) -> None:
    def wait() -> float:
        while (at := context.notice()) is None:
            time.sleep(0.001)
        return at

    client = await make()
    attempt = client.run(wait)
    await client.turn()
    client.home.notice("signal", 30.0)
    assert await client.expect(m.Notice) == m.Notice("signal", 30.0)
    assert 25 < client.result(await client.answer(attempt)) - time.time() < 31
    client.home.notice("signal", None)
    assert await client.until(lambda: m.Notice("signal", None) in client.heard)
    assert await client.call(context.notice) is None


async def test_a_file_is_a_notice_until_it_is_removed(make: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(notices, "POLL_S", 0.005)
    client = await make()
    file = tmp_path / "preempt"
    file.write_text("120")
    assert await client.until(lambda: m.Notice("file", 120.0) in client.heard)
    file.write_text("")  # still being written: nothing new
    file.write_text("60\n")
    assert await client.until(lambda: m.Notice("file", 60.0) in client.heard)
    file.unlink()
    assert await client.until(lambda: m.Notice("file", None) in client.heard)
    assert len([x for x in client.heard if isinstance(x, m.Notice)]) == 3


async def test_a_source_of_ones_own(make: Any) -> None:
    class Cloud:
        name = "cloud"

        async def watch(self, notice: Callable[[float | None], None]) -> None:
            notice(5.0)
            await asyncio.Event().wait()

    client = await make(sources=[Cloud()])
    assert await client.expect(m.Notice) == m.Notice("cloud", 5.0)


async def test_a_notice_given_while_the_client_is_away_is_kept(make: Any) -> None:
    client = await make()
    client.cut()
    client.home.notice("signal", 9.0)
    await client.connect()
    assert await client.expect(m.Notice) == m.Notice("signal", 9.0)


def test_the_board_is_seen_across_a_fork() -> None:
    board = Board()
    assert board.read() is None
    pid = os.fork()
    if pid == 0:
        board.post(12.5)
        os._exit(0)
    os.waitpid(pid, 0)
    assert board.read() == 12.5
    board.close()


# --- ports -----------------------------------------------------------------------------------------------------------


async def test_a_generations_port_is_let_go_for_its_head_and_replaced(make: Any) -> None:
    def listen(port: int) -> bool:
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))
            sock.listen()
        return True

    client = await make(connect=False)
    welcome = await client.connect()
    with pytest.raises(OSError, match="in use"):
        listen(welcome.ports[0])
    used = welcome.ports[: KEPT - FEW]
    for port in used:
        world = msgpack.packb({"head_addr": "127.0.0.1", "head_port": port})
        assert await client.call(listen, port, world=world, flags=RunFlag.HEAD) is True
    more = (await client.expect(m.Ports)).ports
    assert len(more) == len(used)
    assert not {*more} & {*welcome.ports}
    client.cut()
    assert set((await client.connect()).ports) == {*welcome.ports[len(used) :], *more}


def test_another_nodes_port_of_the_same_number_is_kept() -> None:
    ports = FreePorts("10.0.0.1")
    kept = ports.open()
    assert ports.release_for(msgpack.packb({"head_addr": "10.0.0.2", "head_port": kept[0]})) == ()
    assert ports.open() == kept
    ports.close()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_kills_for_memory_are_counted_since_the_last_question(tmp_path: Path) -> None:
    counter = tmp_path / "vmstat"
    counter.write_text("pgfault 5\noom_kill 3\n")
    kills = OomKills(counter, tmp_path / "missing")
    assert not kills.news()
    counter.write_text("pgfault 9\noom_kill 4\n")
    assert kills.news()
    assert not kills.news()


CGROUPS = Path("/sys/fs/cgroup/memory")


@pytest.mark.skipif(not os.access(CGROUPS / "cgroup.procs", os.W_OK), reason="needs a memory cgroup (v1) and root")
async def test_a_task_killed_for_memory_says_so(make: Any) -> None:
    group = CGROUPS / f"outrider-test-{os.getpid()}"

    def hog(directory: str) -> int:
        (Path(directory) / "cgroup.procs").write_text(str(os.getpid()))
        return len(bytearray(200_000_000))

    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text("50000000")
        client = await make()
        ended = await client.call(hog, str(group))
        assert (ended.cause, ended.detail) == (Cause.MEMORY, "the kernel killed its process: out of memory")
    finally:
        group.rmdir()


# --- the fork server -------------------------------------------------------------------------------------------------


async def test_an_idle_worker_that_dies_is_replaced(make: Any) -> None:
    client = await make()
    pid = await client.call(os.getpid)
    os.kill(pid, 9)
    while Path(f"/proc/{pid}").exists():
        await client.turn()
    assert await client.call(os.getpid) != pid


async def test_what_a_task_leaves_running_ends_with_its_worker(make: Any) -> None:
    def leave() -> int:
        if (pid := os.fork()) == 0:
            os.setsid()
            time.sleep(60)
        return pid

    client = await make()
    worker, left = await client.call(os.getpid), await client.call(leave)
    assert Path(f"/proc/{left}").exists()
    assert (await client.call(os._exit, 0)).cause is Cause.EXIT
    assert not Path(f"/proc/{worker}").exists()
    assert not Path(f"/proc/{left}").exists()


def test_children_are_found_with_and_without_the_kernels_lists() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    try:
        assert pid in process.children(os.getpid())
        assert pid in process._children_by_search(os.getpid())
    finally:
        process.kill_tree(pid)
        os.waitpid(pid, 0)
    assert pid not in process.descendants(os.getpid())
