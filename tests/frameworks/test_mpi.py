"""MPI itself: a broadcast's ranks are COMM_WORLD, and mpirun starts programs on the pool's nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import BroadcastFailed, TaskKilled, compute, instance_info, integrations, plugins

pytestmark = pytest.mark.anyio

MPIRUN = str(Path(sys.executable).with_name("mpirun"))  # of the mpich that pip installed beside this interpreter
REPORT = """
import socket
from mpi4py import MPI
world = MPI.COMM_WORLD
everybody = world.gather((world.rank, world.allreduce(world.rank)))
if world.rank == 0:
    print(everybody)
"""


@compute
def reduced(length: int) -> dict[str, Any]:
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    mine, total = np.full(length, world.rank + 1.0), np.empty(length)
    world.Allreduce(mine, total)
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    return {
        "rank": (world.rank, world.size),
        "pool": (instance_info().rank, instance_info().world_size),
        "total": float(total.sum()),
        "gathered": world.allgather(instance_info().rank),
        "beside": node.size,
        "threads": MPI.Query_thread() == MPI.THREAD_MULTIPLE,
    }


@pytest.mark.parametrize(("nodes", "each"), [(3, 1), (2, 2)])
async def test_a_broadcasts_ranks_are_comm_world(place: Any, nodes: int, each: int) -> None:
    size = nodes * each
    async with place.pool(nodes, plugins.mpi(ranks_per_node=each)) as pool:
        for length in (1000, 1_000_000):  # eager messages, and those that need a rendezvous
            ranks = await pool.broadcast(reduced(length))
            assert [rank["rank"] for rank in ranks] == [rank["pool"] for rank in ranks]
            assert [rank["rank"] for rank in ranks] == [(number, size) for number in range(size)]
            assert {rank["total"] for rank in ranks} == {length * size * (size + 1) / 2}
            assert all(rank["gathered"] == list(range(size)) for rank in ranks)
            assert all(rank["beside"] >= each for rank in ranks)
            assert all(rank["threads"] for rank in ranks)


async def test_a_task_alone_is_a_world_of_one_also_beside_others(place: Any) -> None:
    async with place.pool(2, plugins.mpi()) as pool:
        alone = await pool.gather(*(reduced(10) for _ in range(4)))
    assert [rank["rank"] for rank in alone] == [(0, 1)] * 4


@compute
def late() -> tuple[bool, int, int]:
    import mpi4py

    before = "mpi4py.MPI" in sys.modules
    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI

    return before, MPI.COMM_WORLD.size, MPI.Query_thread() - MPI.THREAD_SERIALIZED


async def test_without_init_the_function_chooses_how_mpi_begins(place: Any) -> None:
    async with place.pool(2, plugins.mpi(init=False)) as pool:
        assert await pool.broadcast(late()) == [(False, 2, 0)] * 2


@compute
@integrations.mpi(ranks_per_node=2)
def size() -> int:
    from mpi4py import MPI

    return MPI.COMM_WORLD.size


async def test_a_function_may_have_a_world_of_its_own(place: Any) -> None:
    async with place.pool(2) as pool:
        assert await pool.broadcast(size()) == [4] * 4


@compute
def fails(rank: int) -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == rank:
        raise ValueError("no solution")
    MPI.COMM_WORLD.Barrier()


@compute
def aborts() -> None:
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 1:
        MPI.COMM_WORLD.Abort(3)
    MPI.COMM_WORLD.Barrier()


async def test_an_error_or_an_abort_of_one_rank_ends_the_others(place: Any) -> None:
    async with place.pool(3, plugins.mpi()) as pool:
        with pytest.raises(BroadcastFailed) as failed:
            await pool.broadcast(fails(2))
        assert [(type(error), error.rank) for error in failed.value.exceptions] == [(ValueError, 2)]  # type: ignore[attr-defined]
        with pytest.raises(BroadcastFailed) as aborted:
            await pool.broadcast(aborts())
        first = next(error for error in aborted.value.exceptions if error.rank == 1)  # type: ignore[attr-defined]
        assert isinstance(first, TaskKilled)
        assert first.exit_code == 3
        assert [rank["rank"][1] for rank in await pool.broadcast(reduced(10))] == [3] * 3


@compute
def until_the_second_generation() -> tuple[int, int]:
    import time

    from mpi4py import MPI

    print("it runs", flush=True)
    if instance_info().generation == 1:
        time.sleep(600)
    return MPI.COMM_WORLD.allreduce(1), instance_info().generation


async def test_a_lost_rank_starts_the_world_anew(place: Any, printed: Any) -> None:
    async with place.pool(3, plugins.mpi(), spare=1) as pool:
        running = await printed(pool, "it runs", times=3)
        job = pool.broadcast(until_the_second_generation())
        import asyncio

        task = asyncio.ensure_future(job)
        await running.wait()
        place.lose(pool, 1)
        assert await task == [(3, 2)] * 3


# --- mpirun -----------------------------------------------------------------------------------------------------------


@compute
def launched(*options: str) -> tuple[int, str, str]:
    command = [MPIRUN, *options, sys.executable, "-c", REPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


async def test_mpirun_starts_programs_on_the_nodes_over_the_pools_connections(place: Any) -> None:
    async with place.pool(3, plugins.mpi()) as pool:
        names = ",".join(pool.handle("mpi").hosts)
        status, out, err = await pool.run(launched("-n", "3", "-hosts", names, "-ppn", "1"))
        assert (status, out) == (0, "[(0, 3), (1, 3), (2, 3)]\n"), err
        status, out, err = await pool.run(launched("-n", "2"))  # by the host file that is there
        assert (status, out) == (0, "[(0, 1), (1, 1)]\n"), err
        status, out, err = await pool.run(launched("-n", "2", "-hosts", "nobody,no-one"))
        assert status != 0
        assert "no node of this pool is called" in err


@compute
def launched_by_the_head(*options: str) -> tuple[int, str, str] | None:
    return launched.local(*options) if instance_info().is_head else None


async def test_the_head_of_a_broadcast_may_use_mpirun_while_the_others_wait(place: Any) -> None:
    async with place.pool(2, plugins.mpi(init=False)) as pool:
        (status, out, err), nothing = await pool.broadcast(launched_by_the_head("-n", "2"))  # type: ignore[misc]
        assert (status, out, nothing) == (0, "[(0, 1), (1, 1)]\n", None), err


@compute
def left() -> list[str]:
    """What a cancelled mpirun left on this node: processes of MPI's own launcher."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if b"hydra_pmi_proxy" in command or b"SLEEPING_FOR_A_TEST" in command:
                found.append(command.decode())
    return found


@compute(timeout=2)
def never_ends(hosts: str) -> None:
    sleep = "import time; 'SLEEPING_FOR_A_TEST'; time.sleep(600)"
    subprocess.run([MPIRUN, "-n", "2", "-hosts", hosts, "-ppn", "1", sys.executable, "-c", sleep], check=False)


async def test_a_task_that_is_ended_takes_its_mpirun_along_on_all_nodes(place: Any) -> None:
    async with place.pool(2, plugins.mpi()) as pool:
        with pytest.raises(TimeoutError):
            await pool.run(never_ends(",".join(pool.handle("mpi").hosts)))
        with anyio.fail_after(60):
            while any(await pool.broadcast(left.with_(on_loss="fail")())):
                await anyio.sleep(0.05)
