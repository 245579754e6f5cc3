"""The choice of the AMI for machines: the publisher's current image, or the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, get_args

from ...lazy_dataclass import dataclass
from ..base import Architecture
from ..cloud.failures import unless_unknown
from ..errors import BadRequest
from .api import Api

# Public parameters of the Systems Manager; the first that exists in the region is used. For Ubuntu, see "Find Ubuntu
# images on AWS", Canonical. For images with NVIDIA's driver, CUDA, EFA and NCCL's plugin, but without frameworks, see
# "AWS Deep Learning Base GPU AMI (Ubuntu 24.04)", AWS Deep Learning AMIs Developer Guide.
_UBUNTU = "/aws/service/canonical/ubuntu/server/{release}/stable/current/{short}/hvm/{volume}/ami-id"
_WITH_DRIVER = "/aws/service/deeplearning/ami/{long}/base-oss-nvidia-driver-gpu-ubuntu-{release}/latest/ami-id"
_RELEASES = (("24.04", "ebs-gp3"), ("22.04", "ebs-gp2"))
_SHORT: dict[Architecture, str] = {"x86_64": "amd64", "arm64": "arm64"}

# (pattern for an image's name or description, login name), from "Default user names", EC2 User Guide. First match wins.
_USERS: tuple[tuple[str, str], ...] = (
    (r"bitnami", "bitnami"),
    (r"ubuntu", "ubuntu"),
    (r"\bdebian", "admin"),
    (r"\bcentos", "centos"),
    (r"\brocky", "rocky"),
    (r"\bfedora", "fedora"),
    (r"amazon linux|amazon-e[ck]s|\bamzn|\bal20\d\d|\brhel|red hat|\bsuse|\bsles|\balma", "ec2-user"),
)
ANY_USER = "outrider"  # login name for unknown images; cloud-init creates this user

_PARAMETER = re.compile(r"(?:resolve:)?ssm:(?P<name>.+)|(?P<path>/.+)")


@dataclass(frozen=True, slots=True)
class Ami:
    id: str
    user: str  # login name; the user may become root
    root_device: str  # such as "/dev/sda1"
    root_gb: int  # least size of the root volume
    architecture: Architecture = "x86_64"
    name: str = ""
    volumes: tuple[tuple[str, int], ...] = ()  # (device, GB) of each volume besides the root


async def find(
    api: Api, *, architecture: Architecture | None, accelerator: bool, ami: str | None = None, user: str | None = None
) -> Ami:
    """Find the image: Ubuntu; with an ``accelerator``, an image that also has the drivers of NVIDIA and EFA.

    ``ami``: the id of an AMI to use instead, or the name of a Systems Manager parameter that holds one (``/my/ami``).
    ``user``: the login name; by default derived from the image's name. ``architecture``: None: that of ``ami``, or
    x86_64.

    Raises:
        BadRequest: The image does not exist, or such machines cannot start from it.
        ProviderError: As in `Api.call`.
    """
    if ami is None:
        image_id = await _current(api, names(architecture or "x86_64", accelerator=accelerator))
    else:
        image_id = await _named(api, ami)
    answer = await api.call("describe_images", ImageIds=[image_id], IncludeDeprecated=True)
    if not answer["Images"]:
        raise BadRequest(f"there is no AMI {image_id} in {api.region}, or it is not shared with this account")
    return read(answer["Images"][0], architecture=architecture, user=user)


def names(architecture: Architecture, *, accelerator: bool) -> list[str]:
    """Return the parameters that name such an image, the best first."""
    form = _WITH_DRIVER if accelerator else _UBUNTU
    return [
        form.format(release=release, volume=volume, long=architecture, short=_SHORT[architecture])
        for release, volume in _RELEASES
    ]


def read(image: Mapping[str, Any], *, architecture: Architecture | None, user: str | None) -> Ami:
    """Parse an image in DescribeImages' answer.

    Raises:
        BadRequest: No machine could start from the image.
    """
    image_id, name, built_for = image["ImageId"], image.get("Name", ""), image["Architecture"]
    if built_for not in get_args(Architecture):
        raise BadRequest(f"the AMI {image_id} ({name}) is for {built_for}: give one for x86_64 or arm64")
    if architecture not in {None, built_for}:
        raise BadRequest(f"the AMI {image_id} ({name}) is for {built_for}, and the machines are {architecture}")
    if image.get("State", "available") != "available":
        raise BadRequest(f"the AMI {image_id} ({name}) is {image['State']}: wait until it is there, or give another")
    if image.get("Platform", "").lower() == "windows":
        raise BadRequest(f"the AMI {image_id} ({name}) is Windows: give one with Linux")
    device = image.get("RootDeviceName", "")
    volumes = {each.get("DeviceName"): each.get("Ebs") for each in image.get("BlockDeviceMappings", ())}
    root = volumes.get(device)
    if image.get("RootDeviceType", "ebs") != "ebs" or not root:
        raise BadRequest(f"the AMI {image_id} ({name}) has no EBS volume as its root: give one that has")
    chosen = user or login(f"{name} {image.get('Description', '')} {image.get('PlatformDetails', '')}")
    others = sorted((each, int(ebs.get("VolumeSize", 0))) for each, ebs in volumes.items() if ebs and each != device)
    return Ami(image_id, chosen, device, int(root.get("VolumeSize", 8)), built_for, name, tuple(others))


def login(text: str) -> str:
    """Return the login name for an image with this description."""
    return next((user for pattern, user in _USERS if re.search(pattern, text, re.IGNORECASE)), ANY_USER)


async def _current(api: Api, parameters: list[str]) -> str:
    answer = await api.call("get_parameters", service="ssm", Names=parameters)
    values = {each["Name"]: each["Value"] for each in answer.get("Parameters", ())}
    for parameter in parameters:
        if parameter in values:
            return str(values[parameter])
    raise BadRequest(f"{api.region} has none of the images {' or '.join(parameters)}: give AWS(ami=...)")


async def _named(api: Api, ami: str) -> str:
    parameter = _PARAMETER.fullmatch(ami)
    if parameter is None:
        return ami
    name = parameter["name"] or parameter["path"]
    answer = await unless_unknown(api.call("get_parameter", service="ssm", Name=name), "ParameterNotFound")
    if answer is None:
        raise BadRequest(f"there is no parameter {name!r} in {api.region} that names an AMI", code="ParameterNotFound")
    return str(answer["Parameter"]["Value"])
