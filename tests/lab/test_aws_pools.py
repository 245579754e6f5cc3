"""Pools on the test cloud, whose machines are real hosts: launched, reached, used, and gone for certain."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import asyncssh
import pytest
from bars import tasks
from bars.site import until

from outrider import Nodes, Pool, compute, instance_info
from outrider.testing import aws_faults

pytestmark = pytest.mark.anyio


@compute
def world() -> tuple[int, int, str, str]:
    info = instance_info()
    return info.rank, info.world_size, info.head_addr, info.hostname


@compute
def user() -> str:
    import os
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


@pytest.mark.usefixtures("unhurried")
async def test_four_spot_machines_run_a_broadcast_and_nothing_is_left(cloud, hypervisor, aws, lab):
    began = time.time()
    async with Pool(provider=aws(), nodes=4, allocation="spot", console="silent") as pool:
        assert [instance.market for instance in cloud.instances()] == ["spot"] * 4
        hosts = hypervisor.hosts.values()
        results = await pool.broadcast(world())
        assert [(rank, size) for rank, size, _, _ in results] == [(rank, 4) for rank in range(4)]
        assert {name for _, _, _, name in results} == {host.name for host in hosts}
        assert {head for _, _, head, _ in results} <= {host.address for host in hosts}
        assert set(await pool.broadcast(user())) == {"ubuntu"}
    ended = time.time()
    assert {instance.state for instance in cloud.instances()} == {"terminated"}
    assert lab.hosts == []
    assert cloud.left() == []
    assert cloud.ledger.unowned_seconds([(began, ended)]) == 0
    assert cloud.calls["CreateFleet"] == 1


async def test_machines_are_reached_at_their_public_addresses_where_that_is_wanted(cloud, hypervisor, aws):
    async with Pool(provider=aws(address="public"), nodes=2, console="silent") as pool:
        results = await pool.broadcast(world())
        assert {head for _, _, head, _ in results} <= {host.address for host in hypervisor.hosts.values()}, (
            "among each other they use the private ones"
        )
    assert cloud.left() == []


async def test_the_host_key_that_crossed_with_the_user_data_is_not_kept(cloud, hypervisor, aws, connect):
    async with Pool(provider=aws(), nodes=1, console="silent") as pool:
        [(instance, host)] = hypervisor.hosts.items()
        await until(lambda: not host.path("/etc/ssh/outrider_new").exists(), 60)
        now = host.path("/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[1]
        private = host.path("/etc/ssh/ssh_host_ed25519_key").read_text().split("\n")[1:-2]
        given = hypervisor.booted(instance).user_data
        assert now not in given
        assert not any(line in given for line in private[2:])
        with pytest.raises(asyncssh.HostKeyNotVerifiable):
            known = f"{host.address} {_public(given)}"
            await connect(host, known_hosts=asyncssh.import_known_hosts(known))
        host.stop_sshd(sessions=True)
        host.run("/usr/sbin/sshd")
        assert await pool.run(tasks.where()) == host.name, "and the new one is what the client knows"


def _public(user_data: str) -> str:
    """The host key that it brings."""
    import json

    key: str = json.loads(user_data.partition("\n")[2])["ssh_keys"]["ed25519_public"]
    return key


async def test_a_machine_with_another_host_key_is_refused_and_replaced(cloud, hypervisor, aws):
    """Not at once: until cloud-init has brought the key, a machine may answer with one of its own."""
    hypervisor.next_suffers("impostor")
    async with Pool(provider=aws(), nodes=2, boot_timeout=40, console="silent") as pool:
        assert len(set(await pool.broadcast(tasks.where()))) == 2
        assert len(cloud.instances("running")) == 2
        assert len(cloud.instances()) == 3
    assert cloud.left() == []


async def test_a_machine_that_never_answers_is_replaced(cloud, hypervisor, aws):
    hypervisor.next_suffers("deaf")
    async with asyncio.timeout(150):
        async with Pool(provider=aws(), nodes=2, boot_timeout=40, console="silent") as pool:
            assert len(set(await pool.broadcast(tasks.where()))) == 2
            assert len(cloud.instances()) == 3
    assert cloud.left() == []


@pytest.mark.parametrize("mishap", ["deaf", "impostor"])
async def test_a_machine_that_does_not_answer_as_the_others_do_is_made_up_for_at_once(
    cloud, hypervisor, aws, lab, mishap
):
    """With the usual `boot_timeout`, of ten minutes."""
    hypervisor.next_suffers(mishap)
    async with asyncio.timeout(150):
        async with Pool(provider=aws(), nodes=4, console="silent") as pool:
            assert len(set(await pool.broadcast(tasks.where()))) == 4
            assert 5 <= len(cloud.instances()) <= 8  # on a busy computer others may be late as well
            await until(lambda: len(cloud.instances("running")) == 4, 60)
    assert lab.hosts == []
    assert cloud.left() == []


async def test_zones_without_capacity_are_made_up_for_by_others(cloud, aws):
    cloud.faults.add(*(aws_faults.NoCapacity(zone=f"us-east-1{letter}") for letter in "abde"))
    async with Pool(provider=aws(), nodes=4, allocation="spot", console="silent") as pool:
        assert len(set(await pool.broadcast(tasks.where()))) == 4
        assert {instance.zone for instance in cloud.instances()} <= {"us-east-1c", "us-east-1f"}
    assert cloud.left() == []


@pytest.mark.usefixtures("unhurried")
async def test_a_launch_whose_answer_is_lost_is_not_made_twice(cloud, aws):
    cloud.faults.add(aws_faults.LostAnswer("CreateFleet"), aws_faults.LostAnswer("CreateSecurityGroup"))
    async with Pool(provider=aws(), nodes=2, console="silent") as pool:
        assert len(set(await pool.broadcast(tasks.where()))) == 2
        assert len(cloud.instances()) == 2
    assert cloud.left() == []


async def test_a_pool_whose_opening_is_cancelled_leaves_nothing(cloud, hypervisor, aws, lab):
    pool = Pool(provider=aws(), nodes=3, console="silent")
    opening = asyncio.create_task(pool.__aenter__())
    await until(lambda: hypervisor.hosts, 60)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert lab.hosts == []
    assert cloud.left() == []
    assert {instance.state for instance in cloud.instances()} == {"terminated"}


@pytest.mark.usefixtures("unhurried")
async def test_the_number_of_machines_follows_the_work_from_none_to_eight_and_back(cloud, hypervisor, aws, lab):
    nodes = Nodes(min=0, max=8, scale="load", idle=1)
    async with asyncio.timeout(220):
        async with Pool(provider=aws(), nodes=nodes, allocation="spot", console="silent") as pool:
            assert cloud.instances() == []
            jobs = [pool.submit(wait()) for _ in range(16)]
            await until(lambda: pool.snapshot().ready == 8, 100)
            waiting = [host.path("/tmp/waits") for host in hypervisor.hosts.values()]
            await until(lambda: all(each.exists() for each in waiting), 60, what="each has one")
            for host in hypervisor.hosts.values():
                host.run("touch", "/tmp/enough")
            assert len({await job for job in jobs}) == 8, "machines that came later took of the work, and none is lost"
            assert len(cloud.instances()) == 8, "never more than the most"
            await until(lambda: not cloud.instances("running"), 60)
            assert pool.snapshot().nodes == ()
            assert await pool.run(nap(0.0)) in {host.name for host in hypervisor.hosts.values()}
    assert lab.hosts == []
    assert cloud.left() == []


@compute
def wait() -> str:
    Path("/tmp/waits").touch()
    while not Path("/tmp/enough").exists():
        time.sleep(0.05)
    return instance_info().hostname


@compute
def nap(seconds: float) -> str:
    time.sleep(seconds)
    return instance_info().hostname
