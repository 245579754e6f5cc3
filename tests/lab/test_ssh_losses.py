"""Hosts and networks that fail under a pool: seen within the bars, and nothing is lost, run twice or left."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from netlab import Host

from outrider import CapacityError, Pool, compute, events, instance_info

pytestmark = pytest.mark.anyio
SEEN_S = 10.0  # the bar for a black hole, one-way loss and a frozen daemon
SILENT_FAULTS: dict[str, Callable[[Host], object]] = {
    "power off, as in a LAN": Host.power_off,
    "power off, as in a cloud": lambda host: host.power_off(silent=True),
    "partition": Host.partition,
    "black hole": Host.blackhole,
    "nothing arrives": lambda host: host.drop(incoming=True),
    "nothing leaves": lambda host: host.drop(outgoing=True),
    "frozen": Host.freeze,
}


@compute
def where() -> str:
    return socket.gethostname()


@compute
def first_stays() -> tuple[int, str]:
    """The first attempt never ends."""
    if instance_info().attempt == 1:
        time.sleep(1000)
    return instance_info().attempt, socket.gethostname()


@compute
def mark(number: int, seconds: float) -> int:
    """Leaves a line for each time it ran, and for each time it ended, on the host it ran on."""

    def note(path: str) -> None:
        with Path(path).open("a") as file:
            file.write(f"{number}\n")

    note("/root/ran")
    time.sleep(seconds)
    note("/root/ended")
    return number


@compute(on_loss="restart")
def generation(lasts_s: float) -> tuple[int, int, int, str]:
    """The first generation lasts until something happens to it."""
    info = instance_info()
    time.sleep(1000 if info.generation == 1 else lasts_s)
    return info.generation, info.rank, info.world_size, info.head_addr


def ran(hosts: Sequence[Host], file: str = "ran") -> list[str]:
    files = (host.path(f"/root/{file}") for host in hosts)
    return [line for file in files if file.exists() for line in file.read_text().split()]


def daemons(host: Host) -> list[list[str]]:
    return [line for line in host.processes().values() if "daemon" in line]


async def until(condition: Callable[[], object], within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.01)


def named(seen: Sequence[events.Event], kind: type[events.Event]) -> list[events.Event]:
    return [event for event in seen if isinstance(event, kind)]


@pytest.mark.nightly  # seven pools; test_bars_losses.py has all of these faults in one
async def test_every_way_of_falling_silent_is_seen_in_ten_seconds(hosts, ssh, watch):
    """Of two nodes one falls silent: its task runs again on the host that was free."""

    async def suffers(fault: Callable[[Host], object]) -> tuple[float, tuple[int, str], str]:
        made = hosts(3)
        async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
            seen = await watch(pool)
            victim = await pool.run(where(), on=0)
            job = pool.submit(first_stays(), on=0)
            await until(lambda: len(named(seen, events.TaskStarted)) == 2)
            began = time.time()
            fault(next(host for host in made if host.name == victim))
            result = await asyncio.wait_for(job, 120)
            [lost] = named(seen, events.NodeLost)
            return lost.at - began, result, victim

    outcomes = await asyncio.gather(*(suffers(fault) for fault in SILENT_FAULTS.values()))
    took = {name: round(outcome[0], 1) for name, outcome in zip(SILENT_FAULTS, outcomes, strict=True)}
    assert max(took.values()) < SEEN_S, took
    assert min(took.values()) > 3, took  # a stall of 3 s is no death
    for _, (attempt, host), victim in outcomes:
        assert attempt == 2
        assert host != victim


async def test_a_broadcast_that_loses_any_rank_runs_again_whole(hosts, ssh, watch):
    """Four ranks and one spare host; rank 0's too: the world is consistent, with another head."""

    async def loses(rank: int) -> list[tuple[int, int, int, str]]:
        made = hosts(5)
        async with Pool(provider=ssh(made), nodes=4, console="silent") as pool:
            seen = await watch(pool)
            victim = await pool.run(where(), on=rank)
            task = asyncio.create_task(pool.broadcast(generation(0.0)))
            await until(lambda: named(seen, events.GenerationStarted))
            host = next(host for host in made if host.name == victim)
            host.power_off(silent=True)
            outcome = await asyncio.wait_for(task, 120)
            assert host.address not in {head for _, _, _, head in outcome}
            return outcome

    for outcome in await asyncio.gather(loses(0), loses(3)):
        assert [(number, rank, size) for number, rank, size, _ in outcome] == [(2, rank, 4) for rank in range(4)]
        assert len({head for _, _, _, head in outcome}) == 1


async def test_a_host_that_resets_is_lost_at_once_if_it_does_not_come_back(hosts, ssh, watch):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
        seen = await watch(pool)
        victim = await pool.run(where(), on=1)
        host = next(host for host in made if host.name == victim)
        host.stop_sshd(sessions=True)
        await until(lambda: named(seen, events.NodeSuspect))
        assert not named(seen, events.NodeSuspect)[0].silent, "the end of its connections tells, and no silence"
        await until(lambda: named(seen, events.NodeLost))
        host.start_sshd()
        await until(lambda: len([node for node in pool.snapshot().nodes if node.state == "ready"]) == 2)
        assert set(await pool.broadcast(where())) == {"h0", "h1"}


