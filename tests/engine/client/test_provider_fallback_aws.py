"""Specs of several regions of the test cloud: the cheapest one that has machines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from outrider import AWS, Spec
from outrider.engine.client.provider_fallback import ProviderFallback
from outrider.providers.base import EntryPoints, LaunchRequest
from outrider.testing import EC2, Behaviour, aws_faults

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2, least=2)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[EC2]:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "OUTRIDER_STATE": str(tmp_path / "state"),
        "OUTRIDER_CACHE": str(tmp_path / "cache"),
    }.items():
        monkeypatch.setenv(name, value)
    with EC2(Behaviour(boot_s=0.01, stop_s=0.01, types=("m7i.large", "m7i.xlarge"))) as cloud:
        yield cloud


def spec(cloud: EC2, region: str, vcpus: int) -> Spec:
    return Spec(provider=AWS(region, endpoint_url=cloud.endpoint_url), vcpus=vcpus, allocation="on-demand")


async def test_the_cheapest_region_is_asked_first(cloud: EC2) -> None:
    dear, cheap = spec(cloud, "us-west-2", 4), spec(cloud, "us-east-1", 2)
    async with ProviderFallback((dear, cheap), "cheapest").open("train", EntryPoints()) as fleet:
        with anyio.fail_after(60):
            machines = await fleet.launch(REQUEST, 2)
        assert {fleet.spec_of(machine.id) for machine in machines} == {cheap}
        assert {instance.zone[:-1] for instance in cloud.instances("pending", "running")} == {"us-east-1"}
    assert cloud.left() == []


async def test_where_it_has_none_the_next_region_is_asked_at_once(cloud: EC2) -> None:
    cloud.faults.add(*(aws_faults.NoCapacity(zone=f"us-east-1{letter}") for letter in "abcdef"))
    specs = spec(cloud, "us-west-2", 4), spec(cloud, "us-east-1", 2)
    async with ProviderFallback(specs, "cheapest").open("train", EntryPoints()) as fleet:
        with anyio.fail_after(60):
            machines = await fleet.launch(REQUEST, 2)
        assert {fleet.spec_of(machine.id) for machine in machines} == {specs[0]}
    assert cloud.left() == []
