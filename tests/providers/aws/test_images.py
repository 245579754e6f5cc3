"""Which image a machine starts from."""

from __future__ import annotations

from typing import Any, cast

import pytest

from outrider.providers.aws.api import Api
from outrider.providers.aws.errors import Failure, translate
from outrider.providers.aws.launch import ANY_USER, Ami, find_image, image_parameters, login_name, read_image
from outrider.providers.base import Architecture
from outrider.providers.errors import BadRequest

pytestmark = pytest.mark.anyio

NOBLE = "/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id"
JAMMY_ARM = "/aws/service/canonical/ubuntu/server/22.04/stable/current/arm64/hvm/ebs-gp2/ami-id"
DRIVER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"


def image(**facts: Any) -> dict[str, Any]:
    return {
        "ImageId": "ami-1",
        "Name": "ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20251022",
        "Architecture": "x86_64",
        "State": "available",
        "RootDeviceType": "ebs",
        "RootDeviceName": "/dev/sda1",
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 12, "SnapshotId": "snap-1"}},
        ],
        **facts,
    }


class Cloud:
    region = "us-east-1"

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self.images = {"ami-1": image()}

    async def call(self, operation: str, /, *, service: str = "ec2", **asked: Any) -> dict[str, Any]:
        match operation:
            case "get_parameters":
                found = [
                    {"Name": name, "Value": self.parameters[name]} for name in asked["Names"] if name in self.parameters
                ]
                return {"Parameters": found[::-1], "InvalidParameters": []}  # in an order of SSM's own
            case "get_parameter":
                if asked["Name"] not in self.parameters:
                    raise translate(Failure(code="ParameterNotFound", service=service))
                return {"Parameter": {"Value": self.parameters[asked["Name"]]}}
            case _:
                assert operation == "describe_images"
                if asked["ImageIds"][0] not in self.images:
                    raise translate(Failure(code="InvalidAMIID.NotFound", region="us-east-1"))
                return {"Images": [self.images[asked["ImageIds"][0]]]}


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def found(cloud: Cloud, architecture: Architecture | None = "x86_64", *, accelerator: bool = False,
                ami: str | None = None, user: str | None = None) -> Ami:  # fmt: skip
    return await find_image(cast("Api", cloud), architecture=architecture, accelerator=accelerator, ami=ami, user=user)


# --- the current ones -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "accelerator", "first"),
    [
        ("x86_64", False, NOBLE),
        ("arm64", False, NOBLE.replace("amd64", "arm64")),
        ("x86_64", True, DRIVER),
        ("arm64", True, DRIVER.replace("x86_64", "arm64")),
    ],
)
def test_parameters_are_named_as_their_makers_do(architecture: Architecture, accelerator: bool, first: str) -> None:
    assert image_parameters(architecture, accelerator=accelerator)[0] == first


async def test_the_newest_release_there_is(cloud: Cloud) -> None:
    cloud.parameters = {JAMMY_ARM: "ami-22", JAMMY_ARM.replace("22.04", "24.04").replace("gp2", "gp3"): "ami-24"}
    cloud.images = {name: image(ImageId=name, Architecture="arm64") for name in ("ami-22", "ami-24")}
    assert (await found(cloud, "arm64")).id == "ami-24"
    del cloud.parameters[JAMMY_ARM.replace("22.04", "24.04").replace("gp2", "gp3")]
    assert (await found(cloud, "arm64")).id == "ami-22"


async def test_an_accelerator_needs_its_driver(cloud: Cloud) -> None:
    name = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04) 20251031"
    cloud.parameters = {NOBLE: "ami-1", DRIVER: "ami-2"}
    cloud.images["ami-2"] = image(ImageId="ami-2", Name=name)
    assert await found(cloud, accelerator=True) == Ami("ami-2", "ubuntu", "/dev/sda1", 12, "x86_64", name)


async def test_a_region_without_any_asks_for_the_users(cloud: Cloud) -> None:
    with pytest.raises(BadRequest, match=r"give AWS\(ami="):
        await found(cloud, accelerator=True)


# --- the user's -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ami", ["ami-1", "/my/ami", "ssm:/my/ami", "resolve:ssm:/my/ami", "ssm:mine"])
async def test_ones_own_is_an_id_or_a_parameter(cloud: Cloud, ami: str) -> None:
    cloud.parameters = {"/my/ami": "ami-1", "mine": "ami-1"}
    assert (await found(cloud, ami=ami)).id == "ami-1"


async def test_missing_image_is_an_error(cloud: Cloud) -> None:
    with pytest.raises(BadRequest, match="no such AMI in us-east-1"):
        await found(cloud, ami="ami-2")
    with pytest.raises(BadRequest, match="no parameter '/my/ami' in us-east-1"):
        await found(cloud, ami="/my/ami")


def test_other_volumes_of_an_image_are_known() -> None:
    mappings = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 12}},
        {"DeviceName": "/dev/sdf", "Ebs": {"VolumeSize": 500, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/sdc", "NoDevice": ""},
    ]
    found = read_image(image(BlockDeviceMappings=mappings), architecture=None, user=None)
    assert (found.root_device, found.root_gb, found.volumes) == ("/dev/sda1", 12, (("/dev/sdf", 500),))


async def test_machines_are_of_the_images_architecture(cloud: Cloud) -> None:
    cloud.images["ami-1"] = image(Architecture="arm64")
    assert (await found(cloud, None, ami="ami-1")).architecture == "arm64"
    with pytest.raises(BadRequest, match="is for arm64, and the machines are x86_64"):
        await found(cloud, "x86_64", ami="ami-1")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"State": "pending"}, "is pending"),
        ({"Platform": "windows"}, "is Windows"),
        ({"Architecture": "i386"}, "is for i386"),
        ({"RootDeviceType": "instance-store"}, "no EBS volume"),
        ({"BlockDeviceMappings": []}, "no EBS volume"),
    ],
)
def test_unbootable_image_is_refused(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        read_image(image(**facts), architecture="x86_64", user=None)


# --- who logs in ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("told", "user"),
    [
        ("ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20240101", "ubuntu"),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)", "ubuntu"),
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023)", "ec2-user"),
        ("al2023-ami-2023.6.20241010.0-kernel-6.1-x86_64", "ec2-user"),
        ("amzn2-ami-kernel-5.10-hvm-2.0.20240101", "ec2-user"),
        ("RHEL-9.4.0_HVM-20240605-x86_64 Red Hat Enterprise Linux", "ec2-user"),
        ("debian-12-amd64-20240717-1811", "admin"),
        ("Fedora-Cloud-Base-40", "fedora"),
        ("Rocky-9-EC2-Base-9.4", "rocky"),
        ("amazon-eks-node-al2023", "ec2-user"),
        ("AlmaLinux OS 9.4", "ec2-user"),
        ("suse-sles-15-sp6", "ec2-user"),
        ("bitnami-wordpress on Debian", "bitnami"),
        ("my-training-image-v7 Linux/UNIX", ANY_USER),
    ],
)
def test_the_user_is_the_makers(told: str, user: str) -> None:
    assert login_name(told) == user


def test_the_users_word_is_last() -> None:
    assert read_image(image(), architecture="x86_64", user="me").user == "me"
    assert read_image(image(Name="x", Description="made of Ubuntu"), architecture=None, user=None).user == "ubuntu"