async def test_a_connection_that_comes_back_in_time_loses_nothing(hosts, ssh, watch):
    """sshd is started anew, the network is gone for 3 s: tasks go on, each runs once, no node is given up."""
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
        seen = await watch(pool)
        jobs = [pool.submit(mark(number, 0.1)) for number in range(80)]
        await until(lambda: len(ran(made)) > 8)
        made[0].stop_sshd(sessions=True)
        made[0].start_sshd()
        await until(lambda: named(seen, events.NodeResumed))
        made[1].blackhole()
        await asyncio.sleep(3)
        made[1].heal()
        assert [await job for job in jobs] == list(range(80))
        assert named(seen, events.NodeLost) == []
    assert sorted(map(int, ran(made))) == list(range(80))


async def test_a_client_without_its_network_finds_its_results_when_it_is_back(hosts, ssh, watch):
    """What runs goes on and ends, out of sight; nothing is run twice, and nobody is given up before the lease."""
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent", lease=300) as pool:
        seen = await watch(pool)
        jobs = [pool.submit(mark(number, 9.0)) for number in range(2)]
        jobs += [pool.submit(mark(number, 0.01)) for number in range(2, 40)]
        await until(lambda: len(ran(made)) == 2)
        for host in made:
            host.blackhole()
        await until(lambda: named(seen, events.NetworkSilent))
        await until(lambda: len(ran(made, "ended")) == 2)  # they do not know that nobody listens
        await asyncio.sleep(4)  # longer than one silent node among others is given
        for host in made:
            host.heal()
        assert [await asyncio.wait_for(job, 120) for job in jobs] == list(range(40))
        assert named(seen, events.NodeLost) == []
    assert sorted(map(int, ran(made))) == list(range(40))


async def test_a_node_that_nobody_hears_of_ends_with_its_lease(hosts, ssh):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent", lease=8) as pool:
        [cut, _] = made
        assert daemons(cut)
        job = pool.submit(mark(1, 0.0))
        await job
        cut.blackhole()
        await until(lambda: not [line for line in cut.processes().values() if "sshd" not in line[0]])
        assert cut.run("ls", "/root/.cache/outrider/pools").stdout == ""


async def test_a_frozen_node_that_wakes_up_is_of_the_past(hosts, ssh, watch):
    """It was lost and replaced: what it then says is not heard, and it ends with its lease."""
    made = hosts(3)
    async with Pool(provider=ssh(made), nodes=2, console="silent", lease=15) as pool:
        seen = await watch(pool)
        victim = await pool.run(where(), on=0)
        host = next(host for host in made if host.name == victim)
        job = pool.submit(first_stays(), on=0)
        await until(lambda: len(named(seen, events.TaskStarted)) == 2)
        host.freeze()
        attempt, elsewhere = await asyncio.wait_for(job, 120)
        assert (attempt, elsewhere != victim) == (2, True)
        host.thaw()
        await until(lambda: not [line for line in host.processes().values() if "sshd" not in line[0]])
        assert set(await pool.broadcast(where())) == {name.name for name in made} - {victim}


async def test_a_bad_network_and_a_stall_are_no_death(hosts, ssh, watch):
    """5 % loss each way at 40 ms, and a freeze of 3 s: every task runs once, no node is given up."""
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
        seen = await watch(pool)
        for host in made:
            host.distance(delay_s=0.02, jitter_s=0.01, loss=0.05)
        jobs = [pool.submit(mark(number, 0.05)) for number in range(150)]
        await until(lambda: len(ran(made)) > 10)
        made[0].freeze()
        await asyncio.sleep(3)
        made[0].thaw()
        assert [await asyncio.wait_for(job, 120) for job in jobs] == list(range(150))
        assert named(seen, events.NodeLost) == []
    assert sorted(map(int, ran(made))) == list(range(150))


async def test_a_host_that_was_rebooted_is_a_node_again(hosts, ssh, watch):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent") as pool:
        seen = await watch(pool)
        victim = await pool.run(where(), on=0)
        host = next(host for host in made if host.name == victim)
        host.power_off()
        host.power_on()
        host.wait_up()
        await until(lambda: named(seen, events.NodeLost))
        await until(lambda: len([node for node in pool.snapshot().nodes if node.state == "ready"]) == 2)
        assert set(await pool.broadcast(where())) == {"h0", "h1"}


async def test_without_a_replacement_a_broadcast_says_so(hosts, ssh, watch):
    made = hosts(2)
    async with Pool(provider=ssh(made), nodes=2, console="silent", replace_timeout=2) as pool:
        seen = await watch(pool)
        victim = await pool.run(where(), on=0)
        task = asyncio.create_task(pool.broadcast(generation(0.0)))
        await until(lambda: named(seen, events.GenerationStarted))
        next(host for host in made if host.name == victim).power_off()
        with pytest.raises(CapacityError, match="no replacement came"):
            await asyncio.wait_for(task, 120)


async def test_a_pool_ends_in_time_while_its_hosts_are_silent(hosts, ssh):
    made = hosts(2)
    began = 0.0
    async with Pool(provider=ssh(made), nodes=2, console="silent", lease=5) as pool:
        pool.submit(mark(1, 100.0))
        await until(lambda: ran(made))
        for host in made:
            host.blackhole()
        began = time.monotonic()
    assert time.monotonic() - began < 120
    await until(lambda: not daemons(made[0]) and not daemons(made[1]))
