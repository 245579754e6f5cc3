"""An instance's life as EC2 tells it: pending, running, shutting-down, terminated, forgotten."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError

from outrider.testing import EC2, Boot, Paper

from .account import Account

if TYPE_CHECKING:
    import boto3

Open = Callable[..., Account]


def test_states_follow_the_clock(open_account: Open):
    account = open_account(boot_s=200.0, stop_s=300.0, remembered_s=3600.0)
    cloud, (one,) = account.cloud, account.run()
    assert account.states(one) == ["pending"]
    cloud.advance(100)
    assert account.states(one) == ["pending"]
    cloud.advance(101)
    assert account.states(one) == ["running"]
    (change,) = account.ec2.terminate_instances(InstanceIds=[one])["TerminatingInstances"]
    assert (change["PreviousState"]["Name"], change["CurrentState"]["Name"]) == ("running", "shutting-down")
    cloud.advance(301)
    (told,) = account.described(one)
    assert told["State"] == {"Code": 48, "Name": "terminated"}
    assert told["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert told["StateTransitionReason"].startswith("User initiated (20")
    assert "PrivateIpAddress" not in told
    assert "PublicIpAddress" not in told
    cloud.advance(3601)
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        account.described(one)
    assert account.described() == []


def test_machines_have_addresses_in_their_subnet_and_outside(account: Account):
    one, two = account.described(*account.run(2))
    assert one["PrivateIpAddress"].startswith("172.31.")
    assert one["PrivateIpAddress"] != two["PrivateIpAddress"]
    assert one["PublicIpAddress"] != one["PrivateIpAddress"]
    assert one["SubnetId"] == two["SubnetId"]


def test_without_public_addresses(open_account: Open):
    account = open_account(public_ips=False)
    (one,) = account.described(*account.run())
    assert "PublicIpAddress" not in one
    interface = {"DeviceIndex": 0, "AssociatePublicIpAddress": True}
    (two,) = account.described(*account.run(NetworkInterfaces=[interface]))
    assert two["PublicIpAddress"]


@pytest.mark.parametrize("recycled", [True, False])
def test_an_address_may_be_given_again(open_account: Open, recycled: bool):
    account = open_account(recycle_addresses=recycled)
    first = account.run()
    (before,) = account.described(*first)
    account.ec2.terminate_instances(InstanceIds=first)
    account.cloud.advance(10)
    (after,) = account.described(*account.run())
    assert (before["PrivateIpAddress"] == after["PrivateIpAddress"]) is recycled


def test_the_hypervisor_gets_what_the_launch_said(open_account: Open):
    paper = Paper()
    account = open_account(hypervisor=paper)
    key = account.ec2.create_key_pair(KeyName="mine", KeyType="ed25519")
    options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
    data = {
        "ImageId": account.image(),
        "UserData": b64encode(b"#cloud-config\n{}").decode(),
        "MetadataOptions": options,
        "KeyName": "mine",
    }
    template = account.template(**data)
    (one,) = account.run(LaunchTemplate={"LaunchTemplateId": template, "Version": "1"})
    account.cloud.advance(1)
    boot = paper.on[one]
    assert boot.user_data == "#cloud-config\n{}"
    assert boot.tokens_required
    assert boot.metadata["instance-id"] == one
    assert boot.metadata["local-ipv4"] == boot.private_ip
    assert boot.metadata["placement/availability-zone"] == boot.zone
    assert boot.metadata["public-keys/0/openssh-key"].startswith("ssh-ed25519 ")
    assert key["KeyMaterial"]
    account.ec2.terminate_instances(InstanceIds=[one])
    account.cloud.advance(1)
    assert paper.on == {}


@pytest.mark.parametrize(("behaviour", "comes_to"), [("terminate", "terminated"), ("stop", "stopped")])
def test_a_machine_that_switches_itself_off(open_account: Open, behaviour: str, comes_to: str):
    paper = Paper()
    account = open_account(hypervisor=paper)
    template = account.template(InstanceInitiatedShutdownBehavior=behaviour)
    (one,) = account.run(LaunchTemplate={"LaunchTemplateId": template})
    account.cloud.advance(1)
    paper.shut_down(one)
    account.cloud.advance(1)
    (told,) = account.described(one)
    assert told["State"]["Name"] == comes_to
    assert told["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_a_spot_machine_that_switches_itself_off_is_terminated(open_account: Open):
    paper = Paper()
    account = open_account(hypervisor=paper)
    (one,) = account.run_spot()
    account.cloud.advance(1)
    paper.shut_down(one)
    account.cloud.advance(1)
    assert account.states(one) == ["terminated"]
    assert [each.kind for each in account.cloud.left()] == []


def test_a_machine_loses_power_once(open_account: Open):
    class Counting(Paper):
        def power_off(self, instance_id: str) -> None:
            cut.append(instance_id)
            super().power_off(instance_id)

    cut: list[str] = []
    account = open_account(hypervisor=Counting())
    (one,) = account.run()
    account.cloud.advance(1)
    account.ec2.stop_instances(InstanceIds=[one])
    account.ec2.terminate_instances(InstanceIds=[one])
    account.ec2.terminate_instances(InstanceIds=[one])
    account.cloud.advance(1)
    assert cut == [one]


def test_a_power_cut_is_not_seen_by_the_api(open_account: Open):
    paper = Paper()
    account = open_account(hypervisor=paper)
    (one,) = account.run()
    account.cloud.advance(1)
    paper.power_off(one)
    account.cloud.advance(60)
    assert account.states(one) == ["running"]


def test_stopped_machines_start_again(account: Account):
    (one,) = account.run()
    account.cloud.advance(1)
    account.ec2.stop_instances(InstanceIds=[one])
    account.cloud.advance(1)
    assert account.states(one) == ["stopped"]
    account.ec2.start_instances(InstanceIds=[one])
    account.cloud.advance(1)
    assert account.states(one) == ["running"]
    account.ec2.stop_instances(InstanceIds=[one])
    account.ec2.terminate_instances(InstanceIds=[one])
    account.cloud.advance(1)
    assert account.states(one) == ["terminated"]


def test_ending_a_machine_while_it_boots(open_account: Open):
    paper = Paper()
    account = open_account(hypervisor=paper, boot_s=60.0)
    ids = account.run(2)
    account.ec2.terminate_instances(InstanceIds=ids)
    account.cloud.advance(120)
    assert account.states(*ids) == ["terminated", "terminated"]
    assert paper.on == {}


@pytest.mark.parametrize("fails", [False, True])
def test_ending_a_machine_that_is_getting_power(session: boto3.session.Session, fails: bool):
    class Slow(Paper):
        def boot(self, machine: Boot) -> None:
            booting.set()
            assert ended.wait(60)
            super().boot(machine)
            if fails:
                raise OSError("no such host")

    booting, ended, paper = threading.Event(), threading.Event(), Slow()
    with suppress(ExceptionGroup), EC2(hypervisor=paper) as cloud, closing(Account(cloud, session)) as account:
        (one,) = account.run()
        assert booting.wait(60)
        account.ec2.terminate_instances(InstanceIds=[one])
        ended.set()
        cloud.advance(1)
        assert account.states(one) == ["terminated"]
        assert paper.on == {}


def test_one_unknown_id_ends_nothing(account: Account):
    ids = account.run()
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.Malformed"):
        account.described("i-1")
    with pytest.raises(ClientError, match="i-0123456789abcdef0"):
        account.ec2.terminate_instances(InstanceIds=[*ids, "i-0123456789abcdef0"])
    account.cloud.advance(1)
    assert account.states(*ids) == ["running"]


def test_min_and_max_count_are_a_range(account: Account):
    answer = account.ec2.run_instances(ImageId=account.image(), InstanceType="t3.micro", MinCount=1, MaxCount=3)
    assert [each["AmiLaunchIndex"] for each in answer["Instances"]] == [0, 1, 2]
    assert len({each["InstanceId"] for each in answer["Instances"]}) == 3


def test_what_the_hypervisor_raises_ends_the_instance_and_is_told(session: boto3.session.Session):
    class Broken(Paper):
        def boot(self, machine: Boot) -> None:
            raise OSError("no such host")

    with pytest.raises(ExceptionGroup, match="hypervisor") as caught, EC2(hypervisor=Broken()) as cloud:
        account = Account(cloud, session)
        (one,) = account.run()
        cloud.advance(1)
        assert cloud.instance(one).reason == ("Server.InternalError", "Server.InternalError: Internal error on launch")
        assert cloud.instance(one).state == "terminated"
        account.close()
    assert caught.group_contains(OSError, match="no such host")


def test_volumes_go_with_their_instance_unless_they_are_to_stay(account: Account):
    mappings = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "Encrypted": True, "VolumeType": "gp3"}},
        {"DeviceName": "/dev/sdb", "Ebs": {"VolumeSize": 5, "DeleteOnTermination": False}},
    ]
    tags = [{"ResourceType": "volume", "Tags": [{"Key": "pool", "Value": "p"}]}]
    ids = account.run(BlockDeviceMappings=mappings, TagSpecifications=tags)
    mine = [{"Name": "tag:pool", "Values": ["p"]}]
    root, other = account.ec2.describe_volumes(Filters=mine)["Volumes"]
    assert (root["Size"], root["Encrypted"], root["State"]) == (100, True, "in-use")
    account.ec2.terminate_instances(InstanceIds=ids)
    account.cloud.advance(1)
    (left,) = account.ec2.describe_volumes()["Volumes"]
    assert (left["VolumeId"], left["State"]) == (other["VolumeId"], "available")
    assert [each.kind for each in account.cloud.left()] == ["volume"]
    account.ec2.delete_volume(VolumeId=left["VolumeId"])
    assert account.cloud.left() == []


def test_an_images_volumes_are_as_the_image_says_where_the_launch_does_not(account: Account):
    volumes = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 8, "SnapshotId": "snap-1"}},
        {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 5, "SnapshotId": "snap-2", "DeleteOnTermination": False}},
    ]
    said = {"Name": "mine", "Architecture": "x86_64", "RootDeviceName": "/dev/sda1", "BlockDeviceMappings": volumes}
    image = account.ec2.register_image(**said)["ImageId"]
    (described,) = account.ec2.describe_images(Owners=["self"])["Images"]
    assert described["BlockDeviceMappings"] == volumes
    as_it_is = account.run(ImageId=image)
    gone = {"DeviceName": "/dev/sdf", "Ebs": {"DeleteOnTermination": True}}
    told_otherwise = account.run(ImageId=image, BlockDeviceMappings=[gone])
    sizes = [each["Size"] for each in account.ec2.describe_volumes()["Volumes"]]
    assert sorted(sizes) == [5, 5, 8, 8]
    account.ec2.terminate_instances(InstanceIds=[*as_it_is, *told_otherwise])
    account.cloud.advance(1)
    (left,) = account.ec2.describe_volumes()["Volumes"]
    assert (left["Size"], left["State"]) == (5, "available")
    account.ec2.deregister_image(ImageId=image)
    with pytest.raises(ClientError, match=r"InvalidAMIID\.NotFound"):
        account.run(ImageId=image)


def test_filters_and_pages(account: Account):
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "pool", "Value": "a-b"}]}]
    mine = account.run(3, TagSpecifications=tags)
    account.run(2)
    account.cloud.advance(1)

    def ids(*filters: tuple[str, str]) -> list[str]:
        asked = [{"Name": name, "Values": [value]} for name, value in filters]
        return [each["InstanceId"] for each in account.described(Filters=asked)]

    assert ids(("tag:pool", "a-b")) == mine
    assert ids(("tag:pool", "a?*")) == mine
    assert ids(("tag:pool", "a.b")) == []
    assert ids(("tag-key", "pool"), ("instance-state-name", "running")) == mine
    assert ids(("tag:pool", "a-b"), ("instance-state-name", "terminated")) == []
    with pytest.raises(ClientError, match="The filter 'colour' is invalid"):
        ids(("colour", "red"))
    pages = list(account.ec2.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 2}))
    assert [sum(len(each["Instances"]) for each in page["Reservations"]) for page in pages] == [2, 2, 1]


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"ImageId": "ami-0123456789abcdef0"}, "InvalidAMIID.NotFound"),
        ({"ImageId": "ubuntu"}, "InvalidAMIID.Malformed"),
        ({"InstanceType": "m7i.tiny"}, "InvalidParameterValue"),
        ({"InstanceType": "m7g.large"}, "matching architectures"),
        ({"SubnetId": "subnet-0123456789abcdef0"}, "InvalidSubnetID.NotFound"),
        ({"SecurityGroupIds": ["sg-0123456789abcdef0"]}, "InvalidGroup.NotFound"),
        ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound"),
        ({"Placement": {"GroupName": "nowhere"}}, "InvalidPlacementGroup.Unknown"),
        ({"Placement": {"AvailabilityZone": "us-east-1z"}}, "InvalidParameterValue"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "Invalid IAM Instance Profile name"),
        ({"LaunchTemplate": {"LaunchTemplateName": "none"}}, "InvalidLaunchTemplateName.NotFoundException"),
        ({"MinCount": 3, "MaxCount": 2}, "InvalidParameterValue"),
        ({"UserData": "x" * 20000}, "limited to 16384 bytes"),
        ({"DryRun": True}, "DryRunOperation"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "InterfaceType": "efa"}]}, "Elastic Fabric Adapter"),
        (
            {"NetworkInterfaces": [{"DeviceIndex": i, "AssociatePublicIpAddress": True} for i in (0, 1)]},
            "InvalidParameterCombination",
        ),
        (
            {"TagSpecifications": [{"ResourceType": "spot-instances-request", "Tags": [{"Key": "a", "Value": "b"}]}]},
            "InvalidParameterCombination",
        ),
    ],
)
def test_invalid_launch_is_refused(account: Account, said: dict[str, object], refused: str):
    with pytest.raises(ClientError, match=refused):
        account.run(**said)
    assert account.cloud.instances() == []


def test_the_default_vpc_has_the_addresses_one_asks_for(open_account: Open):
    account = open_account(vpc_cidr="10.77.0.0/20")
    assert len(account.ec2.describe_subnets()["Subnets"]) == 6
    (one,) = account.described(*account.run())
    assert one["PrivateIpAddress"].startswith("10.77.")
    assert one["PublicIpAddress"]


def test_no_default_vpc(open_account: Open):
    account = open_account(default_vpc=False)
    assert account.ec2.describe_vpcs()["Vpcs"] == []
    with pytest.raises(ClientError, match="VPCIdNotSpecified"):
        account.run()


def test_what_the_cloud_cannot_do_with_instances_it_says(account: Account):
    (one,) = account.run()
    with pytest.raises(ClientError, match="does not know how to GetConsoleOutput"):
        account.ec2.get_console_output(InstanceId=one)
