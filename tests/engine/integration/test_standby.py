"""Nodes that stand by, and broadcasts that are run again after a failure of their own: on real nodes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from outrider import BroadcastFailed, Local, Nodes, Pool, compute, instance_info

pytestmark = pytest.mark.anyio


@compute(on_loss="restart")
def until(marks: str) -> tuple[int, int, int]:
    """Announce itself; a second generation ends."""
    info = instance_info()
    (Path(marks) / f"{info.generation}.{info.rank}").write_text(str(time.monotonic()))
    while info.generation == 1:
        time.sleep(0.01)
    return info.generation, info.rank, info.world_size


@compute(max_restarts=2)
def fails_at_first(times: int) -> int:
    info = instance_info()
    if info.rank == 1 and info.generation <= times:
        raise ValueError(f"generation {info.generation}")
    return info.generation


async def test_a_spare_node_takes_a_killed_ones_rank(tmp_path: Path) -> None:
    async with Pool(provider=Local(), nodes=Nodes(2, spare=1), console="silent") as pool:
        while sorted(node.state for node in pool.snapshot().nodes) != ["ready", "ready", "standby"]:
            await asyncio.sleep(0.01)
        assert pool.snapshot().ready == 2
        running = asyncio.ensure_future(pool.broadcast(until(str(tmp_path))))
        while len(list(tmp_path.iterdir())) < 2:
            await asyncio.sleep(0.01)
        nodes = {node.state + str(node.rank): node for node in pool.snapshot().nodes}
        spare, head = nodes["standbyNone"], nodes["ready0"]
        assert head.facts is not None
        os.killpg(int(head.facts["group"]), signal.SIGKILL)
        assert await running == [(2, 0, 2), (2, 1, 2)]
        assert next(node.node for node in pool.snapshot().nodes if node.rank == 0) == spare.node
        while len(pool.snapshot().nodes) < 3:  # the next spare
            await asyncio.sleep(0.01)


async def test_a_broadcast_that_fails_by_itself_is_run_again_so_often() -> None:
    async with Pool(provider=Local(), nodes=2, console="silent") as pool:
        assert await pool.broadcast(fails_at_first(2)) == [3, 3]
        with pytest.raises(BroadcastFailed) as caught:
            await pool.broadcast(fails_at_first(3))
        assert [str(error) for error in caught.value.exceptions] == ["generation 3"]
        assert await pool.broadcast(fails_at_first(0)) == [1, 1]
