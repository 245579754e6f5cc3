"""Programs that know nothing of Outrider find each other in a broadcast, by the variables that `torchrun` sets."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from outrider import Image, Local, Pool, Worker, compute, instance_info
from outrider.engine.node.environ import RANK_VARIABLES

pytestmark = pytest.mark.anyio


@compute
def variables() -> dict[str, str]:
    return {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}


@compute
def of_a_child() -> list[str]:
    code = f"import os; print(*map(os.environ.get, {RANK_VARIABLES}))"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()


@compute
def greeted() -> list[int]:
    """The ranks that reach rank 0, at the address in their environment."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if rank == 0:
        with socket.create_server(("", address[1])) as listener:
            return sorted(listener.accept()[0].recv(1)[0] for _ in range(1, size))
    while True:
        with suppress(ConnectionRefusedError), socket.create_connection(address) as sock:
            sock.send(bytes([rank]))
            return []


async def test_every_rank_of_a_broadcast_has_its_variables_without_any_plugin(pool: Pool) -> None:
    found = await pool.broadcast(variables())

    assert [int(rank["RANK"]) for rank in found] == [0, 1, 2, 3]
    for number, rank in enumerate(found):
        assert rank == {
            "RANK": str(number),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": str(number),
            "GROUP_RANK": str(number),
            "MASTER_ADDR": found[0]["MASTER_ADDR"],
            "MASTER_PORT": found[0]["MASTER_PORT"],
        }
    of_children = await pool.broadcast(of_a_child())
    assert [each[:6] for each in of_children] == [list(rank.values())[:6] for rank in found]


async def test_the_heads_port_is_free_there_and_another_one_for_each_broadcast(pool: Pool) -> None:
    assert [await pool.broadcast(greeted()) for _ in range(3)] == [[[1, 2, 3], [], [], []]] * 3
    ports = {(await pool.broadcast(variables()))[0]["MASTER_PORT"] for _ in range(3)}
    assert len(ports) == 3


async def test_other_tasks_have_none_also_after_a_broadcast(pool: Pool) -> None:
    await pool.broadcast(variables())
    assert [await pool.run(variables(), on=node) for node in range(4)] == [{}] * 4


async def test_tasks_do_not_take_a_clients_own_rank_for_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client may run under `torchrun`, or be a task of another pool."""
    for name in RANK_VARIABLES:
        monkeypatch.setenv(name, "9")
    async with Pool(provider=Local(), image=Image(env={"MASTER_PORT": "29500"}), console="silent") as pool:
        assert await pool.run(variables()) == {"MASTER_PORT": "29500"}
        (rank,) = await pool.broadcast(variables())
        assert (rank["RANK"], rank["WORLD_SIZE"]) == ("0", "1")
        assert rank["MASTER_PORT"] != "29500"
        assert await pool.run(variables()) == {"MASTER_PORT": "29500"}


OF_LAUNCHERS = "TORCHELASTIC_USE_AGENT_STORE", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "SLURM_JOB_ID"


@compute
def variables_of_launchers() -> dict[str, str]:
    return {name: os.environ[name] for name in OF_LAUNCHERS if name in os.environ}


@pytest.mark.parametrize("provider", [Local(), Local(as_remote=True)], ids=["here", "remote"])
async def test_tasks_do_not_take_the_place_that_another_launcher_gave_the_client(
    monkeypatch: pytest.MonkeyPatch, provider: Local
) -> None:
    for name in OF_LAUNCHERS:
        monkeypatch.setenv(name, "9")
    chosen = {"SLURM_NTASKS": "3"}
    async with Pool(provider=provider, image=Image(env=chosen), console="silent") as pool:
        for found in (await pool.run(variables_of_launchers()), *await pool.broadcast(variables_of_launchers())):
            assert found.pop("SLURM_JOB_ID", "9") == "9"  # a machine of its own has none of the client's variables
            assert found == chosen


@compute
def rank_in_a_thread() -> tuple[int, dict[str, str]]:
    return instance_info().rank, {name: os.environ[name] for name in RANK_VARIABLES if name in os.environ}


async def test_threads_which_share_an_environment_ask_instance_info() -> None:
    async with Pool(provider=Local(), nodes=2, worker=Worker(2, kind="thread"), console="silent") as pool:
        assert await pool.broadcast(rank_in_a_thread()) == [(0, {}), (1, {})]
