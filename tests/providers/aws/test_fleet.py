"""A pool's machines on EC2, when all is well and when it is not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from outrider import AWS
from outrider.providers.aws import cloud as leftovers
from outrider.providers.aws.api import Api
from outrider.providers.aws.cloud import EC2Cloud
from outrider.providers.base import (
    AcceleratorRequest,
    EntryPoints,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineReachable,
    Warned,
)
from outrider.providers.cloud import fleet as fleets
from outrider.providers.cloud import inventory, recorder, teardown
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.fleet import CloudFleet
from outrider.providers.cloud.inventory import GRACE_S
from outrider.providers.errors import BadRequest, NoCapacity, NotAuthorized, NotGone, ProviderError, QuotaExceeded
from outrider.providers.shared.journal import Journal
from outrider.testing import EC2, Behaviour
from outrider.testing import aws_faults as faults

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 4)
ONE_TYPE = {"instance_types": ["m7i.large"]}
ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")
WITHIN_S = 120.0
Provider = Callable[..., AWS]


@asynccontextmanager
async def opened(provider: AWS, pool: str = "pool") -> AsyncIterator[CloudFleet]:
    """What the body raises comes out alone."""
    raised: Exception | None = None
    try:
        async with provider.open(pool, EntryPoints()) as fleet:
            try:
                with anyio.fail_after(WITHIN_S):
                    yield fleet
            except Exception as error:  # noqa: BLE001
                raised = error
    except ExceptionGroup as group:
        raise group.exceptions[0] from None
    if raised is not None:
        raise raised


async def event(fleet: CloudFleet, kind: type[MachineEvent], machine: MachineId | None = None) -> MachineEvent:
    async for each in fleet.events():
        if isinstance(each, Warned):
            continue
        found = each.machine.id if isinstance(each, MachineReachable) else each.id
        if isinstance(each, kind) and machine in (None, found):
            return each
    raise AssertionError("the events ended")


async def until(holds: Callable[[], object]) -> None:
    with anyio.fail_after(WITHIN_S):
        while not holds():
            await anyio.sleep(0.01)


async def running(cloud: EC2, machines: Sequence[Machine]) -> None:
    await until(lambda: all(cloud.instance(machine.id).state == "running" for machine in machines))


# --- when all is well -------------------------------------------------------------------------------------------------


async def test_sixty_four_machines_take_one_call_and_leave_nothing(
    cloud: EC2, aws: Provider, journal_path: Path
) -> None:
    async with opened(aws(tags={"team": "ml"})) as fleet:
        machines = await fleet.launch(replace(REQUEST, nodes=64, disk_gb=50), 64)
        assert len({machine.id for machine in machines}) == 64
        assert cloud.calls["CreateFleet"] == cloud.calls["CreateLaunchTemplate"] == 1
        for instance in cloud.instances():
            assert instance.tags["outrider:pool"] == "pool"
            assert instance.tags["team"] == "ml"
            assert "@" in instance.tags["outrider:owner"]
            assert instance.on_shutdown == "terminate"
            assert instance.metadata_options["HttpTokens"] == "required"
        (record,) = Journal.open(journal_path).records()
        (written,) = [intent for intent in record.intents if intent.kind == "fleet"]
        assert set(written.ids or ()) == {machine.id for machine in machines}
        kinds = {each.kind for each in cloud.left()}
        assert {"instance", "volume", "spot request", "launch template", "security group"} <= kinds
        assert all(each.tags.get("outrider:pool") == "pool" for each in cloud.left())
    assert cloud.left() == []
    assert Journal.open(journal_path).records() == []


async def test_a_machine_is_what_its_pool_needs_to_know(cloud: EC2, aws: Provider) -> None:
    async with opened(aws(rebalance=True)) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert machine.address is None
        assert machine.host_key.startswith("ssh-ed25519 ")
        assert machine.rotate_host_key
        assert machine.notices == ("aws", "aws-rebalance")
        assert machine.lease == "/run/outrider/lease"
        told = cloud.instance(machine.id)
        assert (machine.facts["type"], machine.facts["zone"], machine.facts["market"]) == (
            told.type,
            told.zone,
            told.market,
        )
        assert machine.hourly_cost > told.hourly_usd  # and its volume, and its address
        said = await event(fleet, MachineReachable)
        assert isinstance(said, MachineReachable)
        assert said.machine.address is not None
        told = cloud.instance(machine.id)
        assert (said.machine.address.host, said.machine.private_address) == (
            told.public_ip,
            told.private_ip,
        )
        assert said.machine.address.user == "ubuntu"


async def test_private_machines_have_no_public_address(cloud: EC2, aws: Provider) -> None:
    async with opened(aws(address="private")) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        said = await event(fleet, MachineReachable)
        assert isinstance(said, MachineReachable)
        assert said.machine.address is not None
        told = cloud.instance(machine.id)
        assert (said.machine.address.host, told.public_ip) == (told.private_ip, None)


async def test_launches_of_one_shape_share_a_template(cloud: EC2, aws: Provider) -> None:
    async with opened(aws()) as fleet:
        (one,) = await fleet.launch(REQUEST, 1)
        (two,) = await fleet.launch(REQUEST, 1)
        assert cloud.calls["CreateLaunchTemplate"] == 1
        assert one.host_key == two.host_key
        (other,) = await fleet.launch(replace(REQUEST, disk_gb=99), 1)
        assert cloud.calls["CreateLaunchTemplate"] == 2
        assert other.host_key != one.host_key


async def test_a_template_that_somebody_deleted_is_made_again(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleets, "LAG_S", 9.0)  # the third of it is longer than a busy computer needs for a call
    monkeypatch.setattr(fleets, "AGAIN_S", 0.1)
    async with opened(aws()) as fleet, Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        await fleet.launch(REQUEST, 1)
        for template in await leftovers.shown_of(api, leftovers.TEMPLATES, "pool"):
            await api.call("delete_launch_template", LaunchTemplateName=template.id)
        assert len(await fleet.launch(REQUEST, 1)) == 1


async def test_machines_of_several_devices_are_side_by_side_with_efa_on_every_card(cloud: EC2, aws: Provider) -> None:
    request = replace(REQUEST, nodes=2, accelerator=AcceleratorRequest("A100", 8))
    async with opened(aws(address="private")) as fleet:
        one, two = await fleet.launch(request, 2)
        told = cloud.instance(one.id)
        assert told.placement_group == "outrider-pool"
        assert told.efa
        assert one.facts["efa"] == "4 of 4 interfaces"
        assert one.facts["zone"] == two.facts["zone"]
        (third,) = await fleet.launch(request, 1)
        assert third.facts["zone"] == one.facts["zone"]
        assert cloud.calls["CreatePlacementGroup"] == 1
    assert cloud.left() == []


async def test_somebody_elses_placement_group_of_the_pools_name_is_left_alone(cloud: EC2, aws: Provider) -> None:
    request = replace(REQUEST, accelerator=AcceleratorRequest("A100", 8))
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        await api.call("create_placement_group", GroupName="outrider-pool", Strategy="cluster")
        async with opened(aws()) as fleet:
            machines = await fleet.launch(request, 2)
            (used,) = {cloud.instance(machine.id).placement_group for machine in machines}
            assert used.startswith("outrider-pool-")
        await api.call("delete_placement_group", GroupName="outrider-pool")
    assert cloud.left() == []


async def test_a_placement_group_whose_answer_was_lost_is_the_pools_own(cloud: EC2, aws: Provider) -> None:
    request = replace(REQUEST, accelerator=AcceleratorRequest("A100", 8))
    cloud.faults.add(faults.LostAnswer("CreatePlacementGroup"))
    async with opened(aws()) as fleet:
        (machine,) = await fleet.launch(request, 1)
        assert cloud.instance(machine.id).placement_group == "outrider-pool"
    assert cloud.left() == []


# --- no capacity ------------------------------------------------------------------------------------------------------


async def test_without_spot_capacity_the_same_launch_takes_on_demand(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.NoCapacity(market="spot"))
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 4)
        assert [cloud.instance(machine.id).market for machine in machines] == ["on-demand"] * 4
        assert all(machine.facts["market"] == "on-demand" for machine in machines)
    assert cloud.left() == []


async def test_what_there_is_is_an_answer_and_the_rest_is_looked_for_elsewhere(cloud: EC2, aws: Provider) -> None:
    zones = ["us-east-1a", "us-east-1b"]
    cloud.faults.add(*(faults.NoCapacity(market="spot", zone=zone, machines=1) for zone in zones))
    async with opened(aws(**ONE_TYPE, zones=zones)) as fleet:
        first = await fleet.launch(REQUEST, 4)
        assert {machine.facts["zone"] for machine in first} == {"us-east-1a", "us-east-1b"}
        assert len(first) == 2
        rest = await fleet.launch(REQUEST, 2)  # both zones are avoided for spot: no round is lost on them
        assert [machine.facts["market"] for machine in rest] == ["on-demand"] * 2
        assert cloud.calls["CreateFleet"] == 2


async def test_nothing_at_all_is_worth_another_try(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.NoCapacity())
    async with opened(aws(**ONE_TYPE)) as fleet:
        asked: list[int] = []
        for _ in range(2):
            with pytest.raises(NoCapacity, match=r"m7i\.large") as told:
                await fleet.launch(REQUEST, 4)
            assert told.value.code == "InsufficientInstanceCapacity"
            asked.append(cloud.calls["CreateFleet"])
        assert asked[0] >= 2  # spot, then on demand
        assert asked[1] == asked[0]  # it just failed everywhere: nobody is asked
    assert cloud.left() == []


async def test_a_quota_is_told_by_its_name_and_before_missing_capacity(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.NoCapacity(market="spot"), faults.Quota(code="L-1216C47A", vcpus=0))
    async with opened(aws(**ONE_TYPE)) as fleet:
        for _ in range(2):  # the second time nobody is asked
            with pytest.raises(QuotaExceeded, match=r"L-1216C47A.*also:") as told:
                await fleet.launch(REQUEST, 4)
            assert told.value.code == "VcpuLimitExceeded"


async def test_no_try_of_a_pool_is_spent_where_nobody_would_be_asked(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.faults.add(faults.NoCapacity(market="spot"), faults.Quota(code="L-1216C47A", vcpus=0))
    begun, later_s = anyio.current_time(), 0.0
    monkeypatch.setattr(fleets.anyio, "current_time", lambda: begun + later_s)
    async with opened(aws(**ONE_TYPE)) as fleet:
        asked: list[int] = []
        for _ in range(6):
            with pytest.raises(QuotaExceeded) as told:
                await fleet.launch(REQUEST, 4)
            asked.append(cloud.calls["CreateFleet"])
            assert told.value.retry_after_s is not None
            later_s += told.value.retry_after_s
    assert asked == sorted(set(asked))


async def test_machine_that_ends_while_booting_is_gone(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.NoBoot(times=1))
    async with opened(aws()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        assert await event(fleet, MachineGone) == MachineGone(machine.id, "EC2 failed to start it")


async def test_an_interruption_is_told_and_its_place_comes_last_from_now_on(cloud: EC2, aws: Provider) -> None:
    async with opened(aws(**ONE_TYPE, zones=["us-east-1a", "us-east-1b"])) as fleet:
        (machine,) = await fleet.launch(replace(REQUEST, allocation="spot"), 1)
        await running(cloud, [machine])
        cloud.interrupt(machine.id, notice_s=0)
        assert await event(fleet, MachineGone) == MachineGone(machine.id, "spot interruption")
        (other,) = await fleet.launch(replace(REQUEST, allocation="spot"), 1)
        assert other.facts["zone"] != machine.facts["zone"]


# --- a bad connection to EC2 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["CreateFleet", "CreateLaunchTemplate", "CreateSecurityGroup", "TerminateInstances"])
async def test_a_lost_answer_creates_nothing_twice(action: str, cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.LostAnswer(action))
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
        assert {machine.id for machine in machines} == {instance.id for instance in cloud.instances()}
        assert len(machines) == 3
    assert cloud.left() == []


@pytest.mark.parametrize("valid_http", [True, False])
async def test_half_of_any_answer_is_asked_for_again(cloud: EC2, aws: Provider, *, valid_http: bool) -> None:
    """The first answer to each action, from the first look to the last deletion."""
    async with opened(aws()) as fleet:
        (one,) = await fleet.launch(REQUEST, 1)
        await event(fleet, MachineReachable)
        await fleet.terminate([one.id])
    actions = sorted(cloud.calls)
    assert {"CreateFleet", "DeleteLaunchTemplate", "DescribeInstances", "GetParameters"} <= {*actions}
    cloud.faults.add(*(faults.HalfAnswer(action, valid_http=valid_http) for action in actions))
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
        assert {machine.id for machine in machines} == {each.id for each in cloud.instances("pending", "running")}
        await event(fleet, MachineReachable)
        await fleet.terminate([machines[0].id])
    assert cloud.left() == []
    assert len(cloud.instances()) == 1 + 3
    assert list(cloud.faults) == []  # each has struck


async def test_an_answer_that_names_only_the_fleet_is_looked_up(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    whole = Api.call

    async def short(api: Api, operation: str, /, **parameters: Any) -> dict[str, Any]:
        answer = await whole(api, operation, **parameters)
        return {"FleetId": answer["FleetId"]} if operation == "create_fleet" else answer

    monkeypatch.setattr(Api, "call", short)
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
        assert {machine.id for machine in machines} == {instance.id for instance in cloud.instances()}
        (record,) = Journal.open(journal_path).records()
        (intent,) = [each for each in record.intents if each.kind == "fleet"]
        assert set(intent.ids or ()) == {machine.id for machine in machines}
    assert cloud.left() == []


@pytest.fixture
def lost(cloud: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every CreateFleet is done, and none is answered."""
    monkeypatch.setattr(recorder, "FLEET_S", 1.0)
    cloud.faults.add(faults.LostAnswer("CreateFleet", times=None))


