"""What a node watches and keeps besides its tasks: ports, its fork server."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import msgpack
import pytest

from outrider.engine.node import forkserver, freeports, process
from outrider.engine.node.freeports import FEW, KEPT, FreePorts
from outrider.engine.wire import messages as m
from outrider.engine.wire.messages import Cause, RunFlag

pytestmark = pytest.mark.anyio


# --- views ------------------------------------------------------------------------------------------------------------


async def test_a_rank_sees_the_view_that_came_before_its_order(make: Any) -> None:
    """Found by the simulator: what is read at once is obeyed before anything is delivered; the last view counted."""

    def peers() -> list[int]:
        import json

        return [peer["rank"] for peer in json.loads(os.environ["COMPUTE_POOL"])["peers"]]

    def view(nodes: int) -> m.View:
        named = [{"rank": n, "node": n, "hostname": "", "address": "", "port": 0} for n in range(nodes)]
        return m.View(msgpack.packb({"peers": named, "node": 0, "total_nodes": nodes}))

    client = await make()
    world = msgpack.packb({"generation": 1, "world_size": 2, "rank": 0, "head_addr": "", "head_port": 1})
    rank, alone = client.order(peers, world=world), client.order(peers)
    client.send(view(2), rank, view(3), alone)
    assert client.result(await client.answer(rank.attempt)) == [0, 1]
    assert client.result(await client.answer(alone.attempt)) == [0, 1, 2]


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
        world = msgpack.packb({"rank": 1, "peers": [{"port": 0}, {"port": port}]})
        assert await client.call(listen, port, world=world, flags=RunFlag.LISTENS) is True
    first, ports = await client.expect(m.Ports)
    assert (first, len(ports)) == (len(used), KEPT)
    assert ports[:FEW] == welcome.ports[len(used) :]
    client.cut()
    assert (await client.connect()).ports == ports


async def test_port_of_a_rank_that_is_killed_unread_is_let_go(make: Any) -> None:
    """A rank that waits for its worker to start is ended: nobody would ever have let its port go."""
    client = await make(connect=False, kind="process")
    welcome = await client.connect()
    taken, unsent, last = welcome.ports[:3]
    ranks = [
        client.order(os.getpid, world=msgpack.packb({"head_port": port}), flags=RunFlag.LISTENS | RunFlag.FRESH)
        for port in (taken, last)
    ]
    client.send(*ranks, *(m.Kill(rank.attempt) for rank in ranks))
    for rank in ranks:
        assert isinstance(await client.answer(rank.attempt), m.Ended)
    client.send(m.PortsTaken(3, (unsent,)))
    await client.until(lambda: m.Ports in map(type, client.heard))
    assert client.heard[-1].first == 3
    client.heard.clear()
    with socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(("127.0.0.1", unsent))
    client.send(m.PortsTaken(3, ()))
    await client.expect(m.Ports)
    for port in (taken, unsent, last):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", port))


def test_kept_ports_are_none_that_the_kernel_gives_to_whoever_connects() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    one, two = FreePorts(), FreePorts()
    try:
        kept = [*one.open(), *two.open()]
        assert len(set(kept)) == 2 * KEPT, "two nodes of one computer keep different ones"
        assert not [port for port in kept if low <= port <= high]
    finally:
        one.close()
        two.close()


def test_where_all_ports_are_the_kernels_it_is_asked_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeports, "_ephemeral_ports", lambda: range(1024, 65536))
    ports = FreePorts()
    try:
        assert len(set(ports.open())) == KEPT
    finally:
        ports.close()


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr(freeports, "PORTS", [port])
        monkeypatch.setattr(freeports, "_ephemeral_ports", lambda: range(0))
        ports = FreePorts()
        try:
            assert port not in ports.open()
        finally:
            ports.close()


# --- the fork server -------------------------------------------------------------------------------------------------


async def test_an_idle_worker_that_dies_is_replaced(make: Any) -> None:
    client = await make()
    pid = await client.call(os.getpid)
    os.kill(pid, 9)
    while Path(f"/proc/{pid}").exists():
        await client.turn()
    assert await client.call(os.getpid) != pid


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the fork server that comes after."""
    monkeypatch.setattr(forkserver, "ENDS_S", 0.5)
    monkeypatch.setattr(forkserver, "STRAYS_S", 0.2)


