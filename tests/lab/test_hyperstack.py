"""Pools of Hyperstack's machines: hosts behind its interface, which are billed until somebody deletes them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bars.site import said, until

from outrider import Hyperstack, Pool, compute, instance_info

if TYPE_CHECKING:
    from cloud import LabHypervisor
    from netlab import Lab

    from outrider.testing import HyperstackCloud

pytestmark = [pytest.mark.anyio, pytest.mark.nightly]
LEASE_S = 8.0
EXAMPLE = Path(__file__).parents[2] / "examples" / "aws_spot.py"
CLIENT = """
import asyncio, sys
from outrider import Hyperstack, Pool

async def main():
    async with Pool(provider=Hyperstack(endpoint_url=sys.argv[1]), name="dead", nodes=2, lease=float(sys.argv[2])):
        print("open", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def cloud(
    lab: Lab, hypervisor: LabHypervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HyperstackCloud]:
    from outrider.testing import HyperstackCloud

    monkeypatch.setenv("HYPERSTACK_API_KEY", "any")
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path / "state"))
    with HyperstackCloud(hypervisor=hypervisor, network=str(lab.network.subnet), public_network=None) as cloud:
        assert isinstance(cloud, HyperstackCloud)
        yield cloud


@compute
def where() -> int:
    return instance_info().node


async def test_a_pool_runs_on_hyperstacks_machines_and_leaves_nothing(
    cloud: HyperstackCloud, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pool(provider=Hyperstack(endpoint_url=cloud.endpoint_url), nodes=2) as pool:
        assert await pool.broadcast(where()) == [0, 1]
        assert len(cloud.machines("running")) == 2
    assert cloud.left() == []
    assert caplog.text.count("outrider gc --apply") == 1  # that a killed program's machines cost money, once


async def test_a_dead_clients_machines_power_themselves_off_and_cost_until_gc_deletes_them(
    cloud: HyperstackCloud, hypervisor: LabHypervisor
) -> None:
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", CLIENT, cloud.endpoint_url, str(LEASE_S)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert client.stdout is not None
        assert await asyncio.wait_for(client.stdout.readline(), 150) == b"open\n"
    finally:
        os.kill(client.pid, signal.SIGKILL)
        await client.wait()
    await until(lambda: len(cloud.machines("stopped")) == 2, LEASE_S + 60)  # and they are billed
    assert not hypervisor.hosts
    gc = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "outrider", "gc", "--apply"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said, _ = await asyncio.wait_for(gc.communicate(), 200)
    assert gc.returncode == 0, said.decode()
    assert cloud.left() == []


async def test_the_training_of_digits_survives_two_lost_spot_machines(
    cloud: HyperstackCloud, hypervisor: LabHypervisor, tmp_path: Path
) -> None:
    """Its state is at the client every ten epochs, as there is no notice."""
    pytest.importorskip("torch")
    program = tmp_path / "hyperstack_spot.py"
    provider = f"Hyperstack(endpoint_url={cloud.endpoint_url!r}, instance_types=['n3-RTX-A6000x1-spot'])"
    text = EXAMPLE.read_text().replace("import AWS,", "import Hyperstack,").replace("AWS(ami=PYTORCH)", provider)
    program.write_text(text.replace("if should_stop(everywhere=True):", "if done % 10 == 0:"))
    process = await asyncio.create_subprocess_exec(sys.executable, "-u", program, stdout=asyncio.subprocess.PIPE)
    taken: set[str] = set()
    try:
        for stretch in (2, 5):
            await said(process, rb"stretch %d ends after epoch (\d+)" % stretch)
            victim = next(each for each in hypervisor.hosts if each not in taken)
            taken.add(victim)
            cloud.take_back(victim)
        await said(process, rb"stretch 10 ends after epoch 100")
        await said(process, rb"four spot instances: (9[5-9]|100)\.\d\d%")
        assert await asyncio.wait_for(process.wait(), 60) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert len(cloud.machines()) == 6, "nothing was replaced twice"
    assert {each.market for each in cloud.machines()} == {"spot"}
    assert cloud.left() == []