async def test_a_launch_without_an_answer_is_asked_again_with_its_own_token(
    lost: None, cloud: EC2, aws: Provider, journal_path: Path
) -> None:
    async with opened(aws()) as fleet:
        for _ in range(2):
            with pytest.raises(ProviderError) as told:
                await fleet.launch(REQUEST, 3)
            assert told.value.retry_after_s is not None
        unsure = await event(fleet, LaunchUnsure)
        assert isinstance(unsure, LaunchUnsure)
        assert unsure.count == 3
        assert unsure.hourly_cost > 3 * min(each.hourly_usd for each in cloud.instances())
        cloud.faults.clear()
        machines = await fleet.launch(REQUEST, 2)  # fewer are wanted now
        assert await event(fleet, LaunchSettled) == LaunchSettled(unsure.id)
        assert len(machines) == 2
        assert len(cloud.instances()) == 3
        await until(lambda: len(cloud.instances("pending", "running")) == 2)
        assert {each.id for each in cloud.instances("pending", "running")} == {machine.id for machine in machines}
        (record,) = Journal.open(journal_path).records()
        (intent,) = [each for each in record.intents if each.kind == "fleet"]
        assert set(intent.ids or ()) == {each.id for each in cloud.instances()}
        assert not any(isinstance(each, LaunchUnsure) for each in fleet._events)  # told once
    assert cloud.left() == []


