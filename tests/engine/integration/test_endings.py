"""kill -9 of a task's process, of a node, of the client; cancellation; and nothing that is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from outrider import Local, NodeLost, Pool, PoolClosed, TaskKilled, VersionMismatch, compute, instance_info
from outrider.actors import fleet_controller

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0


@compute
def pid() -> int:
    return os.getpid()


@compute
def hold(folder: str) -> int:
    """Leave a file for each attempt that has begun, and wait for one that is named "go"."""
    info = instance_info()
    (Path(folder) / f"{info.job}-{info.attempt}").touch()
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    return info.attempt


async def begun(folder: Path, count: int) -> None:
    while len(list(folder.iterdir())) < count:
        await asyncio.sleep(0.01)


def descendants(root: int) -> set[int]:
    """Every living process below ``root``."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), []):
            found.add(child)
            todo.append(child)
    return found


@pytest.fixture
def nothing_left() -> Iterator[None]:
    before = descendants(os.getpid())
    yield
    deadline = time.monotonic() + PATIENCE_S
    while (left := descendants(os.getpid()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left, [Path(f"/proc/{p}/cmdline").read_bytes() for p in left if Path(f"/proc/{p}").exists()]


async def test_a_killed_process_is_a_typed_error(pool: Pool, tmp_path: Path) -> None:
    victim = await pool.run(pid(), on=1)
    job = pool.submit(hold(str(tmp_path)), on=1)
    await begun(tmp_path, 1)
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(TaskKilled) as caught:
        await asyncio.wait_for(job, PATIENCE_S)
    assert caught.value.signal == signal.SIGKILL
    assert await pool.run(pid(), on=1) != victim


@pytest.mark.usefixtures("nothing_left")
async def test_a_killed_nodes_task_runs_again_elsewhere(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        jobs = [pool.submit(hold(str(tmp_path)), on=rank) for rank in range(2)]
        await begun(tmp_path, 2)
        group = next(int(node.facts["group"]) for node in pool.snapshot().nodes if node.facts)
        os.killpg(group, signal.SIGKILL)
        await begun(tmp_path, 3)
        (tmp_path / "go").touch()
        assert sorted([await job for job in jobs]) == [1, 2]  # the lost one is on its second attempt
        while pool.snapshot().ready < 2:  # the node is replaced
            await asyncio.sleep(0.01)
        assert len(await pool.broadcast(pid())) == 2


@pytest.mark.usefixtures("nothing_left")
async def test_at_most_once_is_lost_with_its_node(tmp_path: Path) -> None:
    async with Pool(nodes=1, console="silent") as pool:
        job = pool.submit(hold(str(tmp_path)).with_(retry="never"))
        await begun(tmp_path, 1)
        os.killpg(int(pool.snapshot().nodes[0].facts["group"]), signal.SIGKILL)  # type: ignore[index]
        with pytest.raises(NodeLost):
            await job


@pytest.mark.usefixtures("nothing_left")
async def test_a_broadcast_that_loses_a_rank_runs_again_on_a_new_generation(tmp_path: Path) -> None:
    @compute(on_loss="restart")
    def ranks(marks: str) -> tuple[int, int, int]:
        info = instance_info()
        if info.generation == 1:
            (Path(marks) / str(info.rank)).write_text(str(os.getpid()))
            time.sleep(60)
        return info.generation, info.rank, info.world_size

    async with Pool(nodes=4, console="silent") as pool:
        running = asyncio.ensure_future(pool.broadcast(ranks(str(tmp_path))))
        while len(list(tmp_path.iterdir())) < 4:
            await asyncio.sleep(0.01)
        head = next(node for node in pool.snapshot().nodes if node.node == 0)
        assert head.facts is not None
        os.killpg(int(head.facts["group"]), signal.SIGKILL)  # rank 0's machine
        assert await running == [(2, rank, 4) for rank in range(4)]


async def test_cancelling_the_awaiter_ends_the_task_and_its_children(pool: Pool) -> None:
    @compute
    def spawns(path: str) -> None:
        child = subprocess.Popen(["sleep", "4343"])
        Path(path).write_text(str(child.pid))
        time.sleep(60)

    path = Path(os.environ["OUTRIDER_STATE"]) / "child"
    waiting = asyncio.ensure_future(pool.run(spawns(str(path)), on=0))
    while not path.exists() or not path.read_text():
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await pool.run(pid(), on=0)  # the slot is free again
    assert not Path(f"/proc/{path.read_text()}").exists()
    path.unlink()


@pytest.mark.usefixtures("nothing_left")
async def test_leaving_the_block_ends_what_runs(tmp_path: Path) -> None:
    async with Pool(nodes=2, console="silent") as pool:
        job = pool.submit(hold(str(tmp_path)))
        await begun(tmp_path, 1)
    with pytest.raises(PoolClosed):
        await job


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("after_s", [0.0, 0.005, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3])
async def test_cancelled_half_way_in_it_leaves_nothing(after_s: float) -> None:
    async def enter() -> None:
        async with Pool(nodes=3, console="silent"):
            await asyncio.sleep(60)

    before = asyncio.all_tasks()
    entering = asyncio.ensure_future(enter())
    await asyncio.sleep(after_s)
    entering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await entering
    assert asyncio.all_tasks() <= before


MAIN_ENDS = """
import asyncio
from outrider import Pool

async def opens(opened):
    async with Pool(console="silent"):
        opened.set()
        await asyncio.sleep(600)

async def main():
    opened = asyncio.Event()
    opening = asyncio.create_task(opens(opened))
    await opened.wait()

asyncio.run(main())
"""


def test_a_program_ends_that_ends_before_its_pool(tmp_path: Path) -> None:
    """`asyncio.run` then cancels every task there is: the pool's own too."""
    environment = {**os.environ, "OUTRIDER_STATE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", MAIN_ENDS], env=environment, check=True, timeout=60)
    assert list(tmp_path.rglob("*")) == [tmp_path / "local"]


@pytest.mark.usefixtures("nothing_left")
async def test_another_version_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloudpickle, "__version__", "0.9")  # here; the nodes' processes have the true one
    monkeypatch.setattr(fleet_controller, "BACK_OFF_S", 0.01)  # between the nodes that are tried
    with pytest.raises(VersionMismatch, match="same versions") as caught:
        async with Pool(nodes=2, console="silent"):
            pytest.fail("a node with another cloudpickle was taken")
    assert [(what, here) for what, here, _ in caught.value.versions] == [("cloudpickle", "0.9")]


CLIENT = """
import asyncio, os, signal, sys, time, subprocess
from outrider import Pool, compute

signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background jobs ignore

@compute
def work(marks):
    import subprocess, tempfile, time
    subprocess.Popen(["sleep", "4444"], start_new_session=True)
    tempfile.mkstemp(dir=marks)
    time.sleep(600)

async def main():
    async with Pool(nodes=3, console="silent") as pool:
        for _ in range(3):
            pool.submit(work(sys.argv[1]))
        while len(os.listdir(sys.argv[1])) < 3:
            await asyncio.sleep(0.01)
        print("up", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_killed_client_leaves_no_process_and_no_file(sent: signal.Signals, tmp_path: Path) -> None:
    (marks := tmp_path / "marks").mkdir()
    (state := tmp_path / "state").mkdir()
    environment = {**os.environ, "OUTRIDER_STATE": str(state)}
    command = [sys.executable, "-c", CLIENT, str(marks)]
    client = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert client.stdout is not None
    assert client.stdout.readline() == b"up\n"
    below = descendants(client.pid)
    assert len(below) > 9
    client.send_signal(sent)
    client.wait(timeout=PATIENCE_S)
    client.stdout.close()
    deadline = time.monotonic() + PATIENCE_S
    while (alive := {p for p in below if is_alive(p)}) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive
    assert list(state.rglob("*")) == [state / "local"]


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
