"""The contents of a launch on EC2: the image (AMI), the launch template, and the CreateFleet call.

The image is the publisher's current one, or the user's; `find_image` asks EC2 for it. The rest of this module has no
I/O: it builds requests, and parses their answers.

A launch is one launch template (the properties of every machine) and one CreateFleet call of type instant (the number
of machines, and several types and zones to choose from). EC2 looks for capacity, and its answer has the machines and
the reasons for missing ones. Equal `Shape`s share a template.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, Machine, MachineId
from ..cloud.calls import unless_unknown
from ..cloud.machine_start import new_machine
from ..errors import BadRequest
from . import tags
from .api import Api

if TYPE_CHECKING:
    from ..cloud.offers import Market, Offer


HOURS_PER_MONTH = 730.0
# Seconds. Linux is billed by the second, for at least a minute: https://aws.amazon.com/ec2/pricing/on-demand
BILLED_S = 60.0
GP3_GB_MONTH_USD = 0.08  # "Amazon EBS pricing", us-east-1; up to 1.5 times as much in other regions
IPV4_HOUR_USD = 0.005  # USD per hour of a public address in every region; "Amazon VPC pricing"
MACHINES_ALIKE = "1"  # the only version of a template; each shape has its own template

# Environment variables from "Get started with EFA and NCCL", EC2 User Guide. The last one excludes network interfaces
# that NCCL cannot use for its own TCP connections.
EFA = {
    "FI_PROVIDER": "efa",
    "FI_EFA_USE_DEVICE_RDMA": "1",
    "FI_EFA_FORK_SAFE": "1",
    "NCCL_SOCKET_IFNAME": "^lo,docker,veth",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The contents of a launch template, except for the machines' initial host key."""

    ami: Ami
    market: Market
    disk_gb: int
    client_key: str
    lease_s: float
    max_lifetime_s: float | None
    groups: tuple[str, ...]  # security groups
    public: bool
    profile: str = ""  # an instance profile's name or ARN
    cluster: str = ""  # a placement group's name
    cards: int = 0  # network cards with an EFA interface; 0: one ordinary interface

    @property
    def hourly_usd(self) -> float:
        """Return USD per hour in addition to the machine's own price."""
        return extras_usd(self.ami, self.disk_gb, public=self.public)


@dataclass(frozen=True, slots=True)
class LaunchTemplate:
    """A launch template that exists in EC2."""

    id: str
    shape: Shape
    host_key: str  # public key of the machines' initial host key


@dataclass(frozen=True, slots=True)
class Refusal:
    """The offers that EC2 could not provide, and the reason in EC2's own words."""

    offers: tuple[Offer, ...]
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    machines: tuple[tuple[MachineId, Offer], ...]
    refusals: tuple[Refusal, ...]


def extras_usd(ami: Ami, disk_gb: int, *, public: bool) -> float:
    """Return USD per hour of the disks and the public address of a machine."""
    disks_gb = max(ami.root_gb, disk_gb) + sum(size_gb for _, size_gb in ami.volumes)
    return disks_gb * GP3_GB_MONTH_USD / HOURS_PER_MONTH + (IPV4_HOUR_USD if public else 0.0)


# --- placement --------------------------------------------------------------------------------------------------------


def is_together(request: LaunchRequest) -> bool:
    """Return whether machines belong in a placement group: with EFA, or several machines with several accelerators
    each.
    """
    several = request.accelerator is not None and request.accelerator.count > 1
    return request.interconnect == "efa" or (several and request.nodes > 1)


def cards(offer: Offer, *, together: bool, public: bool) -> int:
    """Return the number of a machine's EFA interfaces: one for each network card with EFA. ``together``: `is_together`.

    EC2 gives no public address to a machine with several interfaces ("Assign a public IPv4 address at launch"), so with
    public addresses the number is one; using all cards needs ``address="private"``.
    """
    if not (together and offer.type.interconnect == "efa"):
        return 0
    return 1 if public else max(1, offer.type.interconnect_cards)


