"""The cloud as a whole: it begins empty, ends without a trace, and answers what is not EC2's too."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.request import urlopen

import pytest
from aiobotocore.session import get_session
from botocore.exceptions import ClientError

from outrider.testing import EC2, Paper

from .account import Account

if TYPE_CHECKING:
    import boto3

Open = Callable[..., Account]


def test_clouds_know_nothing_of_each_other(session: boto3.session.Session):
    for _ in range(3):
        with EC2() as cloud, closing(Account(cloud, session)) as account:
            assert cloud.left() == []
            assert account.client("s3").list_buckets()["Buckets"] == []
            account.run()
            account.template()
            account.ec2.create_security_group(GroupName="mine", Description="of a test")
            account.ec2.create_key_pair(KeyName="mine")
            account.ec2.create_placement_group(GroupName="mine", Strategy="spread")
            account.client("s3").create_bucket(Bucket="mine")
            instance_types = {each.kind for each in cloud.left()}
            assert instance_types == {
                "instance",
                "volume",
                "launch template",
                "security group",
                "key pair",
                "placement group",
            }


def test_nothing_is_left_after_the_block(session: boto3.session.Session):
    paper, threads = Paper(), set(threading.enumerate())
    with EC2(hypervisor=paper) as cloud, closing(Account(cloud, session)) as account:
        account.run(3)
        cloud.advance(1)
        assert len(paper.on) == 3
    assert paper.on == {}
    by = time.monotonic() + 60
    while not set(threading.enumerate()) <= threads:  # one of an earlier test may end, or begin another
        assert time.monotonic() < by, threading.enumerate()
        time.sleep(0.01)
    assert not answers(cloud.checkip_url)


def answers(url: str) -> bool:
    """Whether somebody does, as a cloud does it: its port may be another process's by now."""
    try:
        with urlopen(url, timeout=60) as answer:
            return answer.read() == b"127.0.0.1\n"
    except (OSError, HTTPException):
        return False


def test_one_cloud_at_a_time():
    with EC2(), pytest.raises(RuntimeError, match="has a test cloud already"), EC2():
        pass


def test_an_unknown_region_lets_nobody_in_and_the_cloud_can_be_opened_again():
    with pytest.raises(ValueError, match="no region"), EC2(region="us-nowhere-1"):
        pass
    with EC2():
        pass


@pytest.mark.parametrize(
    ("missing", "statement"), [("botocore", "EC2"), ("flask", "EC2().__enter__()"), ("moto", "EC2().__enter__()")]
)
def test_missing_extra_is_named(missing: str, statement: str):
    program = f"import sys; sys.modules[{missing!r}] = None; from outrider.testing import EC2; {statement}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "pip install 'outrider[testing]'" in done.stderr.splitlines()[-1]


def test_checkip(account: Account):
    with urlopen(account.cloud.checkip_url) as answer:
        assert answer.read() == b"127.0.0.1\n"


def test_by_aiobotocore(account: Account):
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    said = {"ImageId": account.image(), "InstanceType": "t3.micro", "MinCount": 2, "MaxCount": 2}

    async def launch() -> int:
        where = {"endpoint_url": account.cloud.endpoint_url, "region_name": "us-east-1"}
        async with get_session().create_client("ec2", **where, **keys) as ec2:
            await ec2.run_instances(**said)
            return len((await ec2.describe_instances())["Reservations"][0]["Instances"])

    assert asyncio.run(launch()) == 2


