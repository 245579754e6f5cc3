"""Pools whose number of nodes follows their work: from none to the most, and back when the work is done."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from outrider import Nodes, Pool, compute, events, instance_info

pytestmark = pytest.mark.anyio
IDLE_S = 0.5


@compute
def wait_for(file: str) -> int:
    """Leave a file for its node, and return that once another file is there."""
    node = instance_info().node
    Path(file).with_name(f"begun-{node}").touch()
    while not Path(file).exists():
        time.sleep(0.01)
    return node


async def test_a_pool_grows_from_none_to_eight_for_what_waits_and_comes_back_to_none(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with Pool(nodes=Nodes(min=0, max=8, scale="load", idle=IDLE_S), console="silent") as pool:
        assert (pool.snapshot().state, pool.snapshot().desired, pool.snapshot().nodes) == ("ready", 0, ())
        changes: list[events.PoolScaled] = []
        happened = pool.events()

        async def watch() -> None:
            async for event in happened:
                if isinstance(event, events.PoolScaled):
                    changes.append(event)  # noqa: PERF401  seen at once

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with anyio.fail_after(120):
                jobs = [pool.submit(wait_for(str(go))) for _ in range(20)]
                while len([*tmp_path.glob("begun-*")]) < 8:
                    await anyio.sleep(0.01)
                go.touch()
                nodes = [await job for job in jobs]  # none is lost, whichever nodes leave
                while pool.snapshot().nodes:
                    await anyio.sleep(0.01)
                assert await pool.broadcast(wait_for(str(go))) == [0]  # from none again, on one node
                pool.resize(2)
                assert await pool.broadcast(wait_for(str(go))) == [0, 1]
            tasks.cancel_scope.cancel()
    assert set(nodes) == set(range(8))
    steps = [(change.before, change.wanted) for change in changes]
    assert steps[:2] == [(0, 1), (1, 8)]
    assert steps[-2:] == [(0, 1), (1, 2)]
    down = steps[2:-2]
    assert [before for before, _ in down] == [8, *[after for _, after in down[:-1]]]
    assert all(after < before for before, after in down), "it grows for nothing"
    assert down[-1][1] == 0
    assert all(change.reason for change in changes)
