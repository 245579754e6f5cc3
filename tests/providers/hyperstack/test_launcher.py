"""Launches at Hyperstack's test cloud: what is asked for, and that a lost answer never gives two machines."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from outrider import Hyperstack
from outrider.providers.base import EntryPoints, LaunchRequest, Warned
from outrider.providers.cloud import fleet as cloud_fleet
from outrider.providers.cloud.calls import is_lost
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from outrider.testing import HyperstackCloud, cloud_faults
from outrider.testing.clouds.shared.checks import event

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
Provider = Callable[..., Hyperstack]


async def test_a_machine_is_asked_for_with_all_that_a_pool_needs(provider: Provider, cloud: HyperstackCloud) -> None:
    async with provider(instance_types=["n3-L40x1"]).open("p", EntryPoints()) as fleet:
        request = LaunchRequest("ssh-ed25519 CLIENT", 1, max_lifetime_s=3600)
        (machine,) = await fleet.launch(request, 1)
        said = cloud.machine(machine.id).body
        assert said["environment_name"] == "default-CANADA-1"
        assert said["image_name"] == "Ubuntu Server 24.04 LTS R570 CUDA 12.8"
        assert said["assign_floating_ip"]
        assert not said["enable_port_randomization"]
        assert said["user_data"].startswith("#cloud-config")
        assert '"120", "30", "3600"' in said["user_data"]
        labels = dict(each.split("=", 1) for each in said["labels"])
        assert labels.keys() >= {"outrider:pool", "outrider:owner", "outrider:launch", "outrider:until"}
        assert said["name"] == f"outrider-p-{labels['outrider:launch']}"
        rules = {(each["remote_ip_prefix"], each["port_range_max"]) for each in said["security_rules"]}
        assert rules == {("127.0.0.1/32", 22), ("10.0.0.0/8", 65535)}
        assert machine.hourly_cost == pytest.approx(1.0067)
        (pair,) = cloud.key_pairs.values()
        assert pair["public_key"] == "ssh-ed25519 CLIENT"
    assert cloud.left() == []


async def test_the_user_is_told_once_that_nothing_ends_machines(provider: Provider) -> None:
    async with provider().open("p", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 2)
        first = await event(fleet, Warned)
        assert "outrider gc --apply" in first.text


async def test_a_key_pair_that_somebody_deletes_is_made_again(
    provider: Provider, cloud: HyperstackCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_fleet, "LAG_S", 9.0)  # the third of it is longer than a busy computer needs for a call
    async with provider(instance_types=["n1-cpu-small"]).open("p", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 1)
        cloud.key_pairs.clear()
        with anyio.fail_after(60):
            assert len(await fleet.launch(REQUEST, 1)) == 1
    assert cloud.left() == []


async def test_where_there_is_no_room_the_next_environment_is_asked_and_the_pool_stays_there(
    provider: Provider, cloud: HyperstackCloud
) -> None:
    cloud.faults.add(cloud_faults.NoCapacity(zone="default-CANADA-1"))
    async with provider(instance_types=["n1-cpu-small"]).open("p", EntryPoints()) as fleet:
        await fleet.launch(REQUEST, 1)
        cloud.faults.clear()
        await fleet.launch(REQUEST, 1)
        assert {each.zone for each in cloud.machines()} == {"default-NORWAY-1"}
        cloud.faults.add(cloud_faults.NoCapacity())
        with pytest.raises(NoCapacity, match="Not enough stock"):
            await fleet.launch(REQUEST, 1)


async def test_what_is_sold_out_is_not_asked_for(provider: Provider, cloud: HyperstackCloud) -> None:
    cloud.room = {("n3-A100x8", "NORWAY-1"): 0}
    async with provider(instance_types=["n3-A100x8"]).open("p", EntryPoints()) as fleet:
        with pytest.raises(NoCapacity, match="no n3-A100x8 left"):
            await fleet.launch(REQUEST, 1)
    assert cloud.calls["Create_VMs"] == 0


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind"),
    [
        (400, "bad_request", "Insufficient balance to create the resource", QuotaExceeded),
        (400, "bad_request", "VM quota exceeded", QuotaExceeded),
        (400, "bad_request", "Not enough capacity for flavor", NoCapacity),
        (200, "", "Not enough capacity for flavor", NoCapacity),  # its envelope says that it failed
        (400, "bad_request", "name is too long", BadRequest),
        (401, "unauthorized", "key revoked", NotAuthorized),
        (403, "forbidden", "no permission", NotAuthorized),
    ],
)
async def test_the_words_for_each_refusal(
    status: int, reason: str, message: str, kind: type[ProviderError], cloud: HyperstackCloud
) -> None:
    cloud.faults.add(cloud_faults.CallRefused("Create_VMs", reason, message, status, times=None))
    provider = Hyperstack(endpoint_url=cloud.endpoint_url, instance_types=["n1-cpu-small"])
    async with provider.open("p", EntryPoints()) as fleet:
        with pytest.raises(kind, match=message) as caught:
            await fleet.launch(REQUEST, 1)
        assert not is_lost(caught.value)