def test_regions_are_apart(account: Account):
    account.run()
    other = account.client("ec2", "eu-west-1")
    assert other.describe_instances()["Reservations"] == []
    assert len(other.describe_subnets()["Subnets"]) == 3
    image = account.client("ssm", "eu-west-1").get_parameter(
        Name="/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    )["Parameter"]["Value"]
    other.run_instances(ImageId=image, InstanceType="t3.micro", MinCount=1, MaxCount=1)
    assert sorted(each.region for each in account.cloud.instances()) == ["eu-west-1", "us-east-1"]
    assert {each.region for each in account.cloud.left()} == {"eu-west-1", "us-east-1"}
    with pytest.raises(ClientError, match="AuthFailure"):
        account.client("ec2", "us-nowhere-1").describe_instances()


def test_types_have_their_hardware_and_filters(account: Account):
    (told,) = account.ec2.describe_instance_types(InstanceTypes=["p4d.24xlarge"])["InstanceTypes"]
    assert told["GpuInfo"]["Gpus"][0]["Name"] == "A100"
    assert told["NetworkInfo"]["EfaInfo"]["MaximumEfaInterfaces"] == 4
    assert told["VCpuInfo"]["DefaultVCpus"] == 96

    def names(**filters: str) -> list[str]:
        asked = [
            {"Name": name.replace("__", ".").replace("_", "-"), "Values": [value]} for name, value in filters.items()
        ]
        pages = account.ec2.get_paginator("describe_instance_types").paginate(Filters=asked)
        return [each["InstanceType"] for page in pages for each in page["InstanceTypes"]]

    assert len(names()) > 100, "several pages"
    assert set(names(instance_type="g5g.x*")) == {"g5g.xlarge"}
    arm = names(processor_info__supported_architecture="arm64", vcpu_info__default_vcpus="2")
    assert "t4g.micro" in arm
    assert "t3.micro" not in arm
    assert "m7i.large" not in names(network_info__efa_supported="true")
    assert "m7i.large" in names(supported_usage_class="spot", bare_metal="false")
    with pytest.raises(ClientError, match="filter 'colour' is invalid"):
        names(colour="red")
    with pytest.raises(ClientError, match="InvalidInstanceType"):
        account.ec2.describe_instance_types(InstanceTypes=["m7i.tiny"])


def test_not_every_zone_has_every_type(account: Account):
    def zones(name: str) -> set[str]:
        asked = [{"Name": "instance-type", "Values": [name]}]
        found = account.ec2.describe_instance_type_offerings(LocationType="availability-zone", Filters=asked)
        return {each["Location"] for each in found["InstanceTypeOfferings"]}

    known = {each["ZoneName"] for each in account.ec2.describe_availability_zones()["AvailabilityZones"]}
    assert zones("t3.micro") <= known
    assert zones("g6.xlarge") < known
    assert zones("g6.xlarge")


def test_images_and_their_parameters(account: Account):
    (image,) = account.ec2.describe_images(ImageIds=[account.image("arm64")])["Images"]
    assert (image["Architecture"], image["RootDeviceName"]) == ("arm64", "/dev/sda1")
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 8
    own = account.ec2.describe_images(Owners=["amazon"], Filters=[{"Name": "architecture", "Values": ["x86_64"]}])
    assert {each["Architecture"] for each in own["Images"]} == {"x86_64"}
    ssm = account.client("ssm")
    answer = ssm.get_parameters(
        Names=["/aws/service/none", "/aws/service/ami-amazon-linux-latest/al2023-ami-minimal-kernel-default-arm64"]
    )
    assert (len(answer["Parameters"]), answer["InvalidParameters"]) == (1, ["/aws/service/none"])
    with pytest.raises(ssm.exceptions.ParameterNotFound):
        ssm.get_parameter(Name="/aws/service/none")
    ssm.put_parameter(Name="/mine", Value="ami-1", Type="String")
    assert ssm.get_parameter(Name="/mine")["Parameter"]["Value"] == "ami-1"


def test_products_have_the_price_that_is_charged(account: Account):
    filters = {
        "instanceType": "t3.micro,g5.xlarge",
        "regionCode": "us-east-1",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
    }
    asked = [
        {"Type": "ANY_OF" if "," in value else "TERM_MATCH", "Field": field, "Value": value}
        for field, value in filters.items()
    ]
    listed = account.client("pricing").get_products(ServiceCode="AmazonEC2", Filters=asked)["PriceList"]
    usd = {}
    for text in listed:
        product = json.loads(text)
        (term,) = product["terms"]["OnDemand"].values()
        (price,) = term["priceDimensions"].values()
        usd[product["product"]["attributes"]["instanceType"]] = float(price["pricePerUnit"]["USD"])
    assert set(usd) == {"t3.micro", "g5.xlarge"}
    account.run(InstanceType="g5.xlarge")
    assert [each.hourly_usd for each in account.cloud.ledger.bills] == [usd["g5.xlarge"]]


def test_groups_that_are_in_use_stay(account: Account):
    group = account.ec2.create_security_group(GroupName="mine", Description="of a test")["GroupId"]
    ids = account.run(SecurityGroupIds=[group])
    with pytest.raises(ClientError, match="DependencyViolation"):
        account.ec2.delete_security_group(GroupId=group)
    with pytest.raises(ClientError, match="DependencyViolation"):
        account.ec2.delete_security_group(GroupName="mine")
    account.ec2.terminate_instances(InstanceIds=ids)
    account.cloud.advance(1)
    account.ec2.delete_security_group(GroupId=group)
    assert account.cloud.left() == []


def test_tags_of_what_is_here_and_of_what_is_motos(account: Account):
    group = account.ec2.create_security_group(GroupName="mine", Description="of a test")["GroupId"]
    (one,) = account.run()
    account.ec2.create_tags(Resources=[one, group], Tags=[{"Key": "pool", "Value": "p"}])
    mine = [{"Name": "key", "Values": ["pool"]}]
    tags = account.ec2.describe_tags(Filters=mine)["Tags"]
    assert {(each["ResourceId"], each["ResourceType"]) for each in tags} == {
        (one, "instance"),
        (group, "security-group"),
    }
    assert {each.kind: each.tags for each in account.cloud.left() if each.tags} == {
        "instance": {"pool": "p"}, "security group": {"pool": "p"}
    }  # fmt: skip
    account.ec2.delete_tags(Resources=[one, group], Tags=[{"Key": "pool"}])
    assert account.ec2.describe_tags(Filters=mine)["Tags"] == []
    with pytest.raises(ClientError, match=r"InvalidInstanceID\.NotFound"):
        account.ec2.create_tags(Resources=["i-0123456789abcdef0", group], Tags=[{"Key": "pool", "Value": "p"}])


def test_template_versions(account: Account):
    template = account.template()
    made = account.ec2.create_launch_template_version(
        LaunchTemplateId=template, SourceVersion="1", LaunchTemplateData={"InstanceType": "t3.micro"}
    )["LaunchTemplateVersion"]
    assert (made["VersionNumber"], made["DefaultVersion"]) == (2, False)

    def launched(version: str) -> str:
        said = {"LaunchTemplate": {"LaunchTemplateId": template, "Version": version}, "MinCount": 1, "MaxCount": 1}
        return account.ec2.run_instances(**said)["Instances"][0]["InstanceType"]

    assert [launched(version) for version in ("1", "2", "$Latest", "$Default")] == [
        "m7i.large", "t3.micro", "t3.micro", "m7i.large"
    ]  # fmt: skip
    account.ec2.modify_launch_template(LaunchTemplateId=template, DefaultVersion="2")
    assert launched("$Default") == "t3.micro"
    with pytest.raises(ClientError, match="VersionNotFound"):
        launched("3")
    versions = account.ec2.describe_launch_template_versions(LaunchTemplateId=template)["LaunchTemplateVersions"]
    assert [each["LaunchTemplateData"]["InstanceType"] for each in versions] == ["t3.micro", "m7i.large"]
    account.ec2.delete_launch_template(LaunchTemplateId=template)
    assert account.ec2.describe_launch_templates()["LaunchTemplates"] == []


def test_placement_groups(account: Account):
    account.ec2.create_placement_group(GroupName="mine", Strategy="cluster")
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Duplicate"):
        account.ec2.create_placement_group(GroupName="mine", Strategy="cluster")
    (group,) = account.ec2.describe_placement_groups(GroupNames=["mine"])["PlacementGroups"]
    assert (group["State"], group["Strategy"]) == ("available", "cluster")
    account.ec2.delete_placement_group(GroupName="mine")
    with pytest.raises(ClientError, match=r"InvalidPlacementGroup\.Unknown"):
        account.ec2.describe_placement_groups(GroupNames=["mine"])
