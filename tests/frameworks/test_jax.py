"""JAX itself: one program over the devices of several processes, its end, and what a loss does."""

from __future__ import annotations

import itertools
import os
import time
from typing import Any

import anyio
import pytest

from outrider import BroadcastFailed, compute, instance_info, plugins

FAREWELL_S = 2.0  # as in engine.node.worker_scheduler

pytestmark = pytest.mark.anyio


@compute
def reduced(scale: Any) -> dict[str, Any]:
    """A sum over all devices of all ranks, which own a share of the rows each."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.experimental import multihost_utils
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("rows",))
    by_row, everywhere = NamedSharding(mesh, PartitionSpec("rows")), NamedSharding(mesh, PartitionSpec())
    rows = np.arange(jax.device_count() * 3, dtype=np.float32)
    own = rows[jax.process_index() * len(rows) // jax.process_count() :][: len(rows) // jax.process_count()]
    whole = jax.make_array_from_process_local_data(by_row, own)
    total = jax.jit(lambda array: (array * scale).sum(), out_shardings=everywhere)(whole)
    gathered = multihost_utils.process_allgather(jnp.array([instance_info().rank]))
    return {
        "total": float(total),
        "expected": float(rows.sum() * np.asarray(scale)),
        "ranks": [int(rank) for rank in np.asarray(gathered).flatten()],
        "process": (jax.process_index(), jax.process_count()),
        "devices": (jax.local_device_count(), jax.device_count()),
        "count": os.environ["JAX_LOCAL_DEVICE_COUNT"],
    }


@pytest.mark.parametrize(("nodes", "each", "cpu_devices"), [(2, 1, None), (2, 1, 3), (1, 2, None)])
async def test_ranks_are_one_program(place: Any, nodes: int, each: int, cpu_devices: int | None) -> None:
    devices = cpu_devices or 1
    async with place.pool(nodes, plugins.jax(ranks_per_node=each, cpu_devices=cpu_devices)) as pool:
        for _ in range(2):  # nothing of the first is in the second's way
            ranks = await pool.broadcast(reduced(2.0))
            assert [rank["process"] for rank in ranks] == [(0, 2), (1, 2)]
            for rank in ranks:
                assert rank["total"] == rank["expected"] > 0
                assert rank["ranks"] == [0, 1]
                assert (rank["devices"], rank["count"]) == ((devices, 2 * devices), str(devices))


async def test_arguments_may_be_arrays_and_a_task_alone_is_a_program_of_one(place: Any) -> None:
    import jax.numpy as jnp

    async with place.pool(2, plugins.jax()) as pool:
        together = await pool.broadcast(reduced(jnp.float32(3)))  # unpickled when the ranks are connected
        assert [rank["process"] for rank in together] == [(0, 2), (1, 2)]
        assert together[0]["total"] == together[0]["expected"]
        alone = await pool.run(reduced(jnp.float32(3)))
        assert (alone["process"], alone["ranks"]) == ((0, 1), [0])


@compute
def lasts_longer_on_rank_1() -> int:
    """Rank 0 is where the others ask each other things: it must not go before they have."""
    from jax._src.distributed import global_state

    client: Any = global_state.client
    if instance_info().rank == 0:
        client.key_value_set("rank 0", "is through")
    else:
        client.blocking_key_value_get("rank 0", 180_000)
        until = time.monotonic() + FAREWELL_S + 1  # a process that has answered lives so long
        for number in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count()):
            client.key_value_set(f"late {number}", "rank 1 is not")
    return instance_info().rank


async def test_who_is_through_first_waits_for_the_others(place: Any) -> None:
    async with place.pool(2, plugins.jax()) as pool:
        with anyio.fail_after(180):
            assert await pool.broadcast(lasts_longer_on_rank_1()) == [0, 1]


@compute
def fails_on_rank_1() -> None:
    if instance_info().rank == 1:
        raise ValueError("mine")
    from jax.experimental import multihost_utils

    multihost_utils.sync_global_devices("nobody else comes")


async def test_a_rank_that_raises_is_not_waited_for(place: Any) -> None:
    async with place.pool(2, plugins.jax()) as pool:
        with anyio.fail_after(180), pytest.raises(BroadcastFailed) as caught:
            await pool.broadcast(fails_on_rank_1())
        assert any(isinstance(error, ValueError) and str(error) == "mine" for error in caught.value.exceptions)
        assert len(await pool.broadcast(reduced(1.0))) == 2


@compute
def endless_at_first() -> tuple[int, int]:
    """The first generation never ends by itself."""
    from jax.experimental import multihost_utils

    info = instance_info()
    multihost_utils.sync_global_devices("all are here")
    print(f"rank {info.rank} is connected", flush=True)
    if info.generation == 1 and info.rank == 1:
        time.sleep(600)
    multihost_utils.sync_global_devices("all are here again")
    return info.generation, info.rank


@pytest.mark.parametrize("lost", [0, 1])
async def test_when_a_rank_is_lost_all_begin_anew(place: Any, printed: Any, lost: int) -> None:
    async with place.pool(2, plugins.jax(), spare=1) as pool, anyio.create_task_group() as tasks:
        results: list[Any] = []

        async def run() -> None:
            results.extend(await pool.broadcast(endless_at_first()))

        with anyio.fail_after(200):
            connected = await printed(pool, "is connected", times=2)
            tasks.start_soon(run)
            await connected.wait()
            place.lose(pool, lost)
            while not results:
                await anyio.sleep(0.05)
    assert results == [(2, 0), (2, 1)]
