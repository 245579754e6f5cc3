"""CreateFleet of type instant: many pools, as many machines as there are, and why there are no more."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from outrider.testing import EC2, Behaviour
from outrider.testing import aws_faults as faults

from .account import Account, taken

if TYPE_CHECKING:
    import boto3

Open = Callable[..., Account]
A, B = "us-east-1a", "us-east-1b"


def at(zone: str, type_name: str = "m7i.large", **more: Any) -> dict[str, Any]:
    return {"InstanceType": type_name, "AvailabilityZone": zone, **more}


def codes(answer: dict[str, Any]) -> dict[tuple[str, str], str]:
    return {
        (each["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"],
         each["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"]): each["ErrorCode"]
        for each in answer["Errors"]
    }  # fmt: skip


def test_all_overrides_are_drawn_from(account: Account):
    account.cloud.faults.add(
        faults.NoCapacity(zone=A, machines=2), faults.NoCapacity(zone=B, type="m7i.large", machines=1)
    )
    answer = account.fleet(6, at(A), at(B), at(B, "m7i.xlarge"))
    assert taken(answer) == 6
    got = {(each["InstanceType"], each["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"]): len(
        each["InstanceIds"]) for each in answer["Instances"]}  # fmt: skip
    assert got == {("m7i.large", A): 2, ("m7i.large", B): 1, ("m7i.xlarge", B): 3}
    assert {each["Lifecycle"] for each in answer["Instances"]} == {"spot"}


@pytest.mark.parametrize("market", ["spot", "on-demand"])
def test_partial_fulfilment_says_what_was_missing_where(account: Account, market: str):
    account.cloud.faults.add(faults.NoCapacity(zone=A, machines=1), faults.NoCapacity(zone=B))
    answer = account.fleet(5, at(A), at(B), market=market)
    assert taken(answer) == 1
    assert codes(answer) == {
        ("m7i.large", A): "InsufficientInstanceCapacity",
        ("m7i.large", B): "InsufficientInstanceCapacity",
    }
    words = "no Spot capacity" if market == "spot" else "We currently do not have sufficient m7i.large capacity"
    assert all(words in each["ErrorMessage"] for each in answer["Errors"])
    assert [each["Lifecycle"] for each in answer["Errors"]] == [market] * 2


def test_nothing_to_be_had_is_an_answer_not_an_error(account: Account):
    account.cloud.faults.add(faults.NoCapacity())
    answer = account.fleet(2, at(A))
    assert answer["Instances"] == []
    assert len(answer["Errors"]) == 1
    assert account.cloud.instances() == []


def test_one_market_may_be_dry(account: Account):
    account.cloud.faults.add(faults.NoCapacity(market="spot", times=1))
    assert taken(account.fleet(1, at(A), market="on-demand")) == 1
    assert taken(account.fleet(1, at(A))) == 0
    assert taken(account.fleet(1, at(A))) == 1


@pytest.mark.parametrize(("wanted", "where"), [(5, B), (2, A)])
def test_a_single_zone_is_the_cheapest_that_has_enough_else_the_one_that_has_most(
    open_account: Open, wanted: int, where: str
):
    account = open_account(spot_usd={f"m7i.large {A}": 0.1, f"m7i.large {B}": 0.2})
    account.cloud.faults.add(faults.NoCapacity(zone=A, machines=2), faults.NoCapacity(zone=B, machines=3))
    options = {"SingleAvailabilityZone": True, "SingleInstanceType": True}
    answer = account.fleet(wanted, at(A), at(B), SpotOptions=options)
    (got,) = answer["Instances"]
    assert got["LaunchTemplateAndOverrides"]["Overrides"]["AvailabilityZone"] == where
    assert len(got["InstanceIds"]) == min(wanted, 3)


def test_below_the_minimum_nothing_is_launched(account: Account):
    account.cloud.faults.add(faults.NoCapacity(machines=3))
    options = {"SingleAvailabilityZone": True, "MinTargetCapacity": 4}
    answer = account.fleet(4, at(A), SpotOptions=options)
    assert (answer["Instances"], set(codes(answer).values())) == ([], {"InsufficientInstanceCapacity"})
    assert taken(account.fleet(4, at(A), SpotOptions=options | {"MinTargetCapacity": 3})) == 3
    with pytest.raises(ClientError, match="MinTargetCapacity needs"):
        account.fleet(4, at(A), SpotOptions={"MinTargetCapacity": 4})


def test_weights_count_units(account: Account):
    answer = account.fleet(5, at(A, WeightedCapacity=2))
    assert taken(answer) == 3


@pytest.mark.parametrize(
    ("strategy", "expected"), [("lowest-price", "m7i.xlarge"), ("capacity-optimized-prioritized", "m7i.large")]
)
def test_strategies_order_the_pools(open_account: Open, strategy: str, expected: str):
    account = open_account(spot_usd={"m7i.large": 0.5, "m7i.xlarge": 0.4})
    overrides = [at(A, "m7i.xlarge", Priority=2), at(A, Priority=1)]
    answer = account.fleet(2, *overrides, SpotOptions={"AllocationStrategy": strategy})
    assert [each["InstanceType"] for each in answer["Instances"]] == [expected]


def test_diversified_spreads(account: Account):
    answer = account.fleet(4, at(A), at(B), SpotOptions={"AllocationStrategy": "diversified"})
    assert [len(each["InstanceIds"]) for each in answer["Instances"]] == [2, 2]


def test_a_price_limit_of_an_override(open_account: Open):
    account = open_account(spot_usd={"m7i.large": 0.5, f"m7i.large {B}": 0.3})
    answer = account.fleet(1, at(A, MaxPrice="0.4"), at(B, MaxPrice="0.4"))
    assert taken(answer) == 1
    assert taken(account.fleet(1, at(A, MaxPrice="0.4"))) == 0
    assert codes(account.fleet(1, at(A, MaxPrice="0.4"))) == {("m7i.large", A): "SpotMaxPriceTooLow"}


def test_a_type_that_a_zone_does_not_have(account: Account):
    answer = account.fleet(1, at("us-east-1e", "g6.xlarge"))
    assert codes(answer) == {("g6.xlarge", "us-east-1e"): "Unsupported"}


def test_quotas_of_vcpus(open_account: Open):
    account = open_account(quotas={"L-1216C47A": 4, "L-34B43A08": 2})
    assert taken(account.fleet(9, at(A), market="on-demand")) == 2
    answer = account.fleet(1, at(A), at(B, "c7i.large"), market="on-demand")
    assert set(codes(answer).values()) == {"VcpuLimitExceeded"}
    assert "current vCPU limit of 4" in answer["Errors"][0]["ErrorMessage"]
    assert taken(account.fleet(1, at(A, "g4dn.xlarge"), market="on-demand")) == 1
    assert codes(account.fleet(2, at(A))) == {("m7i.large", A): "MaxSpotInstanceCountExceeded"}
    quotas = account.client("service-quotas")
    assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")["Quota"]["Value"] == 4


def test_both_markets_in_one_fleet(account: Account):
    target = {"TotalTargetCapacity": 5, "OnDemandTargetCapacity": 2, "DefaultTargetCapacityType": "spot"}
    answer = account.fleet(5, at(A), TargetCapacitySpecification=target)
    assert {each["Lifecycle"]: len(each["InstanceIds"]) for each in answer["Instances"]} == {"on-demand": 2, "spot": 3}


def test_tags_of_template_and_fleet_are_there_at_once(account: Account):
    def tagged(kind: str, **tags: str) -> dict[str, Any]:
        return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}

    template = account.template(
        TagSpecifications=[tagged("instance", pool="p", of="template"), tagged("volume", pool="p")]
    )
    more = [tagged("instance", of="fleet"), tagged("fleet", of="itself")]
    answer = account.fleet(1, at(A), template=template, TagSpecifications=more)
    (one,) = account.described(*answer["Instances"][0]["InstanceIds"])
    tags = {each["Key"]: each["Value"] for each in one["Tags"]}
    assert (tags["pool"], tags["of"], tags["aws:ec2:fleet-id"]) == ("p", "fleet", answer["FleetId"])
    assert one["InstanceLifecycle"] == "spot"
    assert [each.tags for each in account.cloud.left() if each.kind == "volume"] == [{"pool": "p"}]


def test_overrides_name_subnets(account: Account):
    subnets = {each["AvailabilityZone"]: each["SubnetId"] for each in account.ec2.describe_subnets()["Subnets"]}
    interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
    template = account.template(NetworkInterfaces=[interface])
    overrides = [{"InstanceType": "m7i.large", "SubnetId": subnets[B]}]
    answer = account.fleet(1, *overrides, template=template)
    (one,) = account.described(*answer["Instances"][0]["InstanceIds"])
    assert (one["Placement"]["AvailabilityZone"], one["SubnetId"]) == (B, subnets[B])


def test_missing_resource_is_an_error_of_its_override(account: Account):
    template = account.template(ImageId="ami-0123456789abcdef0")
    answer = account.fleet(1, at(A), at(B), template=template)
    assert [each["ErrorCode"] for each in answer["Errors"]] == ["InvalidAMIID.NotFound"] * 2
    with pytest.raises(ClientError, match=r"InvalidLaunchTemplateId\.NotFound"):
        account.fleet(1, at(A), template="lt-0123456789abcdef0")


def test_without_the_right_to_run_instances(account: Account):
    account.cloud.faults.add(faults.Unauthorized("RunInstances"))
    answer = account.fleet(1, at(A))
    assert [each["ErrorCode"] for each in answer["Errors"]] == ["UnauthorizedOperation"]
    assert "not authorized to perform: ec2:RunInstances" in answer["Errors"][0]["ErrorMessage"]
    assert account.cloud.instances() == []


def test_fleets_are_described_and_deleted_with_their_instances(account: Account):
    answer = account.fleet(2, at(A))
    (fleet,) = account.ec2.describe_fleets(FleetIds=[answer["FleetId"]])["Fleets"]
    assert fleet["Instances"][0]["InstanceIds"] == answer["Instances"][0]["InstanceIds"]
    account.ec2.delete_fleets(FleetIds=[answer["FleetId"]], TerminateInstances=True)
    account.cloud.advance(1)
    assert [each.state for each in account.cloud.instances()] == ["terminated"] * 2


def test_cluster_groups_are_in_one_zone(account: Account):
    account.ec2.create_placement_group(GroupName="side-by-side", Strategy="cluster")
    template = account.template(Placement={"GroupName": "side-by-side"})
    assert taken(account.fleet(1, at(A), template=template)) == 1
    assert codes(account.fleet(1, at(B), template=template)) == {("m7i.large", B): "InsufficientInstanceCapacity"}
    assert taken(account.fleet(1, at(A), at(B), template=template)) == 1
    assert {each.zone for each in account.cloud.instances()} == {A}
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.InUse"):
        account.ec2.delete_placement_group(GroupName="side-by-side")
    (refused,) = account.fleet(1, at(A, "t3.micro"), template=template)["Errors"]
    assert "not supported by the 't3.micro'" in refused["ErrorMessage"]


def test_the_same_seed_gives_the_same_machines(session: boto3.session.Session):
    def played(seed: int) -> list[str]:
        with EC2(Behaviour(seed=seed)) as cloud, closing(Account(cloud, session)) as account:
            account.fleet(3, at(A), at(B))
            return [f"{each.id} {each.zone} {each.private_ip} {each.subnet}" for each in cloud.instances()]

    assert played(1) == played(1) != played(2)
