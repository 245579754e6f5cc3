"""Pools in containers that are rented at Vast.ai: hosts behind its interface, reached by ports that it has mapped."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bars.site import said, until

from outrider import Pool, Vast, compute, instance_info

if TYPE_CHECKING:
    from cloud import RentedContainers
    from netlab import Lab

    from outrider.testing import VastCloud

pytestmark = pytest.mark.anyio
LEASE_S, DELETED_S = 8.0, 60.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "aws_spot.py"
QUICK = "from outrider.providers.vast import api; api.LIMITS = dict.fromkeys(api.LIMITS, (99.0, 99.0))"
CLIENT = f"""
import asyncio, sys
from outrider import Pool, Vast
{QUICK}

async def main():
    async with Pool(provider=Vast(endpoint_url=sys.argv[1]), name=sys.argv[2], nodes=2, lease=float(sys.argv[3])):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
COMMAND = f"{QUICK}; import sys; from outrider.engine.cli.main import main; sys.exit(main())"


@pytest.fixture
def containers(lab: Lab) -> Iterator[RentedContainers]:
    from cloud import RentedContainers

    made = RentedContainers(lab)
    yield made
    made.close()


@pytest.fixture
def vast_cloud(
    lab: Lab, containers: RentedContainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[VastCloud]:
    from outrider.providers.vast import api
    from outrider.testing import VastCloud

    monkeypatch.setenv("VAST_API_KEY", "any")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(api, "LIMITS", dict.fromkeys(api.LIMITS, (99.0, 99.0)))
    subnet = str(lab.network.subnet)
    with VastCloud(hypervisor=containers, network=subnet, public_network=None, address=lab.address) as cloud:
        yield cloud


@pytest.fixture
def provider(vast_cloud: VastCloud) -> Callable[..., Vast]:
    return lambda **options: Vast(endpoint_url=vast_cloud.endpoint_url, **options)


@compute
def seen() -> tuple[int, str, bool]:
    return instance_info().node, os.environ["PATH"], "CONTAINER_API_KEY" in os.environ


async def test_a_pool_runs_in_rented_containers_and_leaves_nothing(
    vast_cloud: VastCloud, containers: RentedContainers, provider: Callable[..., Vast], caplog: pytest.LogCaptureFixture
) -> None:
    async with Pool(provider=provider(), nodes=2) as pool:
        found = await pool.broadcast(seen())
        assert [node for node, _, _ in found] == [0, 1]
        assert all(path.startswith("/run/outrider/bin:") for _, path, _ in found)
        assert not any(has_key for _, _, has_key in found)
        assert len(vast_cloud.machines("running")) == 2
        for machine, host in containers.hosts.items():
            given = vast_cloud.machine(machine).body["args"][1]
            key = host.path("/etc/ssh/ssh_host_ed25519_key").read_text()
            assert key.splitlines()[1] not in given  # it was replaced at the first contact
    assert vast_cloud.left() == []
    assert caplog.text.count("reach each other at no port") == 1


async def killed(cloud: VastCloud, pool: str, *, lease_s: float = LEASE_S) -> float:
    """Kill a client while its pool is open, and return when."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, cloud.endpoint_url, pool, str(lease_s)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert client.stdout is not None
        assert await asyncio.wait_for(client.stdout.readline(), 150) == b"open\n"
    finally:
        os.kill(client.pid, signal.SIGKILL)
        await client.wait()
    return cloud.time()


async def test_a_dead_clients_containers_delete_themselves(vast_cloud: VastCloud) -> None:
    died = await killed(vast_cloud, "dead")
    await until(lambda: not vast_cloud.left(), LEASE_S + DELETED_S)
    assert vast_cloud.calls["destroyInstances"] == 0
    assert vast_cloud.calls["destroyInstance"] >= 2  # each by its own key
    assert vast_cloud.ledger.unowned_seconds([(0.0, died)]) < 2 * (LEASE_S + DELETED_S)


@pytest.mark.nightly
async def test_containers_that_cannot_delete_themselves_are_left_to_gc(vast_cloud: VastCloud) -> None:
    from outrider.testing import cloud_faults

    vast_cloud.faults.add(cloud_faults.CallRefused("destroyInstance", "no", "Not now.", 500, times=None))
    await killed(vast_cloud, "dead")
    await until(lambda: vast_cloud.calls["destroyInstance"] >= 4, LEASE_S + DELETED_S)  # they ask again
    assert len(vast_cloud.machines("running")) == 2
    for words in (["ps"], ["gc", "--apply"]):
        command = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", COMMAND, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said, _ = await asyncio.wait_for(command.communicate(), 200)
        assert command.returncode == 0, said.decode()
        assert b"dead" in said
        assert b"RTX 4090" in said or words != ["ps"]
    assert vast_cloud.left() == []


@pytest.mark.nightly
async def test_another_client_attaches_to_a_dead_ones_containers(
    vast_cloud: VastCloud, provider: Callable[..., Vast]
) -> None:
    await killed(vast_cloud, "kept", lease_s=120.0)
    mine = {each.id for each in vast_cloud.machines("running")}
    async with Pool.attach("kept", provider=provider(), nodes=2) as pool:
        assert sorted(node for node, _, _ in await pool.broadcast(seen())) == [0, 1]
        assert {each.id for each in vast_cloud.machines("running")} == mine
    assert vast_cloud.left() == []


@pytest.mark.nightly
async def test_the_training_of_digits_survives_two_lost_bids(
    vast_cloud: VastCloud, containers: RentedContainers, tmp_path: Path
) -> None:
    """One machine with two ranks, as those of Vast.ai cannot reach each other; its state is at the client every ten
    epochs, as there is no notice.
    """
    pytest.importorskip("torch")
    program = tmp_path / "vast_spot.py"
    text = EXAMPLE.read_text().replace("import AWS,", "import Vast,")
    text = text.replace("AWS(ami=PYTORCH)", f"Vast(endpoint_url={vast_cloud.endpoint_url!r})")
    text = text.replace("nodes=4", "nodes=1").replace("plugins.torch()", "plugins.torch(ranks_per_node=2)")
    text = text.replace("if should_stop(everywhere=True):", "if done % 10 == 0:")
    program.write_text(f"{QUICK}\n{text}")
    process = await asyncio.create_subprocess_exec(sys.executable, "-u", program, stdout=asyncio.subprocess.PIPE)
    taken: set[str] = set()
    try:
        for stretch in (2, 5):
            await said(process, rb"stretch %d ends after epoch (\d+)" % stretch)
            victim = next(each for each in containers.hosts if each not in taken)
            taken.add(victim)
            vast_cloud.outbid(victim)
        await said(process, rb"stretch 10 ends after epoch 100")
        await said(process, rb"four spot instances: (9[5-9]|100)\.\d\d%")
        assert await asyncio.wait_for(process.wait(), 120) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert len(vast_cloud.machines()) == 3, "nothing was replaced twice"
    assert {each.market for each in vast_cloud.machines()} == {"spot"}
    assert vast_cloud.left() == []
