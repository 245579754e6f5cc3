"""What a dead pool left is found by its tag, shown, and ended."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from outrider import AWS
from outrider.providers.aws import cloud as listing
from outrider.providers.aws.api import Api
from outrider.providers.aws.cloud import AWSSurveyor, EC2Cloud
from outrider.providers.base import EntryPoints, LaunchRequest, MachineId
from outrider.providers.cloud import fleet as fleets
from outrider.providers.cloud import teardown
from outrider.providers.cloud.inventory import LEASE_MORE_S
from outrider.providers.errors import NotGone
from outrider.providers.shared.journal import Journal
from outrider.testing import EC2
from outrider.testing import aws_faults as faults

pytestmark = pytest.mark.anyio
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 2)
ALIVE = ("pending", "running", "stopping", "stopped", "shutting-down")


@asynccontextmanager
async def api_of(cloud: EC2) -> AsyncIterator[Api]:
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url) as api:
        yield api


async def dead(provider: AWS, pool: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A pool whose client is gone without a word."""
    with monkeypatch.context() as patched:

        async def nothing(fleet: fleets.CloudFleet) -> None:
            fleet._open.cancel()

        patched.setattr(fleets.CloudFleet, "close", nothing)
        async with provider.open(pool, EntryPoints()) as fleet:
            return [machine.id for machine in await fleet.launch(REQUEST, 2)]


async def test_a_dead_pool_is_seen_and_swept_and_no_other(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    one = await dead(aws(), "one", monkeypatch)
    two = await dead(aws(), "two", monkeypatch)
    async with api_of(cloud) as api:
        found = await listing.survey(api)
        assert {(each.pool, "@" in each.owner) for each in found.machines} == {("one", True), ("two", True)}
        assert sorted(machine.id for machine in found.machines if machine.pool == "one") == sorted(one)
        assert len([each for each in found.others if each.pool == "one"]) == 2  # a template and a group

        swept = await teardown.sweep(EC2Cloud(api), "one", journal=Journal.open(journal_path))
        assert sorted(swept.machines) == sorted(one)
        assert {instance.id for instance in cloud.instances(*ALIVE)} == set(two)
        assert {each.tags["outrider:pool"] for each in cloud.left()} == {"two"}
        assert [orphan.pool for orphan in Journal.open(journal_path).orphans()] == ["two"]

        again = await teardown.sweep(EC2Cloud(api), "one", journal=None)
        assert again.others["launch-template"] == ()
        await teardown.sweep(EC2Cloud(api), "two", journal=None)
        assert cloud.left() == []
        assert await listing.survey(api) == listing.Survey()


async def test_who_sweeps_a_dead_pool_in_vain_knows_when_its_lease_ends_it(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    left = await dead(aws(), "one", monkeypatch)
    refusal = faults.Unauthorized("TerminateInstances")
    cloud.faults.add(refusal)
    place = {"region": cloud.region, "endpoint_url": cloud.endpoint_url}
    with pytest.raises(NotGone) as raised:
        await AWSSurveyor().sweep(place, "one", Journal.open(journal_path), lease_s=120.0)
    assert sorted(raised.value.machines) == sorted(left)
    assert raised.value.by is not None
    assert raised.value.by - time.time() <= 120.0 + LEASE_MORE_S


async def test_copies_of_what_a_dead_pool_left_are_not_ended_and_keep_nothing_from_ending(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    """The console's "Launch more like this" copies all tags."""
    mine = await dead(aws(), "one", monkeypatch)
    tags = [{"Key": key, "Value": value} for key, value in cloud.instance(MachineId(mine[0])).tags.items()]
    bobs = [each if each["Key"] != "outrider:owner" else {**each, "Value": "bob@elsewhere"} for each in tags]
    named = [each for each in bobs if each["Key"] != "outrider:launch"]
    bare = [each for each in tags if each["Key"] == "outrider:pool"]
    async with api_of(cloud) as api:
        one = cloud.instance(MachineId(mine[0]))
        how = {"ImageId": one.image, "InstanceType": one.type, "MinCount": 1, "MaxCount": 1, "idempotent": True}
        copies = set[str]()
        for each in (tags, bobs, named, bare):
            specification = [{"ResourceType": "instance", "Tags": each}]
            copies.add(
                (await api.call("run_instances", **how, TagSpecifications=specification))["Instances"][0]["InstanceId"]
            )
        tracker = Journal.open(journal_path)
        swept = await teardown.sweep(EC2Cloud(api), "one", journal=tracker)
        assert sorted(swept.machines) == sorted(mine)
        assert {instance.id for instance in cloud.instances(*ALIVE)} == copies
        assert {each.kind for each in cloud.left()} <= {"instance", "volume", "network interface"}
        assert tracker.records() == []
        swept = await teardown.sweep_others(EC2Cloud(api), "one", journal=tracker)  # by people who know
        assert copies <= set(swept.machines)
    assert cloud.left() == []


async def test_what_a_dead_pool_left_is_ended_by_id_when_its_tags_are_gone(
    cloud: EC2, aws: Callable[..., AWS], monkeypatch: pytest.MonkeyPatch, journal_path: Path
) -> None:
    mine = await dead(aws(), "one", monkeypatch)
    async with api_of(cloud) as api:
        await api.call("delete_tags", Resources=mine, Tags=[{"Key": "outrider:pool"}, {"Key": "outrider:launch"}])
        assert {each.id for each in (await listing.survey(api, mine)).machines} == set(mine)
        swept = await teardown.sweep(EC2Cloud(api), "one", journal=Journal.open(journal_path))
    assert sorted(swept.machines) == sorted(mine)
    assert {each.state for each in cloud.instances()} == {"terminated"}


async def test_one_that_ec2_does_not_know_keeps_no_other_from_ending(cloud: EC2, aws: Callable[..., AWS]) -> None:
    async with aws().open("pool", EntryPoints()) as fleet, api_of(cloud) as api:
        machines = [machine.id for machine in await fleet.launch(REQUEST, 5)]
        said = await teardown.end(EC2Cloud(api), [*machines[:3], "i-0123456789abcdef0", *machines[3:]])
        assert {view.id for view in said} == set(machines)