FREEZER = Path("/sys/fs/cgroup/freezer")


@pytest.mark.skipif(not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="needs a freezer cgroup (v1) and root")
async def test_a_task_that_the_kernel_does_not_let_go_of_counts_as_ended(
    impatient: None,
    make: Any,
) -> None:
    group = FREEZER / f"outrider-test-{os.getpid()}"

    def freeze(directory: str) -> None:
        (Path(directory) / "cgroup.procs").write_text(str(os.getpid()))
        (Path(directory) / "freezer.state").write_text("FROZEN")  # SIGKILL waits until it is thawed

    group.mkdir()
    try:
        client = await make()
        pid = await client.call(os.getpid)
        attempt = client.run(freeze, str(group))
        while (group / "freezer.state").read_text() != "FROZEN\n":
            await client.turn()
        client.send(m.Kill(attempt))
        ended = await client.answer(attempt)
        assert ended.cause is Cause.KILLED
        assert str(pid) in ended.detail
        assert await client.call(os.getpid) != pid
    finally:
        (group / "freezer.state").write_text("THAWED")
        while (group / "cgroup.procs").read_text():
            await asyncio.sleep(0.001)
        group.rmdir()


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


@pytest.fixture
def spared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server may not signal `sleep`, as if it had become another user's."""
    kill = process._signal
    monkeypatch.setattr(
        process, "_signal", lambda pid, number: None if process.name(pid) == "sleep" else kill(pid, number)
    )
    monkeypatch.setattr(forkserver, "STRAYS_S", 0.2)


async def test_what_cannot_be_killed_is_told_and_holds_up_no_other_death(spared: None, make: Any) -> None:
    def leave(status: int, program: str) -> None:
        subprocess.Popen([program, "4545"])
        os._exit(status)

    client = await make()
    ended = await client.call(leave, 3, "sleep")
    said = re.fullmatch(r"what it had started cannot be killed and goes on: (\d+) \(sleep\)", ended.detail)
    assert (ended.cause, ended.code) == (Cause.EXIT, 3)
    assert said is not None
    try:
        assert (await client.call(os._exit, 4))[:4] == m.Ended(2, Cause.EXIT, 4, "")[:4]
        assert ended.ago_us >= 200_000  # it died that long before the rest was given up
    finally:
        os.kill(int(said[1]), signal.SIGKILL)


def test_a_fork_server_that_stands_still_as_it_ends_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds that its time is over."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            server: Any = forkserver.ForkServer.__new__(forkserver.ForkServer)
            server._pid, (server._woken, _) = os.getpid(), os.pipe()
            if (child := os.fork()) == 0:
                signal.pause()
            os.write(tells, str(child).encode())
            times = itertools.count(0, 60)
            monkeypatch.setattr(time, "monotonic", lambda: float(next(times)))
            server._end()
        finally:
            os._exit(99)
    os.close(tells)
    child = int(os.read(told, 20))
    os.close(told)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not Path(f"/proc/{child}").exists()


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


@pytest.mark.parametrize("ended", [0, -1], ids=["the first thread", "the last thread"])
def test_children_are_found_though_a_thread_ends_meanwhile(monkeypatch: pytest.MonkeyPatch, ended: int) -> None:
    threads, walks = process._threads, list[int]()

    def first_with_one_that_ends(pid: int) -> list[Path]:
        walks.append(pid)
        found = threads(pid)
        if len(walks) == 1:
            found.insert(ended % (len(found) + 1), Path(f"/proc/{pid}/task/{2**22 + 1}"))
        return found

    monkeypatch.setattr(process, "_threads", first_with_one_that_ends)
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
    try:
        assert pid in process.children(os.getpid())
        assert len(walks) >= 2
    finally:
        process.kill_tree(pid)
        os.waitpid(pid, 0)
