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
    """Returns its node once the file is there."""
    while not Path(file).exists():
        time.sleep(0.01)
    return instance_info().node


async def test_a_pool_grows_from_none_for_what_waits_and_shrinks_to_none(tmp_path: Path) -> None:
    go = tmp_path / "go"
    async with Pool(nodes=Nodes(min=0, max=3, scale="load", idle=IDLE_S), console="silent") as pool:
        assert (pool.snapshot().state, pool.snapshot().desired, pool.snapshot().nodes) == ("ready", 0, ())
        changes: list[tuple[int, int, str]] = []

        happened = pool.events()

        async def watch() -> None:
            async for event in happened:
                if isinstance(event, events.PoolScaled):
                    changes.append((event.before, event.wanted, event.reason))  # noqa: PERF401  seen at once

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch)
            with anyio.fail_after(60):
                jobs = [pool.submit(wait_for(str(go))) for _ in range(8)]
                while pool.snapshot().ready < 3:
                    await anyio.sleep(0.01)
                go.touch()
                nodes = [await job for job in jobs]  # none is lost, whichever nodes leave
                while pool.snapshot().nodes:
                    await anyio.sleep(0.01)
                assert await pool.broadcast(wait_for(str(go))) == [0]  # from none again, on one node
                pool.resize(2)
                assert await pool.broadcast(wait_for(str(go))) == [0, 1]
            tasks.cancel_scope.cancel()
    assert len(nodes) == 8
    assert changes[0] == (0, 1, "1 task waits")
    assert changes[1] == (1, 3, "7 tasks wait")
    down = changes[2:-2]
    assert [before for before, _, _ in down] == [3, *[after for _, after, _ in down[:-1]]]
    assert down[-1][1] == 0
    assert {reason for _, _, reason in down} == {f"no work for {IDLE_S:g} s"}
    assert changes[-2:] == [(0, 1, "1 are asked for by a broadcast, or by on="), (1, 2, "by resize")]
