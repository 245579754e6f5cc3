"""RunPod's launches: one pod in each, never two for one intent, with a host key of ours and a lease of its own."""

from __future__ import annotations

import gzip
import re
from base64 import b64decode
from collections.abc import Callable

import pytest

from outrider import RunPod
from outrider.providers.base import (
    AcceleratorRequest,
    EntryPoints,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    MachineReachable,
    Warned,
)
from outrider.providers.errors import BadRequest, NoCapacity, ProviderError
from outrider.providers.runpod.cloud import thing
from outrider.testing import RunPodCloud, cloud_faults

from ..cloud.suite import events

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 1)
TWO = LaunchRequest("ssh-ed25519 CLIENT", 2, accelerator=AcceleratorRequest("RTX4090"))
Provider = Callable[..., RunPod]


async def test_a_launch_of_several_makes_one_call_for_each_and_they_are_reached_at_mapped_ports(
    cloud: RunPodCloud, provider: Provider
) -> None:
    async with provider().open("pool", EntryPoints()) as fleet:
        machines = await fleet.launch(TWO, 2)
        assert len({each.host_key for each in machines}) == 2
        assert cloud.calls["createPod"] == 2
        reached = [each.machine for each in await events(fleet, 2) if isinstance(each, MachineReachable)]
        for each in reached:
            there = cloud.machine(each.id)
            assert each.address is not None
            assert (each.address.host, each.address.port, each.address.user) == (
                there.public_ip,
                there.body["port"],
                "root",
            )
            assert each.rotate_host_key
            assert each.private_address == there.private_ip  # by RunPod's own network, as there are several
            assert thing({"id": each.id, "name": there.body["name"]}).pool == "pool"
        assert len({each.facts["zone"] for each in reached}) == 1
    assert cloud.left() == []


async def test_pods_of_several_nodes_are_where_runpod_has_a_network_for_them(
    cloud: RunPodCloud, provider: Provider
) -> None:
    cloud.room = {("NVIDIA GeForce RTX 4090", "US-TX-3"): 8, ("NVIDIA GeForce RTX 4090", "US-KS-2"): 1}
    async with provider().open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(TWO, 2)
        assert cloud.machine(machine.id).zone == "US-KS-2"
        assert cloud.machine(machine.id).body["globalNetworking"] is True
        with pytest.raises(NoCapacity, match="RunPod says that it has no NVIDIA GeForce RTX 4090 left"):
            await fleet.launch(TWO, 1)


async def test_pods_that_do_not_reach_each_other_are_told_of_once(provider: Provider) -> None:
    async with provider(cloud="community").open("pool", EntryPoints()) as fleet:
        await fleet.launch(TWO, 1)
        await fleet.launch(TWO, 1)
        told = await events(fleet, 3)
        (warned,) = [each for each in told if isinstance(each, Warned)]
        assert "reach each other at no port" in warned.text
        assert all(each.machine.private_address == "" for each in told if isinstance(each, MachineReachable))


async def test_the_pods_command_has_its_host_key_the_pools_key_and_a_way_to_end_itself(
    cloud: RunPodCloud, provider: Provider
) -> None:
    async with provider().open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        (command,) = cloud.machine(machine.id).body["cmd"]
    packed = re.search(r"echo (\S+) \|", command)
    assert packed is not None
    script = gzip.decompress(b64decode(packed[1])).decode()
    assert "ssh-ed25519 CLIENT" in script
    assert "OPENSSH PRIVATE KEY" in script
    where = f"{cloud.endpoint_url}/v2/pods/$RUNPOD_POD_ID"
    assert f'call DELETE "{where}" "Authorization: Bearer $RUNPOD_API_KEY"' in script
    assert "rpa_" not in script  # the pod finds its own key in its environment


async def test_the_pod_of_a_lost_answer_is_found_in_a_list_of_several_pages(
    cloud: RunPodCloud, provider: Provider
) -> None:
    cloud.faults.add(cloud_faults.LostAnswer("createPod"))
    cloud.page = 1  # a list of several pages
    async with provider().open("other", EntryPoints()) as other, provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(ProviderError, match="did not answer POST /pods"):
            await fleet.launch(REQUEST, 1)
        await other.launch(REQUEST, 2)
        (machine,) = await fleet.launch(REQUEST, 1)
        mine = [each.id for each in cloud.machines() if ":pool:" in each.body["name"]]
        assert mine == [machine.id]
        assert machine.hourly_cost == 0.06
        told = [type(each) for each in await events(fleet, 3)]
        assert told == [LaunchUnsure, LaunchSettled, MachineReachable]


async def test_what_the_catalogue_has_no_room_for_is_not_asked_for(cloud: RunPodCloud, provider: Provider) -> None:
    cloud.room = {}
    async with provider(instance_types=["cpu3c"]).open("pool", EntryPoints()) as fleet:
        with pytest.raises(NoCapacity, match="says that it has no cpu3c left in its data centers now"):
            await fleet.launch(REQUEST, 1)


async def test_the_next_type_is_asked_for_where_one_is_not_to_be_placed(cloud: RunPodCloud, provider: Provider) -> None:
    """A 400 means that a rule is broken, or that there is no room: RunPod has no code by which to tell them apart."""
    cloud.faults.add(cloud_faults.CallRefused("createPod", message="this cannot be placed", status=400))
    async with provider().open("pool", EntryPoints()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert machine.facts["type"] == "cpu5c"
        cloud.faults.add(cloud_faults.CallRefused("createPod", message="a broken rule", status=400, times=None))
        with pytest.raises(BadRequest, match="a broken rule"):
            await fleet.launch(REQUEST, 1)


async def test_a_pod_that_was_placed_elsewhere_is_ended(
    cloud: RunPodCloud, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``dataCenterIds`` are "preferred" ones, by RunPod's document."""
    create = cloud._create
    monkeypatch.setattr(cloud, "_create", lambda said: create({**said, "dataCenterIds": ["EU-RO-1"]}))
    chosen = provider(data_centers=["US-KS-2"], instance_types=["cpu3c"])
    async with chosen.open("pool", EntryPoints()) as fleet:
        with pytest.raises(NoCapacity, match="has placed a pod in EU-RO-1, and not in US-KS-2: it is ended"):
            await fleet.launch(REQUEST, 1)
        assert cloud.left() == []


async def test_a_spot_pod_is_refused_in_words(provider: Provider) -> None:
    async with provider().open("pool", EntryPoints()) as fleet:
        with pytest.raises(BadRequest, match="RunPod's interface v2 sells no spot pods"):
            await fleet.launch(LaunchRequest("ssh-ed25519 CLIENT", 1, allocation="spot"), 1)
