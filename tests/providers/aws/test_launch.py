"""What EC2 is asked for a launch, and how its answers are read."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws import launch
from outrider.providers.aws.launch import Ami, LaunchTemplate, Shape
from outrider.providers.base import AcceleratorRequest, LaunchRequest, MachineId
from outrider.providers.cloud.offers import InstanceType, Offer

AMI = Ami("ami-1", "ubuntu", "/dev/sda1", 8)
SHAPE = Shape(AMI, "spot", 0, "ssh-ed25519 CLIENT", 120.0, None, ("sg-1",), public=True)
SUBNETS = {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b", "us-east-1c": "subnet-c"}
LABELS = {"outrider:pool": "p", "Name": "outrider-p"}
REQUEST = LaunchRequest("ssh-ed25519 CLIENT", 4)


def kind(name: str, *, efa: int = 0) -> InstanceType:
    return InstanceType(name, 4, 16.0, "x86_64", interconnect="efa" if efa else "", interconnect_cards=efa)


def offer(name: str = "m7i.large", zone: str = "a", usd: float = 0.1, *, efa: int = 0) -> Offer:
    return Offer(kind(name, efa=efa), f"us-east-1{zone}", "spot", usd)


def template(shape: Shape = SHAPE) -> dict[str, Any]:
    said = launch.template(shape, name="outrider-p-1", token="token", user_data="#cloud-config\n", labels=LABELS)
    data: dict[str, Any] = said["LaunchTemplateData"]
    return data


def fleet(*offers: Offer, shape: Shape = SHAPE, count: int = 4, max_usd: float | None = None) -> dict[str, Any]:
    lots = [(LaunchTemplate("lt-1", shape, "ssh-ed25519 HOST"), offers)]
    return launch.fleet(lots, count, token="token", subnets=SUBNETS, labels=LABELS, max_usd=max_usd)


# --- the template -----------------------------------------------------------------------------------------------------


def test_a_template_keeps_what_security_promises() -> None:
    data = template()
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 1
    assert data["MetadataOptions"]["InstanceMetadataTags"] == "disabled"
    assert data["BlockDeviceMappings"][0]["Ebs"]["Encrypted"] is True
    assert data["NetworkInterfaces"][0]["Groups"] == ["sg-1"]
    assert "KeyName" not in data


def test_a_machine_that_shuts_itself_down_leaves_nothing() -> None:
    data = template()
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert data["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
    assert data["NetworkInterfaces"][0]["DeleteOnTermination"] is True
    assert base64.b64decode(data["UserData"]) == b"#cloud-config\n"


@pytest.mark.parametrize(("root", "asked", "size"), [(8, 0, 8), (8, 100, 100), (75, 50, 75)])
def test_the_volume_holds_the_image_and_what_is_asked_for(root: int, asked: int, size: int) -> None:
    data = template(replace(SHAPE, ami=replace(AMI, root_gb=root), disk_gb=asked))
    assert data["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/sda1",
            "Ebs": {"VolumeType": "gp3", "VolumeSize": size, "Encrypted": True, "DeleteOnTermination": True},
        }
    ]


def test_the_images_other_volumes_go_with_the_machine_and_are_paid_for() -> None:
    shape = replace(SHAPE, ami=replace(AMI, volumes=(("/dev/sdf", 730),)))
    root, other = template(shape)["BlockDeviceMappings"]
    assert root == template()["BlockDeviceMappings"][0]
    assert other == {"DeviceName": "/dev/sdf", "Ebs": {"Encrypted": True, "DeleteOnTermination": True}}
    assert shape.hourly_usd == pytest.approx(SHAPE.hourly_usd + 0.08)


def test_everything_that_a_launch_creates_is_tagged_with_it() -> None:
    kinds = {each["ResourceType"] for each in template()["TagSpecifications"]}
    assert kinds == {"network-interface", "spot-instances-request"}
    on_demand = {each["ResourceType"] for each in template(replace(SHAPE, market="on-demand"))["TagSpecifications"]}
    assert on_demand == kinds - {"spot-instances-request"}
    said = {each["ResourceType"]: each["Tags"] for each in fleet(offer())["TagSpecifications"]}
    assert set(said) == {"fleet", "instance", "volume"}
    for each in said.values():
        assert {"Key": "outrider:pool", "Value": "p"} in each


@pytest.mark.parametrize("public", [True, False])
def test_an_ordinary_machine_has_one_interface(public: bool) -> None:
    (interface,) = template(replace(SHAPE, public=public))["NetworkInterfaces"]
    assert interface["AssociatePublicIpAddress"] is public
    assert "InterfaceType" not in interface


def test_efa_is_on_every_card_of_a_private_machine_and_on_one_of_a_public_one() -> None:
    several = offer("p5.48xlarge", efa=32)
    assert launch.cards(several, together=True, public=False) == 32
    assert launch.cards(several, together=True, public=True) == 1
    assert launch.cards(several, together=False, public=False) == 0
    assert launch.cards(offer(), together=True, public=False) == 0
    first, *others = template(replace(SHAPE, public=False, cards=32))["NetworkInterfaces"]
    assert all(each["InterfaceType"] == "efa" for each in (first, *others))
    assert (first["DeviceIndex"], first["NetworkCardIndex"]) == (0, 0)
    assert [(each["DeviceIndex"], each["NetworkCardIndex"]) for each in others] == [(1, n) for n in range(1, 32)]
    assert not any("AssociatePublicIpAddress" in each for each in (first, *others))
    (only,) = template(replace(SHAPE, cards=1))["NetworkInterfaces"]
    assert only["AssociatePublicIpAddress"] is True


@pytest.mark.parametrize(("given", "key"), [("role", "Name"), ("arn:aws:iam::1:instance-profile/role", "Arn")])
def test_an_instance_profile_is_given_by_name_or_arn(given: str, key: str) -> None:
    assert template(replace(SHAPE, profile=given))["IamInstanceProfile"] == {key: given}
    assert "IamInstanceProfile" not in template()


# --- the fleet --------------------------------------------------------------------------------------------------------


def test_a_fleet_is_instant_and_names_each_type_and_zone() -> None:
    said = fleet(offer(zone="a"), offer(zone="b"), offer("c7i.large", "a"))
    assert said["Type"] == "instant"
    assert said["ClientToken"] == "token"
    assert said["TargetCapacitySpecification"] == {"TotalTargetCapacity": 4, "DefaultTargetCapacityType": "spot"}
    assert said["SpotOptions"]["AllocationStrategy"] == "price-capacity-optimized"
    assert "OnDemandOptions" not in said
    (config,) = said["LaunchTemplateConfigs"]
    assert config["Overrides"] == [
        {"InstanceType": "m7i.large", "SubnetId": "subnet-a"},
        {"InstanceType": "m7i.large", "SubnetId": "subnet-b"},
        {"InstanceType": "c7i.large", "SubnetId": "subnet-a"},
    ]


def test_what_may_be_paid_holds_later_on_too() -> None:
    (config,) = fleet(offer(), max_usd=0.25)["LaunchTemplateConfigs"]
    assert float(config["Overrides"][0]["MaxPrice"]) == pytest.approx(0.25 - SHAPE.hourly_usd, abs=1e-6)
    on_demand = fleet(offer(), shape=replace(SHAPE, market="on-demand"), max_usd=0.25)
    assert "MaxPrice" not in on_demand["LaunchTemplateConfigs"][0]["Overrides"][0]
    assert on_demand["OnDemandOptions"] == {"AllocationStrategy": "lowest-price"}
    assert "SpotOptions" not in on_demand


# --- side by side -----------------------------------------------------------------------------------------------------


def test_several_machines_of_several_devices_are_side_by_side() -> None:
    several = AcceleratorRequest("A100", 8)
    assert launch.is_together(replace(REQUEST, accelerator=several))
    assert launch.is_together(replace(REQUEST, interconnect="efa"))
    assert not launch.is_together(replace(REQUEST, accelerator=several, nodes=1))
    assert not launch.is_together(replace(REQUEST, accelerator=AcceleratorRequest("A100", 1)))


# --- the answer -------------------------------------------------------------------------------------------------------


def part(name: str, subnet: str, **more: Any) -> dict[str, Any]:
    override = {"InstanceType": name, "SubnetId": subnet}
    return {"LaunchTemplateAndOverrides": {"Overrides": override}, "Lifecycle": "spot", **more}


def test_machines_and_refusals_are_of_the_offers_that_were_asked_for() -> None:
    a, b, c = offer(zone="a"), offer(zone="b"), offer("c7i.large", "b")
    answer = {
        "FleetId": "fleet-1",
        "Instances": [part("m7i.large", "subnet-b", InstanceIds=["i-1", "i-2"], InstanceType="m7i.large")],
        "Errors": [part("m7i.large", "subnet-a", ErrorCode="InsufficientInstanceCapacity", ErrorMessage="none left")],
    }
    read = launch.read(answer, [a, b, c], SUBNETS)
    assert read.machines == ((MachineId("i-1"), b), (MachineId("i-2"), b))
    (refusal,) = read.refusals
    assert (refusal.offers, refusal.code, refusal.message) == ((a,), "InsufficientInstanceCapacity", "none left")


def test_a_refusal_that_names_no_place_is_of_all() -> None:
    a, b = offer(zone="a"), offer(zone="b")
    answer = {"Errors": [{"ErrorCode": "UnauthorizedOperation", "ErrorMessage": "no"}], "Instances": []}
    assert launch.read(answer, [a, b], SUBNETS).refusals[0].offers == (a, b)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["m7i.large", "c7i.large"])), unique=True, min_size=1)
)
def test_what_is_asked_is_found_again_in_the_answer(places: list[tuple[str, str]]) -> None:
    offers = [offer(name, zone) for zone, name in places]
    overrides = [each for config in fleet(*offers)["LaunchTemplateConfigs"] for each in config["Overrides"]]
    groups = [
        {"LaunchTemplateAndOverrides": {"Overrides": override}, "InstanceIds": [f"i-{number}"]}
        for number, override in enumerate(overrides)
    ]
    read = launch.read({"Instances": groups}, offers, SUBNETS)
    assert dict(read.machines) == {f"i-{number}": each for number, each in enumerate(offers)}


# --- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cards", [0, 4])
def test_tasks_are_told_of_efa_where_there_is_one(cards: int) -> None:
    template = LaunchTemplate("lt-1", replace(SHAPE, cards=cards), "ssh-ed25519 HOST")
    machine = launch.machine(MachineId("i-1"), offer(efa=32), template, region="us-east-1", notices=(), lease="")
    assert ("FI_PROVIDER" in machine.env, "efa" in machine.facts) == (bool(cards), bool(cards))


def test_a_machine_costs_its_offer_its_volume_and_its_address() -> None:
    shape = replace(SHAPE, disk_gb=730)
    machine = launch.machine(
        MachineId("i-1"),
        offer(usd=1.0),
        LaunchTemplate("lt-1", shape, "ssh-ed25519 HOST"),
        region="us-east-1",
        notices=("aws",),
        lease="/lease",
    )
    assert machine.hourly_cost == pytest.approx(1.0 + 0.08 + 0.005)
    assert machine.address is None
    assert machine.rotate_host_key
    assert (machine.host_key, machine.notices, machine.lease) == ("ssh-ed25519 HOST", ("aws",), "/lease")
    assert (machine.facts["region"], machine.facts["zone"]) == ("us-east-1", "us-east-1a")
    assert machine.facts["market"] == "spot"