# --- requests ---------------------------------------------------------------------------------------------------------


def template(shape: Shape, *, name: str, token: str, user_data: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of CreateLaunchTemplate."""
    # instances and volumes are not in this list, because the CreateFleet call tags them, with the token of its launch
    kinds = ["network-interface"]
    if shape.market == "spot":
        kinds.append("spot-instances-request")  # only for spot, as EC2 refuses tags for resources that are not created
    data: dict[str, Any] = {
        "ImageId": shape.ami.id,
        "UserData": b64encode(user_data.encode()).decode(),
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "disabled",
        },
        "BlockDeviceMappings": _volumes(shape),
        "NetworkInterfaces": _interfaces(shape),
        "TagSpecifications": [tags.specification(kind, labels) for kind in kinds],
    }
    if shape.profile:
        data["IamInstanceProfile"] = {"Arn" if shape.profile.startswith("arn:") else "Name": shape.profile}
    if shape.cluster:
        data["Placement"] = {"GroupName": shape.cluster}
    return {
        "LaunchTemplateName": name,
        "ClientToken": token,
        "LaunchTemplateData": data,
        "TagSpecifications": [tags.specification("launch-template", labels)],
    }


def _volumes(shape: Shape) -> list[dict[str, Any]]:
    """Return the disks, including the image's further volumes.

    For a volume that the launch does not name, the image would decide on encryption and on deletion with the machine.
    """
    every = {"Encrypted": True, "DeleteOnTermination": True}
    root = {"VolumeType": "gp3", "VolumeSize": max(shape.ami.root_gb, shape.disk_gb), **every}
    others = [{"DeviceName": device, "Ebs": every} for device, _ in shape.ami.volumes]
    return [{"DeviceName": shape.ami.root_device, "Ebs": root}, *others]


def _interfaces(shape: Shape) -> list[dict[str, Any]]:
    first: dict[str, Any] = {"DeviceIndex": 0, "Groups": list(shape.groups), "DeleteOnTermination": True}
    if shape.cards <= 1:  # with several interfaces, EC2 refuses this parameter
        first["AssociatePublicIpAddress"] = shape.public
    if not shape.cards:
        return [first]
    first |= {"InterfaceType": "efa", "NetworkCardIndex": 0}
    return [first, *(first | {"DeviceIndex": 1, "NetworkCardIndex": card} for card in range(1, shape.cards))]


def fleet(
    lots: Sequence[tuple[LaunchTemplate, Sequence[Offer]]],
    count: int,
    *,
    token: str,
    subnets: Mapping[str, str],
    labels: Mapping[str, str],
    max_usd: float | None,
) -> dict[str, Any]:
    """Return the parameters of CreateFleet: up to ``count`` machines of any of the offers, all in one market.

    ``subnets``: by zone. ``max_usd``: the most per hour for a machine with its disks. It applies later as well: EC2
    interrupts a spot machine whose price rises above it.
    """
    market = lots[0][0].shape.market

    def override(shape: Shape, offer: Offer) -> dict[str, Any]:
        price = {}
        if max_usd is not None and market == "spot":
            price["MaxPrice"] = f"{max_usd - shape.hourly_usd:.6f}"
        return {"InstanceType": offer.type.name, "SubnetId": subnets[offer.zone], **price}

    how = {"AllocationStrategy": "price-capacity-optimized", "InstanceInterruptionBehavior": "terminate"}
    return {
        "Type": "instant",
        "ClientToken": token,
        "LaunchTemplateConfigs": [
            {
                "LaunchTemplateSpecification": {"LaunchTemplateId": of.id, "Version": MACHINES_ALIKE},
                "Overrides": [override(of.shape, offer) for offer in offers],
            }
            for of, offers in lots
        ],
        "TargetCapacitySpecification": {"TotalTargetCapacity": count, "DefaultTargetCapacityType": market},
        "TagSpecifications": [tags.specification(kind, labels) for kind in ("fleet", "instance", "volume")],
        **({"SpotOptions": how} if market == "spot" else {"OnDemandOptions": {"AllocationStrategy": "lowest-price"}}),
    }


# --- answers ----------------------------------------------------------------------------------------------------------


def read(answer: Mapping[str, Any], offers: Sequence[Offer], subnets: Mapping[str, str]) -> Answer:
    """Parse the answer of CreateFleet, or an entry of DescribeFleets, for a request with these offers."""
    machines = [
        (MachineId(machine), _which(group, offers, subnets)[0])
        for group in answer.get("Instances") or ()
        for machine in group.get("InstanceIds", ())
    ]
    refusals = [
        Refusal(_which(error, offers, subnets), error.get("ErrorCode", ""), error.get("ErrorMessage", ""))
        for error in answer.get("Errors") or ()
    ]
    return Answer(tuple(machines), tuple(refusals))


def _which(part: Mapping[str, Any], offers: Sequence[Offer], subnets: Mapping[str, str]) -> tuple[Offer, ...]:
    """Return the offers to which ``part``, one entry of CreateFleet's answer, refers; if it fits none, all offers."""
    override = (part.get("LaunchTemplateAndOverrides") or {}).get("Overrides") or {}
    kind = part.get("InstanceType") or override.get("InstanceType")
    subnet = part.get("SubnetId") or override.get("SubnetId")
    zone = part.get("AvailabilityZone") or override.get("AvailabilityZone")
    fits = [
        offer
        for offer in offers
        if kind in (None, offer.type.name) and subnet in (None, subnets[offer.zone]) and zone in (None, offer.zone)
    ]
    return tuple(fits or offers)


def machine(
    name: MachineId, offer: Offer, of: LaunchTemplate, *, region: str, notices: tuple[str, ...], lease: str
) -> Machine:
    """Return the `Machine` for a new machine, which has no address yet."""
    shape = of.shape
    cards = {"efa": f"{shape.cards} of {max(1, offer.type.interconnect_cards)} interfaces"} if shape.cards else {}
    return new_machine(
        name,
        offer,
        host_key=of.host_key,
        image=shape.ami.id,
        extras_usd=shape.hourly_usd,
        notices=notices,
        lease=lease,
        billed_at_least_s=BILLED_S,
        env=EFA if shape.cards else {},
        facts={"region": region, **cards},
    )


# --- images -----------------------------------------------------------------------------------------------------------


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


async def find_image(
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
        image_id = await _current(api, image_parameters(architecture or "x86_64", accelerator=accelerator))
    else:
        image_id = await _named(api, ami)
    answer = await api.call("describe_images", ImageIds=[image_id], IncludeDeprecated=True)
    if not answer["Images"]:
        raise BadRequest(f"there is no AMI {image_id} in {api.region}, or it is not shared with this account")
    return read_image(answer["Images"][0], architecture=architecture, user=user)


def image_parameters(architecture: Architecture, *, accelerator: bool) -> list[str]:
    """Return names of AWS's public parameters, each of which names a Linux image: the newest release comes first."""
    form = _WITH_DRIVER if accelerator else _UBUNTU
    return [
        form.format(release=release, volume=volume, long=architecture, short=_SHORT[architecture])
        for release, volume in _RELEASES
    ]


def read_image(image: Mapping[str, Any], *, architecture: Architecture | None, user: str | None) -> Ami:
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
    chosen = user or login_name(f"{name} {image.get('Description', '')} {image.get('PlatformDetails', '')}")
    others = sorted((each, int(ebs.get("VolumeSize", 0))) for each, ebs in volumes.items() if ebs and each != device)
    return Ami(image_id, chosen, device, int(root.get("VolumeSize", 8)), built_for, name, tuple(others))


def login_name(text: str) -> str:
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
