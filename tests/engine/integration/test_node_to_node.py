"""Large objects go from node to node: this program sends one once, and takes around what breaks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import Local, Pool, Worker, checkpoint, compute, instance_info
from outrider.engine.objects import peer_transfers
from outrider.engine.transport import heartbeat
from outrider.engine.wire import messages as m

from .test_objects import FEW, first, reroutes, sent_here, traffic

pytestmark = pytest.mark.anyio
BYTES = 8 << 20


@compute
def doubled(data: bytearray) -> bytearray:
    return data * 2


@compute
def made(count: int) -> bytearray:
    return bytearray(b"\x07") * count


@compute
def length(data: bytearray) -> tuple[int, int, int]:
    return instance_info().node, len(data), data[-1]


def pool_of(nodes: int, checkpoints: Path | None = None, **worker: Any) -> Pool:
    return Pool(
        provider=Local(as_remote=True),
        nodes=nodes,
        worker=Worker(**worker),
        checkpoints=checkpoints,
        console="silent",
    )


def ends(pool: Pool) -> list[peer_transfers.PeerEnd]:
    core = pool._core
    assert core is not None
    return [link.objects.end for link in sorted(core.connector.links, key=lambda link: link.node)]


@compute(on_loss="restart")
def saves(steps: int, size_bytes: int) -> None:
    """Keep so many states in memory. Before the next one, an earlier one is copied to the other node."""
    saving = checkpoint("run", every=1, memory=2, durable=1000)
    memory = saving._in_memory
    assert memory is not None
    state = {"weights": bytearray([instance_info().rank]) * size_bytes}
    for step in range(1, steps + 1):
        saving.save(step, state)
        while memory._handing_over or not any(slot.free for slot in memory._slots):
            time.sleep(0.001)


@pytest.mark.parametrize("size_bytes", [BYTES, 1000])
async def test_states_in_memory_are_copied_from_node_to_node(
    size_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied, here = list[int](), list[int]()  # bytes; a busy machine may keep nodes from each other
    copy = peer_transfers.PeerTransfers.copy

    async def counted(*args: Any) -> bool:
        has_it = await copy(*args)
        (copied if has_it else here).append(args[-1])
        return has_it

    monkeypatch.setattr(peer_transfers.PeerTransfers, "copy", counted)
    async with pool_of(2, checkpoints=tmp_path) as pool:
        told = reroutes(pool)
        traffic(pool)
        await pool.broadcast(saves(4, size_bytes))
        assert len(copied) >= 2
        assert sent_here(told) <= sum(here)
        assert traffic(pool) < FEW + 2 * sum(here)


async def test_what_all_nodes_get_leaves_this_program_once() -> None:
    async with pool_of(4) as pool:
        told = reroutes(pool)
        traffic(pool)
        ref = await pool.put(bytearray([7]) * BYTES)
        assert await pool.broadcast(first(ref)) == [7] * 4
        assert traffic(pool) < BYTES + FEW + sent_here(told)


async def test_nodes_that_may_not_are_each_sent_it() -> None:
    async with pool_of(2, node_to_node=False) as pool:
        traffic(pool)
        assert await pool.broadcast(first(bytearray([7]) * BYTES)) == [7] * 2
        assert traffic(pool) > 2 * BYTES


async def test_a_pipeline_over_three_nodes_passes_nothing_through_this_program() -> None:
    async with pool_of(3) as pool:
        told = reroutes(pool)
        traffic(pool)
        table = await pool.run(made(BYTES), on=0, keep=True)
        twice = await pool.run(doubled(table.typed), on=1, keep=True)
        assert await pool.run(length(twice.typed), on=2) == (2, 2 * BYTES, 7)
        assert await pool.run(length(twice.typed), on=2) == (2, 2 * BYTES, 7)  # which has it now
        assert traffic(pool) < FEW + sent_here(told)
        assert len(await twice.get()) == 2 * BYTES
        del table, twice
        core = pool._core
        assert core is not None
        with anyio.fail_after(60):
            while any(len(link.objects.memory) for link in core.connector.links):  # its copies too
                await anyio.sleep(0.01)


async def test_nodes_that_do_not_reach_each_other_get_it_from_here_and_are_not_tried_again() -> None:
    async with pool_of(5) as pool:
        told = reroutes(pool)
        for end in ends(pool):
            end.address = "::1"  # where nothing listens
        assert await pool.broadcast(first(bytearray([7]) * BYTES)) == [7] * 5
        assert told
        assert told[-1].apart
        assert {(each.instead, each.have_bytes) for each in told if each.apart} == {(None, 0)}
        assert "refused" in told[0].reason or "Network" in told[0].reason or "address" in told[0].reason
        before = len(told)
        assert await pool.broadcast(first(bytearray([8]) * BYTES)) == [8] * 5
        assert len(told) == before
        kept = await pool.run(made(BYTES), on=0, keep=True)
        assert (await pool.run(length(kept.typed), on=1))[1] == BYTES


async def test_an_executor_that_stands_still_in_the_chain_is_taken_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("QUIET_S", "SILENCE_S"):  # it stands still for as long as that takes, and is not lost
        monkeypatch.setattr(heartbeat, name, 600.0)
    async with pool_of(3) as pool:
        told = reroutes(pool)
        core = pool._core
        assert core is not None
        pids = {node.node: int((node.facts or {})["pid"]) for node in pool.snapshot().nodes}
        kept = await pool.run(made(BYTES), on=0, keep=True)
        home: Any = kept._stored.at.home
        stopped: list[int] = []

        def stopping(node: int, received: Callable[[Any], None], message: Any) -> None:
            received(message)
            if isinstance(message, m.Serving):
                stopped.append(node)
                os.kill(pids[node], signal.SIGSTOP)

        for link in core.connector.links:
            if link.objects is not home:
                end = link.objects.end
                monkeypatch.setattr(end, "received", partial(stopping, link.node, end.received))
        jobs = [pool.submit(length(kept.typed), on=rank) for rank in (1, 2)]
        try:
            with anyio.fail_after(60):
                while not any(job.done() for job in jobs):
                    await anyio.sleep(0.05)
        finally:
            for node in stopped:
                os.kill(pids[node], signal.SIGCONT)
        assert {(await job)[1] for job in jobs} == {BYTES}
        detour = next(each for each in told if each.source == stopped[0])
        assert detour is not told[0] or detour.instead == home.node