async def test_what_one_repeated_launch_gave_is_not_lost_with_the_answer_to_another(
    lost: None, cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulator: the first one's machines ran on, as no node, and did not count as cost."""
    whole, heard = Api.call, list[str]()

    async def one(api: Api, operation: str, /, **parameters: Any) -> dict[str, Any]:
        if operation != "create_fleet":
            return await whole(api, operation, **parameters)
        heard.append(parameters["ClientToken"])
        if len(heard) == 2:
            raise CallRefused("AWS did not answer", retry_after_s=1.0, code="ReadTimeoutError")
        return await whole(api, operation, **parameters)

    async with opened(aws()) as fleet:
        async with anyio.create_task_group() as tasks:
            for count in (2, 1):
                tasks.start_soon(refused, fleet, count)
        unsure: list[Any] = [await event(fleet, LaunchUnsure) for _ in "12"]
        cloud.faults.clear()
        monkeypatch.setattr(Api, "call", one)
        machines = [*await fleet.launch(REQUEST, 3)]
        settled: list[Any] = [await event(fleet, LaunchSettled)]
        assert len(machines) == next(each.count for each in unsure if each.id == settled[0].id)
        with pytest.raises(ProviderError):
            await fleet.launch(REQUEST, 3 - len(machines))
        machines += await fleet.launch(REQUEST, 3 - len(machines))
        settled.append(await event(fleet, LaunchSettled))
        assert {each.id for each in settled} == {each.id for each in unsure}
        assert {machine.id for machine in machines} == {each.id for each in cloud.instances("pending", "running")}
        assert len(machines) == 3
    assert cloud.left() == []


async def refused(fleet: CloudFleet, count: int) -> None:
    with pytest.raises(ProviderError):
        await fleet.launch(REQUEST, count)


async def test_a_launch_that_is_refused_for_good_is_made_anew_and_what_it_made_is_ended(
    lost: None, cloud: EC2, aws: Provider
) -> None:
    async with opened(aws()) as fleet:
        with pytest.raises(ProviderError):
            await fleet.launch(REQUEST, 3)
        cloud.faults.clear()
        cloud.faults.add(faults.CallRefused("CreateFleet", code="IdempotentParameterMismatch", status=400))
        mine = await fleet.launch(REQUEST, 2)
        assert len(cloud.instances()) == 5
        await until(lambda: len(cloud.instances("terminated")) == 3)
        assert {each.id for each in cloud.instances("pending", "running")} == {machine.id for machine in mine}
        await event(fleet, LaunchSettled)
    assert cloud.left() == []


async def test_credentials_that_expire_after_a_lost_answer_say_nothing_of_the_launch(
    lost: None, cloud: EC2, aws: Provider, journal_path: Path
) -> None:
    async with opened(aws()) as fleet:
        with pytest.raises(ProviderError):
            await fleet.launch(REQUEST, 2)
        cloud.faults.clear()
        cloud.faults.add(faults.Unauthorized("CreateFleet"))
        with pytest.raises(NotAuthorized):
            await fleet.launch(REQUEST, 2)
        cloud.faults.clear()
        assert len(await fleet.launch(REQUEST, 2)) == len(cloud.instances()) == 2
    assert cloud.left() == []


async def test_an_exit_waits_for_no_more_machines_than_were_asked_for(lost: None, cloud: EC2, aws: Provider) -> None:
    async with opened(aws()) as fleet:
        with pytest.raises(ProviderError):
            await fleet.launch(REQUEST, 3)
        cloud.faults.clear()
        began = anyio.current_time()
    assert anyio.current_time() - began < GRACE_S / 2  # it was not waited for what could show: three have shown
    assert len(cloud.instances("terminated")) == 3
    assert cloud.left() == []


async def test_a_launch_that_was_answered_by_its_name_alone_is_a_lost_one_where_that_cannot_be_looked_up(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Api.call

    async def short(api: Api, operation: str, /, **parameters: Any) -> dict[str, Any]:
        if operation == "describe_fleets":
            raise NotAuthorized("no ec2:DescribeFleets")
        answer = await whole(api, operation, **parameters)
        return {"FleetId": answer["FleetId"]} if operation == "create_fleet" else answer

    async with opened(aws()) as fleet:
        with monkeypatch.context() as patched:
            patched.setattr(Api, "call", short)
            with pytest.raises(NotAuthorized):
                await fleet.launch(REQUEST, 3)
        assert isinstance(await event(fleet, LaunchUnsure), LaunchUnsure)
        assert len(await fleet.launch(REQUEST, 3)) == len(cloud.instances()) == 3
    assert cloud.left() == []


async def test_a_journal_that_cannot_be_written_at_the_end_is_a_warning(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Journal, pool: str, place: object = None) -> None:
        with journal._explained_errors("what is gone could not be struck out", "nothing of it is left in its cloud"):
            raise OSError("No space left on device")

    monkeypatch.setattr(Journal, "settled", full)
    async with opened(aws()) as fleet:
        await fleet.launch(REQUEST, 1)
    (warned,) = [each for each in fleet._events if isinstance(each, Warned)]
    assert "nothing of it is left in its cloud (No space left on device)" in warned.text
    assert cloud.left() == []


async def test_throttling_is_waited_for(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(
        faults.Throttle("DescribeInstances", times=3),
        faults.Throttle("CreateFleet"),
        faults.Throttle("TerminateInstances"),
    )
    async with opened(aws()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        await event(fleet, MachineReachable)
        await fleet.terminate([machine.id])
    assert cloud.left() == []


@pytest.mark.parametrize(
    "behaviour", [Behaviour(boot_s=0.05, stop_s=0.05, stale_s=0.4, wavering=True, types=("m7i.*",))]
)
async def test_outdated_answers_change_nothing(behaviour: Behaviour, cloud: EC2, aws: Provider) -> None:
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 3)
        await fleet.terminate([machines[0].id])  # at once: EC2 does not know it everywhere
        assert cloud.instance(machines[0].id).state == "terminated"
        seen: list[MachineEvent] = []
        async for each in fleet.events():
            seen.append(each)
            if len(seen) == 2:
                break
        assert all(isinstance(each, MachineReachable) for each in seen)
        cloud.interrupt(machines[1].id, notice_s=0)
        assert isinstance(await event(fleet, MachineGone), MachineGone)
    assert cloud.left() == []


async def test_what_the_preparation_found_is_told_by_the_launch(cloud: EC2, aws: Provider, journal_path: Path) -> None:
    cloud.faults.add(faults.Unauthorized("DescribeVpcs"))
    async with opened(aws()) as fleet:
        for _ in range(2):
            with pytest.raises(NotAuthorized, match="ec2:DescribeVpcs"):
                await fleet.launch(REQUEST, 1)
    assert Journal.open(journal_path).records() == []


async def test_impossible_request_is_an_error(cloud: EC2, aws: Provider) -> None:
    async with opened(aws()) as fleet:
        with pytest.raises(BadRequest, match="A10G"):
            await fleet.launch(replace(REQUEST, accelerator=AcceleratorRequest("A10")), 1)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_a_launch_that_is_cancelled_leaves_nothing(cloud: EC2, aws: Provider) -> None:
    cloud.faults.add(faults.Slow("CreateFleet", seconds=0.3))
    async with opened(aws()) as fleet:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fleet.launch, REQUEST, 3)
                await until(lambda: cloud.calls["CreateFleet"])
                scope.cancel()
        assert len(cloud.instances(*ALIVE)) == 3
        assert len(fleet._instances.machines) == 3  # they are known, though nobody waited
    assert cloud.left() == []


async def test_no_volume_of_an_image_outlives_its_machine(cloud: EC2, aws: Provider) -> None:
    volumes = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "SnapshotId": "snap-1"}},
        {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 5, "SnapshotId": "snap-2", "DeleteOnTermination": False}},
    ]
    said = {"Name": "mine", "Architecture": "x86_64", "RootDeviceName": "/dev/sda1", "BlockDeviceMappings": volumes}
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        image = (await api.call("register_image", **said))["ImageId"]
    async with opened(aws(ami=image)) as fleet:
        await fleet.launch(REQUEST, 2)
        assert [each.kind for each in cloud.left()].count("volume") == 4
    assert cloud.left() == []


