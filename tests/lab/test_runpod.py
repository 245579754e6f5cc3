"""Pools of RunPod's pods: hosts behind its interface, which serve SSH and end themselves as a rented container does."""

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
from bars.site import until

from outrider import Pool, RunPod, compute, instance_info

if TYPE_CHECKING:
    from cloud import RentedContainers
    from netlab import Lab

    from outrider.testing import RunPodCloud

pytestmark = pytest.mark.anyio
LEASE_S, OPEN_S = 8.0, 150.0
QUICK = "from outrider.providers.runpod import api; api.LIMITS = dict.fromkeys(api.LIMITS, (99.0, 99.0))"
CLIENT = f"""
import asyncio, sys
from outrider import Pool, RunPod
{QUICK}

async def main():
    provider = RunPod(endpoint_url=sys.argv[1])
    async with Pool(provider=provider, name=sys.argv[2], nodes=2, lease=float(sys.argv[3])):
        print("open", flush=True)
        await asyncio.sleep(600)

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
def runpod(
    lab: Lab, containers: RentedContainers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunPodCloud]:
    from outrider.providers.runpod import api
    from outrider.testing import RunPodCloud

    monkeypatch.setenv("RUNPOD_API_KEY", "any")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(api, "LIMITS", dict.fromkeys(api.LIMITS, (99.0, 99.0)))
    with RunPodCloud(
        hypervisor=containers, network=str(lab.network.subnet), public_network=None, address=lab.address
    ) as cloud:
        yield cloud


@pytest.fixture
def provider(runpod: RunPodCloud) -> Callable[..., RunPod]:
    return lambda **options: RunPod(endpoint_url=runpod.endpoint_url, **options)


@compute
def where() -> int:
    return instance_info().node


async def test_a_pool_runs_on_runpods_pods_and_leaves_nothing(
    runpod: RunPodCloud, provider: Callable[..., RunPod]
) -> None:
    async with Pool(provider=provider(), nodes=2, console="silent") as pool:
        assert await pool.broadcast(where()) == [0, 1]
        assert len(runpod.machines("running")) == 2
    assert runpod.left() == []


async def killed(cloud: RunPodCloud, pool: str, *, lease_s: float = LEASE_S) -> None:
    """A client that was killed while its pool was open."""
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, cloud.endpoint_url, pool, str(lease_s)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert client.stdout is not None
        assert await asyncio.wait_for(client.stdout.readline(), OPEN_S) == b"open\n"
    finally:
        os.kill(client.pid, signal.SIGKILL)
        await client.wait()


async def command(*verbs: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, *verbs), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(process.communicate(), 200)
    assert process.returncode == 0, said.decode()
    return said.decode()


async def test_a_dead_clients_pods_delete_themselves_with_their_own_keys(
    runpod: RunPodCloud, containers: RentedContainers
) -> None:
    await killed(runpod, "dead")
    died = runpod.time()
    await until(lambda: runpod.left() == [], LEASE_S + 60)
    print(f"deleted {runpod.time() - died:.1f} s after the client's death")
    assert runpod.calls["deletePod"] == 2
    assert not containers.hosts


@pytest.mark.nightly
async def test_pods_that_may_not_delete_themselves_cost_until_gc_ends_them(runpod: RunPodCloud) -> None:
    runpod.pod_keys = False
    await killed(runpod, "dead")
    await until(lambda: runpod.calls["deletePod"] >= 2, LEASE_S + 60)  # both are refused
    assert len(runpod.left()) == 2  # a host of the lab may then switch itself off, which ends no pod
    said = await command("ps")
    assert "dead" in said
    assert "cpu3c" in said
    await command("gc", "--apply")
    assert runpod.left() == []


@pytest.mark.nightly
async def test_another_client_attaches_to_a_dead_ones_pods(
    runpod: RunPodCloud, provider: Callable[..., RunPod]
) -> None:
    await killed(runpod, "kept", lease_s=120.0)
    mine = {each.id for each in runpod.machines("running")}
    async with Pool.attach("kept", provider=provider(), nodes=2) as pool:
        assert sorted(await pool.broadcast(where())) == [0, 1]
        assert {each.id for each in runpod.machines("running")} == mine
    assert runpod.left() == []
