"""Machines of the test cloud that are taken, with a notice or without: what runs there runs on, on others."""

from __future__ import annotations

import asyncio
import time

import pytest
from bars import tasks
from bars.site import until, watched

from outrider import Pool, compute, events, instance_info, preemption

pytestmark = pytest.mark.anyio
NOTICE_S = 120.0  # as EC2's


@compute(on_loss="restart")
def until_replaced() -> tuple[int, int, int, str, str]:
    """The first generation does not end; a rank of it that is told of its end says so on its host."""
    info = instance_info()
    if info.generation == 1:
        from pathlib import Path

        while (notice := preemption()) is None:
            time.sleep(0.01)
        Path.home().joinpath("told").write_text(f"{notice.source} {notice.seconds_left}")
        time.sleep(1000)
    return info.generation, info.rank, info.world_size, info.head_addr, info.hostname


@compute(on_loss="restart")
def generation() -> tuple[int, int, int]:
    """The first one does not end."""
    info = instance_info()
    time.sleep(1000 if info.generation == 1 else 0)
    return info.generation, info.rank, info.world_size


@pytest.mark.usefixtures("unhurried")
async def test_an_interruption_with_notice_has_its_replacement_before_its_end(cloud, hypervisor, aws):
    async with Pool(provider=aws(), nodes=4, allocation="spot", console="silent") as pool, watched(pool) as diary:
        task = asyncio.create_task(pool.broadcast(until_replaced()))
        await diary.first(events.GenerationStarted, 60)
        instance, host = next(iter(hypervisor.hosts.items()))
        since = len(diary.events)
        cloud.interrupt(instance, notice_s=NOTICE_S)
        told = host.path("/home/ubuntu/told")
        await until(told.exists, 60, what="the task was told")
        source, left = told.read_text().split()
        assert source == "aws"
        assert 0 < float(left) <= NOTICE_S
        requested = await diary.first(events.NodesRequested, 60, since=since)
        ready = await diary.first(events.NodeReady, 100, since=since)
        assert requested.at < ready.at
        assert instance in hypervisor.hosts, "it is ready before the other machine goes"
        await asyncio.to_thread(cloud.advance, NOTICE_S)
        results = await asyncio.wait_for(task, 60)
        assert [result[:3] for result in results] == [(2, rank, 4) for rank in range(4)]
        assert len({head for *_, head, _ in results}) == 1
        assert host.name not in {name for *_, name in results}
    assert cloud.instance(instance).reason[0] == "Server.SpotInstanceTermination"
    assert len(cloud.instances()) == 5, "nothing was replaced twice"
    assert cloud.left() == []


@pytest.mark.usefixtures("unhurried")
async def test_a_machine_that_is_taken_without_notice_is_replaced_elsewhere(cloud, hypervisor, aws):
    async with Pool(provider=aws(), nodes=3, allocation="spot", console="silent") as pool, watched(pool) as diary:
        task = asyncio.create_task(pool.broadcast(generation()))
        await diary.first(events.GenerationStarted, 60)
        before = {each.id: each for each in cloud.instances()}
        instance = next(iter(hypervisor.hosts))
        cloud.interrupt(instance, notice_s=0)
        lost = await diary.first(events.NodeLost, 60)
        assert lost.cause == "spot interruption"
        assert await asyncio.wait_for(task, 60) == [(2, rank, 3) for rank in range(3)]
        [new] = [each for each in cloud.instances() if each.id not in before]
        assert (new.zone, new.type) != (before[instance].zone, before[instance].type)
    assert cloud.left() == []


async def test_a_machine_that_switches_itself_off_is_replaced(cloud, hypervisor, aws):
    """As its lease would make it; a shutdown from inside terminates."""
    async with Pool(provider=aws(), nodes=2, console="silent") as pool, watched(pool) as diary:
        instance, host = next(iter(hypervisor.hosts.items()))
        since = len(diary.events)
        host.run("poweroff", check=False)
        await diary.first(events.NodeLost, 60, since=since)
        await diary.first(events.NodeReady, 60, since=since)
        assert len(set(await pool.broadcast(tasks.where()))) == 2
        assert cloud.instance(instance).state == "terminated"
    assert cloud.left() == []


async def test_a_machine_that_falls_silent_is_terminated(cloud, hypervisor, aws):
    """The cloud calls it running for ever: nobody but the client can end it."""
    async with Pool(provider=aws(), nodes=2, console="silent") as pool, watched(pool) as diary:
        instance, host = next(iter(hypervisor.hosts.items()))
        since = len(diary.events)
        host.blackhole()
        await diary.first(events.NodeLost, 60, since=since)
        await diary.first(events.NodeReady, 60, since=since)
        await until(lambda: instance not in hypervisor.hosts, 60, what="it was terminated")
        assert len(set(await pool.broadcast(tasks.where()))) == 2
    assert cloud.left() == []


async def test_a_recommendation_to_go_elsewhere_is_followed_if_asked(cloud, hypervisor, aws):
    provider = aws(rebalance=True)
    async with Pool(provider=provider, nodes=2, allocation="spot", console="silent") as pool, watched(pool) as diary:
        since = len(diary.events)
        cloud.interrupt(next(iter(hypervisor.hosts)), notice_s=60, rebalance_s=55)
        noticed = await diary.first(events.NodeNoticed, 60, since=since)
        assert noticed.source == "aws-rebalance"
        await diary.first(events.NodeReady, 60, since=since)
        assert len(set(await pool.broadcast(tasks.where()))) == 2
    assert cloud.left() == []