async def test_many_who_terminate_share_their_calls(cloud: EC2, aws: Provider) -> None:
    async with opened(aws()) as fleet:
        machines = await fleet.launch(REQUEST, 20)
        async with anyio.create_task_group() as tasks:
            for machine in machines:
                tasks.start_soon(fleet.terminate, [machine.id])
        assert cloud.instances(*ALIVE) == []
        assert cloud.calls["TerminateInstances"] <= 3


async def test_machines_whose_tags_a_cleaning_bot_removed_work_on_and_are_ended_by_id(
    cloud: EC2, aws: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory, "GRACE_S", 0.5)
    monkeypatch.setattr(recorder, "GRACE_S", 0.5)
    async with opened(aws()) as fleet, Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        machines = await fleet.launch(REQUEST, 2)
        ours = [machine.id for machine in machines]
        for _ in ours:
            await event(fleet, MachineReachable)
        every = [{"Key": key} for key in cloud.instance(ours[0]).tags]
        await api.call("delete_tags", Resources=ours, Tags=every)
        asked = cloud.calls["DescribeInstances"]
        fleet._poller.begun()
        await until(lambda: cloud.calls["DescribeInstances"] >= asked + 6)
        assert fleet._instances.machines == ours
        assert list(fleet._events) == []
    assert {cloud.instance(each).state for each in ours} == {"terminated"}
    assert cloud.left() == []


