"""Machine images, and the public parameters of SSM that name the newest ones."""

from __future__ import annotations

import re
from hashlib import sha256

from .call import CloudCall
from .filters import Facts, chosen, page
from .moto import ACCOUNT
from .protocol import Answer, EC2Error
from .state import Image, Region

_UBUNTU, _DEEP_LEARNING, _AMAZON = "099720109477", "898082745236", "137112412989"
_PARAMETERS = (  # (pattern of the parameter's name, (root device, gigabytes, owner))
    (r"/aws/service/canonical/ubuntu/server/[\w.]+/stable/current/(?P<arch>amd64|arm64)/hvm/ebs-gp[23]/ami-id",
     ("/dev/sda1", 8, _UBUNTU)),
    (r"/aws/service/deeplearning/ami/(?P<arch>x86_64|arm64)/[\w.-]*amazon-linux[\w.-]*/latest/ami-id",
     ("/dev/xvda", 60, _DEEP_LEARNING)),
    (r"/aws/service/deeplearning/ami/(?P<arch>x86_64|arm64)/[\w.-]+/latest/ami-id", ("/dev/sda1", 60, _DEEP_LEARNING)),
    (r"/aws/service/ami-amazon-linux-latest/[\w.-]+-(?P<arch>x86_64|arm64)", ("/dev/xvda", 8, _AMAZON)),
)  # fmt: skip
WELL_KNOWN = (
    *(
        f"/aws/service/canonical/ubuntu/server/{release}/stable/current/{arch}/hvm/ebs-{kind}/ami-id"
        for release, kind in (("22.04", "gp2"), ("24.04", "gp3"))
        for arch in ("amd64", "arm64")
    ),
    *(
        f"/aws/service/deeplearning/ami/{arch}/base-oss-nvidia-driver-gpu-ubuntu-{release}/latest/ami-id"
        for release in ("22.04", "24.04")
        for arch in ("x86_64", "arm64")
    ),
    *(f"/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-{arch}" for arch in ("x86_64", "arm64")),
)


def parameter(region: Region, name: str) -> str | None:
    """Return the image that a public parameter names; None: no such parameter."""
    if _described(name) is None:
        return None
    image_id = _id(region, name)
    region.images[image_id] = name
    return image_id


def find(region: Region, image_id: str) -> Image:
    """Return the image with this id.

    Raises:
        EC2Error: There is no such image.
    """
    for image in _known(region):
        if image.id == image_id:
            return image
    if not re.fullmatch(r"ami-[0-9a-f]{8,17}", image_id):
        raise EC2Error("InvalidAMIID.Malformed", f'Invalid id: "{image_id}" (expecting "ami-...")')
    raise EC2Error("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")


def describe_images(call: CloudCall) -> Answer:
    ids, owners = call.ask.get("ImageIds") or [], call.ask.get("Owners") or []
    images = [find(call.region, each) for each in ids] if ids else _known(call.region)
    aliases = {"amazon": (_DEEP_LEARNING, _AMAZON), "self": (ACCOUNT,), "aws-marketplace": ()}
    allowed = {owner for each in owners for owner in aliases.get(each, (each,))}
    images = [each for each in images if not owners or each.owner in allowed]
    shown, following = page(chosen(images, call.ask.get("Filters"), _FACTS), call.ask)
    return {"Images": [_rendered(each) for each in shown], "NextToken": following}


def register_image(call: CloudCall) -> Answer:
    """Register an image from snapshots, which are assumed to exist."""
    ask, image_id = call.ask, call.region.state.new_id("ami")
    device = ask.get("RootDeviceName") or "/dev/sda1"
    volumes = {each["DeviceName"]: each["Ebs"] for each in ask.get("BlockDeviceMappings") or () if each.get("Ebs")}
    if device not in volumes:
        raise EC2Error("InvalidBlockDeviceMapping", f"The root device {device} has no snapshot.")
    architecture = ask.get("Architecture") or "i386"
    image = Image(image_id, ask["Name"], architecture, device, ACCOUNT, volumes, public=False)
    call.region.own_images[image_id] = image
    return {"ImageId": image_id}


def deregister_image(call: CloudCall) -> Answer:
    find(call.region, call.ask["ImageId"])
    call.region.own_images.pop(call.ask["ImageId"], None)
    return {}


def _known(region: Region) -> list[Image]:
    for name in WELL_KNOWN:
        parameter(region, name)
    images: list[Image] = []
    for image_id, name in region.images.items():
        described = _described(name)
        assert described is not None, "only such names are kept"
        architecture, (root_device, size_gb, owner) = described
        root = {"VolumeSize": size_gb, "VolumeType": "gp3", "DeleteOnTermination": True, "Encrypted": False}
        called = name.strip("/").replace("/", "-")
        images.append(Image(image_id, called, architecture, root_device, owner, {root_device: root}))
    return [*images, *region.own_images.values()]


def _described(name: str) -> tuple[str, tuple[str, int, str]] | None:
    for pattern, facts in _PARAMETERS:
        fits = re.fullmatch(pattern, name)
        if fits:
            return fits["arch"].replace("amd64", "x86_64"), facts
    return None


def _id(region: Region, name: str) -> str:
    return f"ami-0{sha256(f'{region.name} {name}'.encode()).hexdigest()[:16]}"


def _rendered(it: Image) -> Answer:
    return {
        "ImageId": it.id,
        "Name": it.name,
        "Description": it.name,
        "Architecture": it.architecture,
        "OwnerId": it.owner,
        "Public": it.public,
        "State": "available",
        "ImageType": "machine",
        "PlatformDetails": "Linux/UNIX",
        "CreationDate": "2026-01-01T00:00:00.000Z",
        "RootDeviceType": "ebs",
        "RootDeviceName": it.root_device,
        "BlockDeviceMappings": [{"DeviceName": device, "Ebs": ebs} for device, ebs in it.volumes.items()],
        "VirtualizationType": "hvm",
        "Hypervisor": "xen",
        "EnaSupport": True,
    }


_FACTS: Facts[Image] = {
    "architecture": lambda it: [it.architecture],
    "image-id": lambda it: [it.id],
    "image-type": lambda _: ["machine"],
    "is-public": lambda it: [str(it.public).lower()],
    "name": lambda it: [it.name],
    "owner-id": lambda it: [it.owner],
    "root-device-type": lambda _: ["ebs"],
    "state": lambda _: ["available"],
    "virtualization-type": lambda _: ["hvm"],
}


ACTIONS = {
    "DeregisterImage": deregister_image,
    "DescribeImages": describe_images,
    "RegisterImage": register_image,
}
