"""Launches: one bulkInsert, once; what Google is asked for; what becomes of machines; what its refusals mean."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest

from outrider import GCP
from outrider.providers.base import (
    AcceleratorRequest,
    EntryPoints,
    Fleet,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    MachineEvent,
    MachineGone,
)
from outrider.providers.cloud import fleet as poller
from outrider.providers.errors import BadRequest, NotAuthorized, ProviderError, QuotaExceeded
from outrider.providers.errors import NoCapacity as NoRoom
from outrider.testing.clouds.gcp.front import GCE, Quota
from outrider.testing.clouds.shared.faults import CallRefused, LostAnswer, NoCapacity, Throttle, Unauthorized
from outrider.testing.clouds.shared.machines import FrontMachine

pytestmark = pytest.mark.anyio
Provided = Callable[..., GCP]
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
L4 = LaunchRequest("ssh-ed25519 CLIENT", 2, accelerator=AcceleratorRequest("L4"))
BULK = "regionInstances.bulkInsert"


@asynccontextmanager
async def opened(provider: GCP, pool: str = "Pool.1") -> AsyncIterator[Fleet]:
    async with provider.open(pool, EntryPoints()) as fleet:
        yield fleet


async def one(cloud: GCE, provider: GCP, request: LaunchRequest = REQUEST) -> FrontMachine:
    """The machine that this provider makes for this request."""
    async with opened(provider) as fleet:
        (machine,) = await fleet.launch(request, 1)
        return cloud.machine(machine.id)


async def test_64_machines_are_one_call_which_is_repeated_by_its_request_id(cloud: GCE, gcp: Provided) -> None:
    cloud.faults.add(LostAnswer(BULK, times=2))
    async with opened(gcp()) as fleet:
        machines = await fleet.launch(REQUEST, 64)
        assert len({machine.id for machine in machines}) == 64
        assert len(cloud.machines()) == 64
        assert cloud.calls[BULK] == 3
        assert len({machine.hourly_cost for machine in machines}) == 1
    assert cloud.machines("pending", "running", "stopped") == []


async def test_a_launch_that_stays_without_an_answer_is_repeated_by_the_next(
    cloud: GCE, gcp: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = LostAnswer(BULK, times=None)
    cloud.faults.add(lost)
    async with opened(gcp()) as fleet:
        with pytest.raises(ProviderError, match=r"did not answer POST .*bulkInsert: whether it was done is not known"):
            await fleet.launch(REQUEST, 3)
        assert len(cloud.machines()) == 3
        cloud.faults.clear(lost)
        machines = await fleet.launch(REQUEST, 3)
        assert {machine.id for machine in machines} == {each.id for each in cloud.machines()}
        told = await events(fleet, 2)
        assert [type(each) for each in told] == [LaunchUnsure, LaunchSettled]


async def test_what_google_is_asked_for(cloud: GCE, gcp: Provided) -> None:
    request = LaunchRequest("ssh-ed25519 CLIENT", 2, accelerator=AcceleratorRequest("T4"), max_lifetime_s=3600)
    made = await one(cloud, gcp(labels={"team": "vision"}), request)
    said = made.body
    assert made.type == "n1-standard-1+nvidia-tesla-t4:1"
    assert said["machineType"] == "n1-standard-1"
    assert said["guestAccelerators"] == [{"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}]
    assert said["scheduling"] == {
        "provisioningModel": "SPOT",
        "automaticRestart": False,
        "onHostMaintenance": "TERMINATE",
        "instanceTerminationAction": "DELETE",
        "maxRunDuration": {"seconds": "3900"},
    }
    assert said["disks"][0]["autoDelete"]
    image = said["disks"][0]["initializeParams"]["sourceImage"]
    assert image.endswith(
        "ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404-amd64-with-nvidia-580"
    )
    assert "serviceAccounts" not in said
    assert made.labels["team"] == "vision"
    assert json.loads(said["description"])["pool"] == "Pool.1"
    config = json.loads(made.user_data.partition("\n")[2])
    assert "set_host_keys = false" in config["bootcmd"][1][2]
    assert config["bootcmd"][0][3] == "outrider-lease"


async def test_a_pools_machines_let_ssh_in_from_here_and_each_other_and_nobody_else(cloud: GCE, gcp: Provided) -> None:
    async with opened(gcp(ssh_from=["203.0.113.0/24"])) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        tags = cloud.machine(machine.id).body["tags"]["items"]
        rules = list(cloud.firewalls.values())
        assert {tag for rule in rules for tag in rule["targetTags"]} == set(tags)
        (ssh,) = [rule for rule in rules if rule.get("sourceRanges") == ["203.0.113.0/24"]]
        assert ssh["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}]
        (deny,) = [rule for rule in rules if "denied" in rule]
        assert (deny["sourceRanges"], deny["priority"] > ssh["priority"]) == (["0.0.0.0/0"], True)
    assert cloud.firewalls == {}
    made = await one(cloud, gcp(network_tags=["mine"]))
    assert made.body["tags"]["items"] == ["mine"]
    assert cloud.calls["firewalls.insert"] == 3


# --- what becomes of machines -----------------------------------------------------------------------------------------


async def events(fleet: Fleet, count: int, kind: type = object) -> list[MachineEvent]:
    found: list[MachineEvent] = []
    with anyio.fail_after(60):
        async for event in fleet.events():
            if isinstance(event, kind):
                found.append(event)
            if len(found) == count:
                break
    return found


@pytest.mark.parametrize(
    ("end", "cause"),
    [
        (lambda cloud, name: cloud.preempt(name, notice_s=0), "spot preemption"),
        (lambda cloud, name: cloud.fail_host(name), "its host failed"),
        (lambda cloud, name: cloud.hypervisor.shut_down(name), "powered itself off: its lease ran out"),
        (lambda cloud, name: cloud.store.end(name, "delete"), "somebody else deleted it"),
        (lambda cloud, name: cloud.advance(7 * 86400), "reached the run time"),
    ],
    ids=["preempted", "host", "itself", "deleted", "time"],
)
async def test_a_machine_that_ends_says_why_and_nothing_of_it_is_left(
    end: Callable[[GCE, str], object], cause: str, cloud: GCE, gcp: Provided
) -> None:
    async with opened(gcp()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        while cloud.machine(machine.id).state != "running":
            await anyio.sleep(0.01)
        end(cloud, machine.id)
        (gone,) = await events(fleet, 1, MachineGone)
        assert isinstance(gone, MachineGone)
        assert gone.cause.startswith(cause)
        with anyio.fail_after(60):
            while cloud.machine(machine.id).state != "terminated":  # also one that has only stopped
                await anyio.sleep(0.02)


async def test_a_machine_that_is_being_preempted_is_not_gone_before_its_end(
    cloud: GCE, gcp: Provided, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller, "pause_s", lambda *, busy, requests: 0.1)
    async with opened(gcp()) as fleet:
        (machine,) = await fleet.launch(REQUEST, 1)
        while cloud.machine(machine.id).state != "running":
            await anyio.sleep(0.01)
        cloud.preempt(machine.id, notice_s=1000.0)
        asked = cloud.calls["instances.aggregatedList"]
        async with anyio.create_task_group() as tasks:

            async def ends() -> None:
                with anyio.fail_after(60):
                    while cloud.calls["instances.aggregatedList"] < asked + 3:  # it was looked at meanwhile
                        await anyio.sleep(0.01)
                assert cloud.machine(machine.id).state == "running"
                assert not gone
                cloud.advance(1000.0)

            gone: list[MachineEvent] = []
            tasks.start_soon(ends)
            gone += await events(fleet, 1, MachineGone)
        assert cloud.machine(machine.id).state != "running"


async def test_google_deletes_a_machine_that_hangs_and_not_one_that_is_off(cloud: GCE, gcp: Provided) -> None:
    """The client is gone: nobody asks, and nobody ends them."""
    async with opened(gcp(max_run_hours=1)) as fleet:
        hangs, off = await fleet.launch(REQUEST, 2)
        while len(cloud.machines("running")) < 2:
            await anyio.sleep(0.01)
        with cloud.lock:  # which holds the client's calls up, as if it were dead
            cloud.hypervisor.shut_down(off.id)  # type: ignore[attr-defined]
            cloud.advance(3500)
            assert cloud.machine(hangs.id).state == "running"
            cloud.advance(200)
            assert cloud.machine(hangs.id).state == "terminated"
            assert cloud.machine(off.id).state == "stopped"
    assert cloud.machine(off.id).state == "terminated"


# --- refusals ---------------------------------------------------------------------------------------------------------


async def test_a_zone_without_room_is_passed_over_and_all_of_them_are_told_with_googles_words(
    cloud: GCE, gcp: Provided
) -> None:
    cloud.faults.add(NoCapacity(zone="us-central1-a"))
    async with opened(gcp(instance_types=["g2-standard-4"])) as fleet:
        machines = await fleet.launch(L4, 2)
        assert {(machine.facts["region"], machine.facts["zone"]) for machine in machines} == {
            ("us-central1", "us-central1-b")
        }
        cloud.faults.add(NoCapacity(type="g2-standard-4"))
        with pytest.raises(
            NoRoom, match=r"no spot g2-standard-4 left in us-central1-. now \(ZONE_RESOURCE_POOL"
        ) as told:
            await fleet.launch(L4, 1)
        assert told.value.retry_after_s
        asked = cloud.calls[BULK]
        with pytest.raises(NoRoom):
            await fleet.launch(L4, 1)
        assert cloud.calls[BULK] == asked  # it was refused just now, in every zone


async def test_spot_without_room_is_asked_for_on_demand(cloud: GCE, gcp: Provided) -> None:
    cloud.faults.add(NoCapacity(market="spot"))
    made = await one(cloud, gcp(), L4)
    assert made.market == "on-demand"
    assert made.body["scheduling"]["provisioningModel"] == "STANDARD"


async def test_a_quota_is_named_with_its_limit_its_region_and_where_to_ask(cloud: GCE, gcp: Provided) -> None:
    cloud.faults.add(Quota(name="NVIDIA-L4-GPUS-per-project-region", machines=0, types="g2-"))
    async with opened(gcp()) as fleet:
        with pytest.raises(
            QuotaExceeded, match=r"'NVIDIA-L4-GPUS-per-project-region', 0, is used up in us-central1"
        ) as told:
            await fleet.launch(L4, 1)
    assert "console.cloud.google.com/iam-admin/quotas?project=test-project" in str(told.value)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (Unauthorized(BULK), NotAuthorized, "a permission is missing: .*gcp-role.yaml .*compute.instances.create"),
        (CallRefused(BULK, "SERVICE_DISABLED", "off", 403), NotAuthorized, "gcloud services enable compute"),
        (CallRefused(BULK, "BILLING_DISABLED", "no", 403), NotAuthorized, "no billing account"),
        (
            CallRefused(BULK, "authError", "Invalid Credentials", 401, times=9),
            NotAuthorized,
            "application-default login",
        ),
        (
            CallRefused(BULK, "conditionNotMet", "constraint x", 412),
            BadRequest,
            "policy of the organization.*constraint x",
        ),
        (CallRefused(BULK, "invalid", "bad field", 400), BadRequest, "does not take this request .*bad field"),
        (CallRefused("firewalls.insert", "SERVICE_DISABLED", "off", 403, times=9), NotAuthorized, "gcloud services"),
    ],
)
async def test_refusals_say_what_to_do(
    fault: Unauthorized | CallRefused, kind: type[ProviderError], words: str, cloud: GCE, gcp: Provided
) -> None:
    cloud.faults.add(fault)
    async with opened(gcp()) as fleet:
        with pytest.raises(kind, match=words):
            await fleet.launch(REQUEST, 1)


async def test_calls_that_come_too_often_are_made_again(cloud: GCE, gcp: Provided) -> None:
    cloud.faults.add(Throttle(BULK, times=2), Throttle("instances.aggregatedList", times=2))
    await one(cloud, gcp())
    assert cloud.calls[BULK] == 3


async def test_wrong_requests_are_told_before_anything_is_made(cloud: GCE, gcp: Provided) -> None:
    async with opened(gcp()) as fleet:
        with pytest.raises(BadRequest, match=r"GCP has no H100 in us-central1: .*look in "):
            await fleet.launch(LaunchRequest("k", 1, accelerator=AcceleratorRequest("H100")), 1)
        with pytest.raises(BadRequest, match="has no EFA"):
            await fleet.launch(LaunchRequest("k", 1, interconnect="efa"), 1)
    async with opened(gcp(region="us-west9")) as fleet:
        with pytest.raises(BadRequest, match=r"no region 'us-west9' .*gcloud compute regions list"):
            await fleet.launch(REQUEST, 1)
    assert cloud.machines() == []