async def test_failed_termination_is_repeated_with_the_next_call(cloud: EC2, aws: Provider) -> None:
    refused = faults.CallRefused("TerminateInstances", code="OperationNotPermitted", status=400)
    async with opened(aws()) as fleet:
        one, two = await fleet.launch(REQUEST, 2)
        cloud.faults.add(refused)
        with pytest.raises(ProviderError, match="OperationNotPermitted"):
            await fleet.terminate([one.id])
        await fleet.terminate([two.id])
        await until(lambda: cloud.instance(one.id).state == "terminated")


async def test_leaving_that_is_not_confirmed_says_what_is_left_and_can_be_made_good(
    cloud: EC2, aws: Provider, journal_path: Path
) -> None:
    launched: list[MachineId] = []
    with pytest.raises(NotGone, match=r"ec2:TerminateInstances.*may still be running: i-\w+, i-\w+") as told:
        async with opened(aws()) as fleet:
            launched += [machine.id for machine in await fleet.launch(REQUEST, 2)]
            cloud.faults.add(faults.Unauthorized("TerminateInstances"))
    assert len(cloud.instances(*ALIVE)) == 2
    assert sorted(told.value.machines) == sorted(launched)
    assert told.value.by is not None
    assert {each.partition(" sg-")[0] for each in told.value.left} == {"security group"}
    (orphan,) = Journal.open(journal_path).orphans()
    cloud.faults.clear()
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        swept = await teardown.sweep(EC2Cloud(api), orphan.pool, journal=Journal.open(journal_path))
    assert sorted(swept.machines) == sorted(launched)
    assert cloud.left() == []
    assert Journal.open(journal_path).records() == []
