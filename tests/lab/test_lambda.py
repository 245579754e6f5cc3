"""Pools of Lambda's machines: hosts behind its interface, which are billed until somebody ends them."""

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

from outrider import Lambda, Pool, compute, instance_info

if TYPE_CHECKING:
    from cloud import LabHypervisor
    from netlab import Lab

    from outrider.testing import LambdaCloud

pytestmark = pytest.mark.anyio
LEASE_S = 8.0
QUICK = "from outrider.providers.lambda_labs import api; api.LIMITS = dict.fromkeys(api.LIMITS, (99.0, 99.0))"
CLIENT = f"""
import asyncio, os, sys
from outrider import Lambda, Pool
{QUICK}

async def main():
    async with Pool(provider=Lambda(endpoint_url=sys.argv[1]), name=sys.argv[2], nodes=2, lease=float(sys.argv[3])):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""
COMMAND = f"{QUICK}; import sys; from outrider.engine.cli.main import main; sys.exit(main())"


@pytest.fixture
def lambda_cloud(
    lab: Lab, hypervisor: LabHypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LambdaCloud]:
    from outrider.providers.lambda_labs import api
    from outrider.testing import LambdaCloud

    monkeypatch.setenv("LAMBDA_API_KEY", "any")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(api, "LIMITS", dict.fromkeys(api.LIMITS, (99.0, 99.0)))
    with LambdaCloud(hypervisor=hypervisor, network=str(lab.network.subnet), public_network=None) as cloud:
        yield cloud


@pytest.fixture
def provider(lambda_cloud: LambdaCloud) -> Callable[..., Lambda]:
    return lambda **options: Lambda(endpoint_url=lambda_cloud.endpoint_url, **options)


@compute
def where() -> int:
    return instance_info().node


async def test_a_pool_runs_on_lambdas_machines_and_leaves_nothing(
    lambda_cloud: LambdaCloud, provider: Callable[..., Lambda], caplog: pytest.LogCaptureFixture
) -> None:
    async with Pool(provider=provider(), nodes=2) as pool:
        assert await pool.broadcast(where()) == [0, 1]
        assert len(lambda_cloud.machines("running")) == 2
    assert lambda_cloud.left() == []
    assert caplog.text.count("outrider gc --apply") == 1  # that a killed program's machines cost money, once


async def killed(cloud: LambdaCloud, pool: str, *, lease_s: float = LEASE_S) -> None:
    """A client that was killed while its pool was open."""
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


async def test_a_dead_clients_machines_stop_working_and_cost_until_gc_ends_them(
    lambda_cloud: LambdaCloud, hypervisor: LabHypervisor
) -> None:
    await killed(lambda_cloud, "dead")
    await until(lambda: not hypervisor.hosts, LEASE_S + 60)  # they have powered themselves off
    assert len(lambda_cloud.machines("running")) == 2  # and are billed
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "ps"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(command.communicate(), 200)
    assert b"dead" in said
    assert b"cpu_4x_general" in said
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", COMMAND, "gc", "--apply"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(command.communicate(), 200)
    assert command.returncode == 0, said.decode()
    assert lambda_cloud.left() == []


@pytest.mark.nightly
async def test_another_client_attaches_to_a_dead_ones_machines(
    lambda_cloud: LambdaCloud, provider: Callable[..., Lambda]
) -> None:
    await killed(lambda_cloud, "kept", lease_s=120.0)
    mine = {each.id for each in lambda_cloud.machines("running")}
    async with Pool.attach("kept", provider=provider(), nodes=2) as pool:
        assert sorted(await pool.broadcast(where())) == [0, 1]
        assert {each.id for each in lambda_cloud.machines("running")} == mine
    assert lambda_cloud.left() == []
