"""Clients that are killed while they have machines: these end with their lease, and `gc` finds what is left."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from bars import tasks
from bars.site import until

from outrider import Pool

pytestmark = pytest.mark.anyio
LEASE_S = 8.0
SHUTDOWN_S = 60.0  # what the guarantee allows beyond the lease
CLIENT = """
import asyncio, sys
from outrider import AWS, Pool

async def main():
    provider = AWS(address="private")
    async with Pool(provider=provider, name="left", nodes=2, lease=float(sys.argv[1]), console="silent"):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""


@asynccontextmanager
async def client(lease_s: float = LEASE_S) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, str(lease_s), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def killed(process: asyncio.subprocess.Process, when: Callable[[], object]) -> float:
    """Its last moment."""
    await until(when, 60, what="the moment at which it was to be killed")
    process.kill()
    await process.wait()
    return time.time()


async def test_machines_whose_client_dies_end_with_their_lease(cloud, hypervisor, collected):
    began = time.time()
    async with client() as process:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 150) == b"ready\n"
        ended = await killed(process, lambda: True)
    assert len(hypervisor.hosts) == 2
    await until(lambda: not hypervisor.hosts, LEASE_S + SHUTDOWN_S, what="the machines ended themselves")
    await until(lambda: {each.state for each in cloud.instances()} == {"terminated"}, 60)
    assert cloud.ledger.unowned_seconds([(began, ended)]) <= 2 * (LEASE_S + SHUTDOWN_S)
    assert {each.reason[0] for each in cloud.instances() if each.reason} == {"Client.InstanceInitiatedShutdown"}
    await collected()
    assert cloud.left() == []


async def test_machines_that_their_client_never_reached_end_with_their_lease(cloud, hypervisor, collected):
    """A first contact is given half a minute more than a renewal: a machine's boot takes its time."""
    began = time.time()
    async with client() as process:
        ended = await killed(process, lambda: cloud.calls["DescribeInstances"] and cloud.instances())
    await until(lambda: {each.state for each in cloud.instances()} == {"terminated"}, LEASE_S + SHUTDOWN_S)
    assert len(cloud.instances()) == 2
    assert cloud.ledger.unowned_seconds([(began, ended)]) <= 2 * (LEASE_S + SHUTDOWN_S)
    await collected()
    assert cloud.left() == []


@pytest.mark.parametrize("action", ["CreateSecurityGroup", "DescribeInstances", "TerminateInstances"])
async def test_what_a_dead_client_has_left_is_collected_at_once(cloud, hypervisor, collected, action):
    """But for a CreateFleet whose answer it did not hear: for 150 s its machines may yet appear."""
    async with client() as process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        await killed(process, lambda: cloud.calls[action])
    await collected()
    assert hypervisor.hosts == {}
    assert cloud.left() == []
    assert {each.state for each in cloud.instances()} <= {"terminated"}


@pytest.mark.usefixtures("unhurried")
async def test_machines_of_a_dead_client_can_be_taken_over(cloud, hypervisor, aws):
    """With their replaced host keys: they are its very machines, and it launches none."""
    async with client(lease_s=60) as process:
        assert process.stdout is not None
        assert await asyncio.wait_for(process.stdout.readline(), 150) == b"ready\n"
        await killed(process, lambda: True)
    before = hypervisor.hosts
    async with Pool.attach("left", provider=aws(), nodes=2, console="silent") as pool:
        assert set(await pool.broadcast(tasks.where())) == {host.name for host in before.values()}
        assert hypervisor.hosts == before
    assert len(cloud.instances()) == 2
    assert cloud.left() == []
