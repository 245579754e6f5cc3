"""Launches at Vast.ai: one machine in each, never two for one intent, of the first offer that is still there."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from outrider import Vast
from outrider.providers.base import (
    AcceleratorRequest,
    EntryPoints,
    LaunchRequest,
    MachineGone,
    MachineReachable,
    Warned,
)
from outrider.providers.cloud import fleet as poller
from outrider.providers.cloud import labels
from outrider.providers.cloud.machine_start import LEASE
from outrider.providers.errors import NoCapacity, QuotaExceeded
from outrider.testing import Rentable, VastCloud, cloud_faults

from ..cloud.suite import events

pytestmark = pytest.mark.anyio
CLIENT = "ssh-ed25519 CLIENT"
REQUEST = LaunchRequest(CLIENT, 1)
Provider = Callable[..., Vast]


async def test_each_machine_is_another_offer_and_is_reached_at_its_mapped_port(
    cloud: VastCloud, provider: Provider
) -> None:
    async with provider().open("my-pool", EntryPoints()) as fleet:
        machines = await fleet.launch(LaunchRequest(CLIENT, 3, allocation="on-demand", max_lifetime_s=3600.0), 3)
        assert len({each.facts["offer"] for each in machines}) == 3
        assert cloud.calls["createInstance"] == 3
        assert cloud.calls["searchOffers"] == 1
        warned, *reachable = await events(fleet, 4)
        assert isinstance(warned, Warned)
        assert "reach each other at no port" in warned.text
        for event in reachable:
            assert isinstance(event, MachineReachable)
            address, there = event.machine.address, cloud.machine(event.machine.id)
            assert address is not None
            assert (address.host, address.user) == (there.public_ip, "root")
            assert str(address.port) == there.metadata["VAST_TCP_PORT_22"]
            assert event.machine.lease == LEASE
            assert event.machine.rotate_host_key
            assert there.labels[labels.POOL] == "my-pool"
            assert float(there.labels[labels.UNTIL]) - float(there.labels[labels.AT]) == pytest.approx(3600, abs=1)
            assert there.body["runtype"] == "args"
            assert "price" not in there.body
            assert event.machine.hourly_cost == pytest.approx(there.hourly_usd)
    assert cloud.left() == []


async def test_a_spot_machine_is_bid_for_and_counts_with_its_disk(cloud: VastCloud, provider: Provider) -> None:
    cloud.offered = {7: Rentable(id=7, usd=0.5, min_bid=0.2, storage_usd=0.15)}
    async with provider(bid=1.5).open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(LaunchRequest(CLIENT, 1, allocation="spot", disk_gb=72), 1)
        there = cloud.machine(machine.id)
        assert (there.body["price"], there.body["disk"], there.market) == (0.3, 72, "spot")
        assert machine.hourly_cost == pytest.approx(0.3 + 0.15 * 72 / 720)
        assert machine.hourly_cost == pytest.approx(there.hourly_usd)


async def test_an_outbid_machine_is_lost_and_deleted(
    cloud: VastCloud, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "pause_s", lambda *, busy, requests: 0.1)
    async with provider().open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(LaunchRequest(CLIENT, 1, allocation="spot"), 1)
        await events(fleet, 1)
        cloud.outbid(machine.id)
        (gone,) = await events(fleet, 1)
        assert isinstance(gone, MachineGone)
        assert "somebody bid more" in gone.cause
        with anyio.fail_after(60):
            while cloud.machine(machine.id).state != "terminated":
                await anyio.sleep(0.05)
        (other,) = await fleet.launch(LaunchRequest(CLIENT, 1, allocation="spot"), 1)
        assert other.facts["offer"] != machine.facts["offer"]


async def test_an_offer_that_is_gone_costs_a_try_and_not_the_launch(cloud: VastCloud, provider: Provider) -> None:
    cloud.faults.add(cloud_faults.NoCapacity(times=2))
    async with provider().open("pool", EntryPoints()) as fleet:
        machines = await fleet.launch(REQUEST, 1)
        assert len(machines) == 1
        assert cloud.calls["createInstance"] == 3
        assert len(cloud.machines()) == 1


async def test_when_there_are_none_it_is_told_what_was_looked_for(cloud: VastCloud, provider: Provider) -> None:
    cloud.offered = {}
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(
            NoCapacity, match=r"no offer of 4 H100 now that fits this pool, and what Vast\(reliability="
        ) as told:
            await fleet.launch(LaunchRequest(CLIENT, 1, accelerator=AcceleratorRequest("H100", 4)), 1)
        assert told.value.retry_after_s is not None


async def test_an_account_without_credit_is_told_before_anything_is_searched(
    cloud: VastCloud, provider: Provider
) -> None:
    cloud.credit_usd = 0.0
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(QuotaExceeded, match=r"has 0.00 USD of credit: add some at https://cloud.vast.ai/billing/"):
            await fleet.launch(REQUEST, 1)
        assert cloud.calls["searchOffers"] == 0
        cloud.credit_usd = 5.0
        assert len(await fleet.launch(REQUEST, 1)) == 1
        cloud.credit_usd = 0.0
        with pytest.raises(QuotaExceeded, match=r"no credit left.*\(insufficient_credit: Your account lacks credit"):
            await fleet.launch(REQUEST, 1)


async def test_the_image_is_the_pools_or_the_providers_and_a_long_name_fits(
    cloud: VastCloud, provider: Provider
) -> None:
    async with provider(image="pytorch/pytorch:2.9.1").open("pool", EntryPoints()) as fleet:
        (one,) = await fleet.launch(REQUEST, 1)
        (two,) = await fleet.launch(LaunchRequest(CLIENT, 1, container="ubuntu:24.04"), 1)
        images = [cloud.machine(each.id).body["image"] for each in (one, two)]
        assert images == ["pytorch/pytorch:2.9.1", "ubuntu:24.04"]
    async with provider().open("x" * 63, EntryPoints()) as fleet:
        (machine,) = await fleet.launch(LaunchRequest(CLIENT, 1, max_lifetime_s=60.0), 1)
        assert cloud.machine(machine.id).labels[labels.POOL] == "x" * 63


async def test_offers_of_one_launch_are_not_those_of_another_at_the_same_time(
    cloud: VastCloud, provider: Provider
) -> None:
    cloud.offered = {each: Rentable(id=each, usd=0.4 + each / 100) for each in range(1, 5)}
    cloud.faults.add(cloud_faults.Slow("createInstance", seconds=0.2, times=None))
    made: list[str] = []
    async with provider().open("pool", EntryPoints()) as fleet:

        async def launch() -> None:
            made.extend(each.facts["offer"] for each in await fleet.launch(REQUEST, 1))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(launch)
            tasks.start_soon(launch)
        assert len(set(made)) == 2
