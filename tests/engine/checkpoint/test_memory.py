"""Checkpoints in memory: what is lost with a node, with two, with the one in its place; and what is asked wrongly."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider import Checkpoint, Local, Nodes, Pool, SpecError, checkpoint, compute, instance_info, plugins
from outrider.engine.checkpoint.snapshot import CopyMemory, Snapshot
from outrider.engine.transport.memory_checkpoints import NodeReplicas
from outrider.testing.fault_injection import processes

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("own_state")]

PATIENCE_S = 60.0
RANKS, SIZE = 4, 20_000


def opened(tmp_path: Path, nodes: Nodes, **options: Any) -> Pool:
    return Pool(provider=Local(), nodes=nodes, console="silent", checkpoints=tmp_path / "kept", **options)


def fresh(tmp_path: Path, name: str) -> Path:
    """A folder for a training's marks; it finds no checkpoints of one before."""
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    (tmp_path / name).mkdir()
    return tmp_path / name


async def nothing_left(descriptors: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any("memfd:checkpoint" in target(each) for each in descriptors.iterdir()):
            await asyncio.sleep(0.01)


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


@compute(on_loss="restart", retries=20, max_restarts=20)
def trains(marks: str, stops: Sequence[int], durable: int, ballast: int = 0) -> list[tuple[int, int, int]]:
    """In step, by files. In generation g each rank waits after step ``stops[g - 1]`` to be killed; the last one ends.

    Returns what the rank has resumed from: (generation, step, its own total).
    """
    info, folder = instance_info(), Path(marks)
    saving = checkpoint("run", every=1, memory=2, durable=durable, timeout=60.0)
    start, state = saving.load()
    total = np.zeros(SIZE) if state is None else state["total"]
    assert state is None or (state["step"], state["rank"]) == (start, info.rank)
    stop = stops[info.generation - 1]
    for step in range(start + 1, stop + 1):
        total += step * (info.rank + 1)
        saving.save(step, {"total": total, "step": step, "rank": info.rank, "ballast": bytes(ballast)})
        mark(folder, f"{info.generation}.{step}.{info.rank}", str(os.getpid()))
        while len(list(folder.glob(f"{info.generation}.{step}.*"))) < info.world_size:
            time.sleep(0.001)
        wait_for_room(saving)
    if info.generation < len(stops):
        saving.wait()  # for the storage
        mark(folder, f"waits-{info.generation}.{info.rank}", str(os.getpid()))
        time.sleep(10 * PATIENCE_S)
    assert (total == total[0]).all()
    return info.generation, start, int(total[0])


def wait_for_room(saving: Checkpoint) -> None:
    """Wait until the next save is not left out, however busy the computer is: then the latest is on both nodes."""
    memory = saving._in_memory
    assert memory is not None
    ends = time.monotonic() + PATIENCE_S
    while (memory._handing_over or not any(slot.free for slot in memory._slots)) and time.monotonic() < ends:
        time.sleep(0.001)


def mark(folder: Path, name: str, text: str) -> None:
    """Whole, or not at all."""
    (folder / f".{name}").write_text(text)
    (folder / f".{name}").rename(folder / name)


async def waiting(folder: Path, generation: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while len(list(folder.glob(f"waits-{generation}.*"))) < RANKS:
            await asyncio.sleep(0.005)


def kill_nodes(pool: Pool, *ranks: int) -> None:
    for node in pool.snapshot().nodes:
        if node.rank in ranks:
            assert node.facts is not None
            for part in ("group", "pid"):
                if (process := processes.owned(int(node.facts[part]))) is not None:
                    processes.send(process, signal.SIGKILL)


def stored(tmp_path: Path) -> list[int]:
    return checkpoint("run", root=tmp_path / "kept").steps()


def wanted(stop: int) -> list[int]:
    return [sum(range(stop + 1)) * (rank + 1) for rank in range(RANKS)]


async def trained(pool: Pool, marks: Path, kills: Sequence[Sequence[int]], stops: Sequence[int], durable: int) -> int:
    """The step from which the last generation has resumed; all ranks are right."""
    training = asyncio.ensure_future(pool.broadcast(trains(str(marks), stops, durable)))
    try:
        for generation, ranks in enumerate(kills, 1):
            await waiting(marks, generation)
            kill_nodes(pool, *ranks)
        async with asyncio.timeout(PATIENCE_S):
            ended: list[Any] = await training
    finally:
        training.cancel()
    assert {generation for generation, _, _ in ended} == {len(stops)}
    assert [total for _, _, total in ended] == wanted(stops[-1])
    (step,) = {start for _, start, _ in ended}
    return step


async def test_what_is_lost_comes_from_memory_and_where_both_copies_are_gone_from_the_storage(tmp_path: Path) -> None:
    """In one pool, as opening it takes longest. A rank's other copy is on the node of the next rank."""
    async with opened(tmp_path, Nodes(RANKS)) as pool:
        step = await trained(pool, fresh(tmp_path, "again"), [[1], [1]], [7, 12, 14], durable=1000)
        assert step == 12, "one node is lost, and then the one in its place"
        step = await trained(pool, fresh(tmp_path, "apart"), [[0, 2]], [12, 14], durable=5)
        assert step == 12, "two are lost, each with the copy of another rank's"
        step = await trained(pool, fresh(tmp_path, "next"), [[2, 3]], [12, 14], durable=5)
        assert step == 10, "two are lost that had both copies of a rank's state"

        marks = fresh(tmp_path, "rank")
        training = asyncio.ensure_future(pool.broadcast(trains(str(marks), [7, 9], 1000)))
        await waiting(marks, 1)
        os.kill(int((marks / "waits-1.2").read_text()), signal.SIGKILL)
        async with asyncio.timeout(PATIENCE_S):
            ended = await training
        assert {start for _, start, _ in ended} == {7}, "a process alone is lost"
        assert [total for _, _, total in ended] == wanted(9)
        assert stored(tmp_path) == [9], "MEMORY-8: saved in memory, and the training is over"

        step = await trained(pool, fresh(tmp_path, "last"), [[1]], [7, 7], durable=1000)
        assert step == 7
        assert stored(tmp_path) == [7], "MEMORY-8: resumed from memory with nothing left to do"

        assert (await pool.broadcast(trains(str(fresh(tmp_path, "end")), [5], 1000)))[0] == (1, 0, 15)
        (facts, *_) = [node.facts for node in pool.snapshot().nodes if node.state == "ready"]
        assert facts is not None
        await nothing_left(Path(f"/proc/{facts['pid']}/fd"))


@compute(on_loss="restart", retries=20, max_restarts=20)
def hurries(marks: str) -> tuple[int, int]:
    """Save at each step, in lockstep by files, for as long as the copies let it. The second generation ends at once."""
    info, folder = instance_info(), Path(marks)
    saving = checkpoint("run", every=1, memory=2, durable=1000, timeout=60.0)
    start, _ = saving.load()
    step = start
    while info.generation == 1:
        step += 1
        saving.save(step, {"step": step})
        mark(folder, f"{step}.{info.rank}", "")
        while len(list(folder.glob(f"{step}.*"))) < info.world_size:
            time.sleep(0.001)
    return info.generation, start


async def test_where_copies_are_slow_a_save_waits_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = NodeReplicas.get

    async def slow(*args: Any, **options: Any) -> Any:
        await asyncio.sleep(0.1)
        return await get(*args, **options)

    monkeypatch.setattr(NodeReplicas, "get", slow)
    marks = fresh(tmp_path, "slow")
    async with opened(tmp_path, Nodes(2)) as pool:
        training = asyncio.ensure_future(pool.broadcast(hurries(str(marks))))
        async with asyncio.timeout(PATIENCE_S):
            while not (marks / "6.0").exists():
                await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            kill_nodes(pool, 1)
            ended = await training
    # Not those that begin with a dot: a rank may have been killed between its mark and that mark's name.
    saved = [max(int(each.name.split(".")[0]) for each in marks.glob(f"[0-9]*.{rank}")) for rank in range(2)]
    assert {generation for generation, _ in ended} == {2}
    (start,) = {start for _, start in ended}
    assert min(saved) - 1 <= start <= max(saved)


@pytest.mark.nightly
async def test_other_computers_get_their_copies_through_the_client(tmp_path: Path) -> None:
    async with Pool(
        provider=Local(as_remote=True), nodes=RANKS, console="silent", checkpoints=tmp_path / "kept"
    ) as pool:
        assert await trained(pool, fresh(tmp_path, "again"), [[1], [2, 0]], [7, 12, 14], durable=1000) == 12


@compute(max_restarts=2)
def sharded(marks: str) -> tuple[int, int, list[float]]:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    info = instance_info()
    mesh = init_device_mesh("cpu", (info.world_size,))
    weights = distribute_tensor(torch.zeros(10, 4), mesh, [Shard(0)])
    assert isinstance(weights, DTensor)
    saving = checkpoint("run", every=1, memory=2, durable=1000, timeout=60.0)
    start, state = saving.load(into={"weights": weights})
    assert state is None or state["weights"] is weights
    for step in range(start + 1, 8):
        weights += step
        saving.save(step, {"weights": weights})
        wait_for_room(saving)
        torch.distributed.barrier()
        if (step, info.generation, info.rank) == (5, 1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
    return info.generation, start, weights.to_local()[:, 0].tolist()


@pytest.mark.nightly
async def test_each_rank_finds_its_own_shard(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    torch = [plugins.torch()]
    async with Pool(provider=Local(), nodes=2, plugins=torch, console="silent", checkpoints=tmp_path / "kept") as pool:
        async with asyncio.timeout(PATIENCE_S):
            assert await pool.broadcast(sharded(str(tmp_path))) == [(2, 5, [28.0] * 5)] * 2


async def test_fewer_ranks_go_on_with_a_state_that_is_not_sharded(tmp_path: Path) -> None:
    async with opened(tmp_path, Nodes(RANKS, min=3), replace_timeout=0.5) as pool:
        async with asyncio.timeout(PATIENCE_S):
            while [node.state for node in pool.snapshot().nodes] != ["ready"] * RANKS:
                await asyncio.sleep(0.01)
        training = asyncio.ensure_future(pool.broadcast(trains(str(tmp_path), [7, 9], 1000)))
        await waiting(tmp_path, 1)
        kill_nodes(pool, 3)
        async with asyncio.timeout(PATIENCE_S):
            ended = await training
    assert {start for _, start, _ in ended} == {7}
    assert [total for _, _, total in ended] == wanted(9)[: len(ended)]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"memory": 0}, "memory takes"),
        ({"memory": True}, "memory takes"),
        ({"memory": 2, "every": 0.5}, "every counts steps"),
        ({"memory": 2, "every": 0}, "every counts steps"),
        ({"memory": 2, "durable": 0}, "at least 1 step"),
        ({"durable": 5}, "durable goes with memory"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        checkpoint("run", root=tmp_path, **options)


class OneState:
    """Stands for the memory of a rank, which has kept one state, and no more."""

    def __init__(self, step: int) -> None:
        self._step = step

    def newest(self) -> tuple[int, Snapshot]:
        return self._step, Snapshot({"step": self._step}, CopyMemory())

    def nothing(self, *_: object) -> None:
        pass

    storing = stored = close = nothing


def close_with_a_newer_state_in_memory(root: Path) -> None:
    saving: Any = checkpoint("run", root=root)
    saving.save(3, {"step": 3}, force=True)
    saving._in_memory, saving._only_in_memory = OneState(7), True
    saving.close()
    assert checkpoint("run", root=root).load() == (7, {"step": 7}), "MEMORY-8"


def test_a_newer_state_in_memory_is_stored_at_the_end(tmp_path: Path) -> None:
    close_with_a_newer_state_in_memory(tmp_path)


def test_storing_at_the_end_falls_without_its_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MEMORY-8"""
    monkeypatch.setattr(Checkpoint, "_store_newest", lambda _: None)
    with pytest.raises(AssertionError, match="MEMORY-8"):
        close_with_a_newer_state_in_memory(tmp_path)


def test_a_state_of_a_rank_that_failed_is_not_stored(tmp_path: Path) -> None:
    saving: Any = checkpoint("run", root=tmp_path)
    saving._in_memory, saving._only_in_memory = OneState(7), True
    saving.close(failed=True)
    assert checkpoint("run", root=tmp_path).load() == (0, None)


def test_outside_of_a_pool_nothing_is_kept_in_memory(tmp_path: Path) -> None:
    saving = checkpoint("run", root=tmp_path, memory=2, durable=2)
    assert [saving.save(step, step) for step in (1, 2, 3, 4)] == [False, True, False, True]
    saving.close()
    assert checkpoint("run", root=tmp_path).load() == (4, 4)
