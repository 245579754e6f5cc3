"""A client without its network, for a while and for good; and a node that comes back when it has been replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from outrider import Pool, events
from outrider.engine.transport.heartbeat import HEARTBEAT_S

from . import tasks
from .site import named, provider, running, until, watched, written

if TYPE_CHECKING:
    from netlab import Host, Lab

STARTS_S = 60.0
ENDED_S = 5.0  # after the lease, for an executor to end its tasks' process trees and itself
EARLY_S = HEARTBEAT_S + 0.5  # the lease counts from the last word that came, which may be so old at the cut
HEARD_S = 15.0  # after the network is back: a try to connect may be in one of TCP's pauses


async def client_cut_off(lab: Lab, *, nodes: int, for_s: float) -> float:
    """Seconds from the network's return until every result is there: each once, none lost, nobody given up.

    Some tasks end while nobody hears of it, some wait at their nodes, and most have not been sent yet.
    """
    made = lab.create_many(nodes)
    count = 40 * nodes
    pool = Pool(provider=provider(lab, made), nodes=nodes, console="silent", lease=for_s + 300)
    async with pool, watched(pool) as diary:
        jobs = [pool.submit(tasks.mark(number, for_s / 2)) for number in range(nodes)]
        jobs += [pool.submit(tasks.mark(number, 0.01)) for number in range(nodes, count)]
        await until(lambda: len(written(made, "ran")) == nodes, STARTS_S, what="each has one")
        lab.network.cut()
        cut_at = time.monotonic()
        silent = await diary.first(events.NetworkSilent, 60)
        assert silent.nodes == nodes
        await until(lambda: len(written(made, "ended")) >= nodes, for_s + 60, what="they end, out of sight")
        await asyncio.sleep(for_s - (time.monotonic() - cut_at))
        lab.network.mend()
        back_at = time.monotonic()
        results = [await asyncio.wait_for(job, HEARD_S + 120) for job in jobs]
        took_s = time.monotonic() - back_at
        assert results == list(range(count)), "nothing is lost"
        assert diary.all(events.NodeLost) == []
    assert sorted(map(int, written(made, "ran"))) == list(range(count)), "nothing ran twice"
    return took_s


async def client_cut_off_for_good(lab: Lab, *, lease_s: float, nodes: int = 2) -> dict[str, float]:
    """By host, the seconds until nothing of the pool runs there any more, tasks and what they started included."""
    made = lab.create_many(nodes)
    gone: dict[str, float] = {}
    async with Pool(provider=provider(lab, made), nodes=nodes, console="silent", lease=lease_s) as pool:
        jobs = [pool.submit(tasks.family()) for _ in made]
        await until(lambda: all(host.path("/root/began").exists() for host in made), STARTS_S, what="each has one")
        assert all(len(running(host)) >= 4 for host in made), "an executor, a task, and the task's own two"
        lab.network.cut()
        cut_at = time.monotonic()
        await asyncio.gather(*(_emptied(host, cut_at, gone, lease_s) for host in made))
        lab.network.mend()
        for job in jobs:
            job.cancel()
    return gone


async def _emptied(host: Host, since: float, gone: dict[str, float], lease_s: float) -> None:
    await until(lambda: not running(host), lease_s + 60, what=f"{host.name} is empty: {host.processes()}")
    gone[host.name] = time.monotonic() - since


async def old_node_returns(lab: Lab, *, away_s: float = 0.0) -> float:
    """Seconds from the return of a lost rank's host, while its replacement works, until all of it is gone there.

    The old generation runs on as long as nobody can reach it, and is never heard of again.
    """
    made = lab.create_many(4)
    async with Pool(provider=provider(lab, made), nodes=3, console="silent") as pool, watched(pool) as diary:
        names = await pool.broadcast(tasks.where())
        old = named(made, names[1])
        task = asyncio.create_task(pool.broadcast(tasks.counts(25.0)))
        await until(lambda: len(_generations([old])) > 0, STARTS_S, what="it runs")
        old.blackhole()
        started = await diary.first(events.GenerationStarted, 60, where=lambda event: event.generation == 2)
        await until(lambda: "2" in _generations(made), 60, what="the next generation runs")
        assert set(_generations([old])) == {"1"}
        await asyncio.sleep(away_s)
        before = len(running(old))
        assert before > 0, "until it is reached, or its lease is over, it knows nothing"
        old.heal()
        healed_at = time.monotonic()
        await until(lambda: not running(old), 60, what=f"it has ended: {old.processes()}")
        gone_s = time.monotonic() - healed_at
        results = await asyncio.wait_for(task, 120)
        assert [(number, rank, size) for number, rank, size, _ in results] == [(2, rank, 3) for rank in range(3)]
        assert set(_generations([old])) == {"1"}
        assert started.head not in {event.node for event in diary.all(events.NodeLost)}
    return gone_s


def _generations(hosts: Sequence[Host]) -> list[str]:
    return [line.split()[0] for line in written(hosts, "lived")]
