"""Slots, ranks and sizes: who runs beside whom, and what a resized pool is."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import ClassVar

import anyio
import pytest

from outrider import Nodes, Plugin, Pool, SpecError, TaskTimeout, Worker, compute, instance_info, plugins
from outrider.actors.interfaces import NodeFacts
from outrider.engine.api.plugin import Ports

pytestmark = pytest.mark.anyio


@compute
def reduced() -> tuple[int, int, int, int, float]:
    import torch
    import torch.distributed as dist

    info = instance_info()
    total = torch.tensor([float(info.rank)])
    dist.all_reduce(total)
    return info.rank, info.node, info.local_rank, info.world_size, float(total)


@compute
def scheduling_policy() -> int:
    return os.sched_getscheduler(0)


@compute
def meet(directory: str, number: int) -> tuple[int, int]:
    """Returns when ``number`` tasks have met in ``directory``."""
    info = instance_info()
    (Path(directory) / f"{info.node}.{info.worker}").touch()
    deadline = time.monotonic() + 60
    while len(list(Path(directory).iterdir())) < number:
        if time.monotonic() > deadline:
            raise TimeoutError("the others did not come")
        time.sleep(0.005)
    return info.node, info.worker


async def test_several_ranks_of_a_node_run_beside_each_other() -> None:
    async with Pool(nodes=2, plugins=[plugins.torch(ranks_per_node=2)], console="silent") as pool:
        assert await pool.broadcast(reduced()) == [(rank, rank // 2, rank % 2, 4, 6.0) for rank in range(4)]
        assert await pool.run(reduced(), on=0) == (0, 0, 0, 1, 0.0)  # alone it is a world of its own
        assert len(await pool.broadcast(reduced())) == 4
        waiting = os.SCHED_BATCH if len(os.sched_getaffinity(0)) <= 4 else os.SCHED_OTHER
        assert await pool.broadcast(scheduling_policy()) == [waiting] * 4
        assert await pool.run(scheduling_policy(), on=0) == os.SCHED_OTHER


@pytest.mark.parametrize("kind", ["process", "thread"])
async def test_a_nodes_slots_run_tasks_at_the_same_time(kind: str, tmp_path: Path) -> None:
    async with Pool(nodes=2, worker=Worker(concurrency=2, kind=kind), console="silent") as pool:  # type: ignore[arg-type]
        places = await pool.gather(*(meet(str(tmp_path), 4) for _ in range(4)))
        assert sorted(places) == [(0, 0), (0, 1), (1, 0), (1, 1)]

        @compute(timeout=0.2)
        def endless() -> None:
            while True:
                time.sleep(0.01)

        with pytest.raises(TaskTimeout):
            await pool.run(endless())
        assert len(await pool.gather(*(meet(str(tmp_path), 4) for _ in range(4)))) == 4


class Listening(Plugin):
    """As a framework whose every rank listens."""

    name: ClassVar[str] = "listening"
    ports: ClassVar[Ports] = "ranks"

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return 2


@compute
def listens() -> tuple[int, ...]:
    """The ranks' ports; this one's can be listened on."""
    info = instance_info()
    with socket.socket() as sock:
        # As frameworks do: in this moment a node of another test may have begun to keep the port free.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((info.peers[info.rank].address, info.peers[info.rank].port))
        sock.listen()
    return tuple(peer.port for peer in info.peers)


async def test_every_rank_has_a_port_of_its_own_where_a_plugin_asks_for_it() -> None:
    async with Pool(nodes=2, plugins=[Listening()], console="silent") as pool:
        generations = [await pool.broadcast(listens()) for _ in range(12)]  # more than a node keeps
    for ranks in generations:
        assert len(ranks) == 4
        assert len(set(ranks)) == 1
    assert len({port for ranks in generations for port in ranks[0]}) == 48


async def test_two_plugins_that_would_listen_on_the_same_port_are_refused() -> None:
    async with Pool(nodes=1, plugins=[plugins.torch(), Listening()], console="silent") as pool:
        with pytest.raises(SpecError, match=r"torch and listening .* @integrations\.torch"):
            await pool.broadcast(listens())
        snapshot = pool.snapshot()
        assert (snapshot.submitted, snapshot.finished) == (1, 1)  # else lone calls would never be polled for again


async def test_a_collective_is_refused_in_threads() -> None:
    async with Pool(worker=Worker(2, "thread"), plugins=[plugins.torch()], console="silent") as pool:
        with pytest.raises(SpecError, match="whole process"):
            await pool.broadcast(reduced())


async def test_a_pool_is_ready_at_its_least_and_grows_and_shrinks(tmp_path: Path) -> None:
    async with Pool(nodes=Nodes(3, min=1, max=4), console="silent") as pool:

        async def until(ready: int) -> None:
            with anyio.fail_after(60):
                while pool.snapshot().ready != ready:
                    await anyio.sleep(0.01)

        assert pool.snapshot().ready >= 1
        await until(3)
        pool.resize(4)
        await until(4)
        assert len(await pool.broadcast(meet(str(tmp_path), 4))) == 4
        pool.resize(1)
        await until(1)
        assert await pool.broadcast(meet(str(tmp_path), 1)) == [(0, 0)]
        with pytest.raises(SpecError, match="1 to 4"):
            pool.resize(5)


async def test_a_pool_that_says_no_most_grows_to_what_it_is_resized_to(tmp_path: Path) -> None:
    async with Pool(nodes=1, console="silent") as pool:
        with pytest.raises(SpecError, match="on=1 is the rank of no node"):
            await pool.run(meet(str(tmp_path), 1), on=1)
        pool.resize(2)
        assert await pool.run(meet(str(tmp_path), 1), on=1) == (1, 0)
        with pytest.raises(
            SpecError, match=r"1 nodes or more, up to 100,000 \(Nodes\(min=, max=\) of this pool\), not 0"
        ):
            pool.resize(0)
