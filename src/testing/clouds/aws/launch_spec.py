"""Resolution and checks of a launch's parameters: every named resource exists and is compatible."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from ....lazy_dataclass import dataclass
from . import images
from .call import CloudCall
from .capacity import Pool, no_capacity
from .faults import Market
from .filters import launch_tags
from .instance_types import architecture, known
from .moto import Subnet
from .placement import unknown
from .protocol import Ask, EC2Error
from .state import Image

USER_DATA_BYTES = 16384
TAGGED = ("instance", "volume", "spot-instances-request")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """A machine that can be launched."""

    pool: Pool
    subnet: Subnet
    image: Image
    groups: tuple[tuple[str, str], ...]
    public_key: str
    tags: Mapping[str, Mapping[str, str]]  # by kind of resource
    spec: Ask  # parameters of RunInstances, merged with the template
    max_usd: float | None


def merged(template: Mapping[str, Any], ask: Mapping[str, Any]) -> Ask:
    """Merge a template with a call's parameters. The call's values take precedence; the tags of both are used."""
    both = [*(template.get("TagSpecifications") or ()), *(ask.get("TagSpecifications") or ())]
    combined = Ask({**template, **ask, "TagSpecifications": both})
    for key in ("MetadataOptions", "Placement"):
        if template.get(key) and ask.get(key):
            combined[key] = {**template[key], **ask[key]}
    return combined


def launch_spec_of(
    call: CloudCall,
    spec: Ask,
    subnet: Subnet,
    market: Market,
    *,
    type_name: str | None = None,
    max_usd: float | None = None,
) -> LaunchSpec:
    """Resolve and check a launch.

    Raises:
        EC2Error: A resource does not exist, or is not compatible.
    """
    region = call.region
    pool = Pool(str(type_name or spec.get("InstanceType") or "m1.small"), subnet.zone, market)
    kind = known(region.state.behaviour.types, region.name, pool.type)
    image = _image(call, spec, kind)
    _check_user_data(spec.get("UserData") or "")
    _check_interfaces(spec, kind)
    _check_placement(call, spec, pool, kind)
    profile, key_name = spec.get("IamInstanceProfile"), spec.get("KeyName")
    if profile:
        region.state.moto.check_profile(profile.get("Name"), profile.get("Arn"))
    tags = {kind: launch_tags(spec, kind) for kind in TAGGED}
    if market == "on-demand" and tags["spot-instances-request"]:
        words = "You cannot specify tags for spot-instances-request when you do not request Spot Instances."
        raise EC2Error("InvalidParameterCombination", words)
    return LaunchSpec(
        pool=pool,
        subnet=subnet,
        image=image,
        groups=_groups(call, spec, subnet),
        public_key=region.state.moto.public_key(region.name, key_name) if key_name else "",
        tags=tags,
        spec=spec,
        max_usd=max_usd,
    )


def subnets(call: CloudCall, spec: Ask) -> list[Subnet]:
    """Return the subnets for the launch: the named one, or the default ones in the allowed zones.

    Raises:
        EC2Error: The subnet does not exist, or there is no default VPC.
    """
    region = call.region
    interface = (spec.get("NetworkInterfaces") or [{}])[0]
    named = interface.get("SubnetId") or spec.get("SubnetId")
    if named:
        return [region.state.moto.subnet(region.name, named)]
    zone = (spec.get("Placement") or {}).get("AvailabilityZone")
    candidates = [each for each in region.state.moto.subnets(region.name) if each.default and zone in (None, each.zone)]
    if not candidates and zone and zone not in region.state.moto.zones(region.name):
        raise EC2Error("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    if not candidates:
        words = "No default VPC for this user. GroupName is only supported for EC2-Classic and default VPC."
        raise EC2Error("VPCIdNotSpecified", words)
    return sorted(candidates, key=lambda each: each.zone)


# --- helpers ----------------------------------------------------------------------------------------------------------


def _image(call: CloudCall, spec: Ask, kind: Mapping[str, Any]) -> Image:
    if not spec.get("ImageId"):
        raise EC2Error("MissingParameter", "The request must contain the parameter ImageId")
    image = images.find(call.region, spec["ImageId"])
    if image.architecture != architecture(kind):
        words = (
            f"The architecture '{architecture(kind)}' of the specified instance type does not match the architecture "
            f"'{image.architecture}' of the specified AMI. Specify an instance type and an AMI that have matching "
            "architectures, and try again."
        )
        raise EC2Error("InvalidParameterValue", words)
    return image


def _check_user_data(text: str) -> None:
    try:
        size = len(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        raise EC2Error("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.") from None
    if size > USER_DATA_BYTES:
        raise EC2Error("InvalidParameterValue", f"User data is limited to {USER_DATA_BYTES} bytes")


def _check_interfaces(spec: Ask, kind: Mapping[str, Any]) -> None:
    interfaces = spec.get("NetworkInterfaces") or ()
    if interfaces and (spec.get("SecurityGroupIds") or spec.get("SubnetId")):
        words = "Network interfaces and an instance-level subnet ID or security groups may not be specified together"
        raise EC2Error("InvalidParameterCombination", words)
    if len(interfaces) > 1 and any("AssociatePublicIpAddress" in each for each in interfaces):
        words = "The associatePublicIPAddress parameter cannot be specified when launching with multiple interfaces"
        raise EC2Error("InvalidParameterCombination", words)
    wants_efa = any(str(each.get("InterfaceType", "")).startswith("efa") for each in interfaces)
    if wants_efa and not kind["NetworkInfo"].get("EfaSupported"):
        words = f"The instance type '{kind['InstanceType']}' does not support Elastic Fabric Adapter (EFA)."
        raise EC2Error("InvalidParameterCombination", words)


def _check_placement(call: CloudCall, spec: Ask, pool: Pool, kind: Mapping[str, Any]) -> None:
    """Check a placement group: a cluster group is in one zone, the zone of its first machine."""
    name = (spec.get("Placement") or {}).get("GroupName")
    if not name:
        return
    group = call.region.placement_groups.get(name, call.ago)
    if group is None:
        raise unknown(name)
    if group.strategy not in kind["PlacementGroupInfo"]["SupportedStrategies"]:
        words = (
            f"{group.strategy.capitalize()} placement groups are not supported by the '{pool.type}' instance type. "
            "Specify a supported instance type or change the placement group strategy, and try again."
        )
        raise EC2Error("InvalidParameterCombination", words)
    zones = {each.zone for each in call.region.living() if each.placement_group == name}
    if group.strategy == "cluster" and zones - {pool.zone}:
        raise no_capacity(call.region, pool)


def _groups(call: CloudCall, spec: Ask, subnet: Subnet) -> tuple[tuple[str, str], ...]:
    region = call.region
    interface = (spec.get("NetworkInterfaces") or [{}])[0]
    named = interface.get("Groups") or spec.get("SecurityGroupIds") or ()
    region.check_young(named, call.ago)
    return region.state.moto.groups(region.name, named, subnet.vpc)
