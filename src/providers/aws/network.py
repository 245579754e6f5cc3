"""The network of a pool's machines: a subnet per zone, and a security group that is open to the pool's client."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

import anyio

from ...lazy_dataclass import dataclass
from ..cloud import labels as marks
from ..cloud import teardown
from ..cloud.addresses import own_address, sources
from ..cloud.calls import CallRefused
from ..errors import BadRequest, NoCapacity, ProviderError
from ..shared.resource_ownership import Claim
from . import tags
from .api import Api
from .errors import Failure, translate
from .tags import where

LAG_S = 30.0  # seconds until EC2 knows new resources: "Ensure idempotency / eventual consistency", EC2 Developer Guide

AWS_HOSTS = (".amazonaws.com", ".amazonaws.com.cn", ".aws")
SSH = 22
Direction = Literal["ingress", "egress"]


@dataclass(frozen=True, slots=True)
class Network:
    """A network that is ready for launches. ``group``: the pool's own security group; empty if the user gave groups."""

    vpc: str
    subnets: Mapping[str, str]  # by zone
    group: str
    ssh_from: tuple[str, ...]  # CIDRs that may reach port 22; empty: the user's groups decide


async def prepare(
    api: Api,
    claim: Claim,
    labels: Mapping[str, str],
    *,
    vpc: str | None = None,
    subnets: Collection[str] | None = None,
    zones: Collection[str] | None = None,
    security_groups: Collection[str] | None = None,
    address: Literal["public", "private"] = "public",
    ssh_from: str | Sequence[str] = "auto",
    efa: bool = False,
) -> Network:
    """Find the subnets and create the pool's security group, tagged with ``labels`` from its creation.

    Without ``vpc`` and ``subnets``, the default VPC is used. Subnets that the user names are used as they are.
    Otherwise, if ``address`` is "public", only the VPC's subnets that assign public addresses are used.

    ``ssh_from``: CIDRs, or ``"auto"``: this computer's address as AWS sees it, or with private addresses the VPC's own
    CIDRs. ``efa``: the group also allows all outgoing traffic among its members, which EFA needs.

    ``claim``: decides which resources are the pool's. An existing group of the pool is updated, so that port 22 is open
    only to this client. EC2 may not know a new group everywhere for some seconds, so calls that use the group retry on
    ``InvalidGroup.NotFound``.

    Raises:
        ValueError: ``ssh_from`` is not an address.
        BadRequest: The network does not exist or does not fit, or this computer's address cannot be determined.
        NoCapacity: The subnets have no free addresses.
        ProviderError: As in `Api.call`.
    """
    named = () if ssh_from == "auto" else sources("AWS", ssh_from)
    place = await _vpc_subnets(api, vpc, subnets)
    chosen = choose(place, zones=zones, public=address == "public")
    if security_groups:
        await _check_groups(api, place.vpc, security_groups)
        return Network(place.vpc, chosen, "", ())
    if not named:
        named = place.cidrs if address == "private" else (await _own_address(api.endpoint_url),)
    group, rules = await _group(api, claim, labels, place.vpc)
    await _permit(api, group, rules, wanted(group, named, efa=efa))
    return Network(place.vpc, chosen, group, named)


async def look(
    api: Api, vpc: str | None, subnets: Collection[str] | None, *, zones: Collection[str] | None, public: bool
) -> Network:
    """Return the network that `prepare` would use, without a group. Nothing is created.

    Raises:
        ProviderError: There is no such network, or EC2 did not respond.
    """
    place = await _vpc_subnets(api, vpc, subnets)
    return Network(place.vpc, choose(place, zones=zones, public=public), "", ())


async def _own_address(endpoint_url: str | None) -> str:
    """Return this computer's address as seen by AWS, or by another cloud with the interface of EC2."""
    host = urlsplit(endpoint_url or "").hostname or ""
    return await own_address("AWS", None if host.endswith(AWS_HOSTS) else endpoint_url)


# --- subnets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VpcSubnets:
    """A VPC and its usable subnets."""

    vpc: str
    cidrs: tuple[str, ...]
    subnets: Sequence[Mapping[str, Any]]  # in the form of DescribeSubnets
    are_chosen: bool  # whether the user named the subnets


async def _vpc_subnets(api: Api, vpc: str | None, subnets: Collection[str] | None) -> VpcSubnets:
    listed: list[dict[str, Any]] = []
    if subnets is not None:
        listed = (await api.call("describe_subnets", SubnetIds=sorted(subnets)))["Subnets"]
        homes = sorted({subnet["VpcId"] for subnet in listed})
        if len(homes) != 1 or vpc not in {None, *homes}:
            raise BadRequest(f"the subnets are of {' and '.join(homes)}: give those of one VPC, and no other VPC")
        vpc = homes[0]
    which: dict[str, Any] = {"Filters": [where("is-default", "true")]} if vpc is None else {"VpcIds": [vpc]}
    vpcs = (await api.call("describe_vpcs", **which))["Vpcs"]
    if not vpcs:
        raise translate(Failure(code="DefaultVpcDoesNotExist", region=api.region))
    home = vpcs[0]["VpcId"]
    if subnets is None:
        listed = await api.pages("describe_subnets", "Subnets", Filters=[where("vpc-id", home)])
    blocks = [vpcs[0], *vpcs[0].get("CidrBlockAssociationSet", ())]
    cidrs = tuple(dict.fromkeys(each["CidrBlock"] for each in blocks))
    return VpcSubnets(home, cidrs, listed, are_chosen=subnets is not None)


def choose(place: VpcSubnets, *, zones: Collection[str] | None, public: bool) -> dict[str, str]:
    """Choose the subnet for each zone: the one with the most free addresses.

    Raises:
        BadRequest: There is no subnet, or none in one of the ``zones``.
        NoCapacity: All subnets are full.
    """
    usable = [each for each in place.subnets if place.are_chosen or _is_usable(each, public=public)]
    if not usable:
        kind = "gives public addresses" if public and place.subnets else "can be used"
        raise BadRequest(
            f"no subnet of {place.vpc} {kind}: give AWS(subnets=[...])" + (" or address='private'" if public else "")
        )
    there = {each["AvailabilityZone"] for each in usable}
    missing = sorted(set(zones or ()) - there)
    if missing:
        raise BadRequest(
            f"{place.vpc} has no subnet in {', '.join(missing)}, but in {', '.join(sorted(there))}: "
            "make one there, or give other zones"
        )
    wanted_zones = there if zones is None else set(zones)
    roomy = [each for each in usable if each["AvailabilityZone"] in wanted_zones and _free(each) > 0]
    if not roomy:
        raise NoCapacity(f"the subnets of {place.vpc} in {', '.join(sorted(wanted_zones))} have no free address")
    # In the result, the last subnet of a zone replaces the others.
    roomy.sort(key=lambda each: (each["AvailabilityZone"], _free(each), each["SubnetId"]))
    return {each["AvailabilityZone"]: each["SubnetId"] for each in roomy}


def _is_usable(subnet: Mapping[str, Any], *, public: bool) -> bool:
    """Return whether a subnet may be used without being named. Outposts, the customer's own hardware, must be named."""
    ready = subnet.get("State", "available") == "available" and not subnet.get("OutpostArn")
    return ready and not subnet.get("Ipv6Native") and (not public or bool(subnet.get("MapPublicIpOnLaunch")))


def _free(subnet: Mapping[str, Any]) -> int:
    return int(subnet.get("AvailableIpAddressCount", 1))


# --- the group --------------------------------------------------------------------------------------------------------


async def _group(api: Api, claim: Claim, labels: Mapping[str, str], vpc: str) -> tuple[str, set[Rule]]:
    """Return the pool's own security group and its rules.

    First try to create the group, because it rarely exists yet. If EC2 reports that its name is taken, search for it.
    """
    name = marks.name_of(claim.pool)
    try:
        created = await api.call(
            "create_security_group",
            idempotent=True,  # names are unique in a VPC: a second group is refused
            GroupName=name,
            Description=f"The machines of the Outrider pool {name}",
            VpcId=vpc,
            TagSpecifications=[tags.specification("security-group", labels)],
        )
    except ProviderError as error:
        if error.code != "InvalidGroup.Duplicate":
            raise
    else:
        return created["GroupId"], set(OUT)
    there = await _named(api, name, vpc)
    if not claim.has(tags.thing(there["GroupId"], there)):
        raise BadRequest(
            f"{vpc} has a security group {there['GroupName']!r} ({there['GroupId']}) that is not of this pool: "
            "delete it, or give the pool another name"
        )
    return there["GroupId"], rules_of(there)


async def _named(api: Api, name: str, vpc: str) -> dict[str, Any]:
    """Find the security group ``name``. EC2 reported that it exists, but lists may lack it for some seconds."""
    deadline, pauses = anyio.current_time() + LAG_S, teardown.pauses()
    while True:
        filters = [where("group-name", name), where("vpc-id", vpc)]
        groups = await api.pages("describe_security_groups", "SecurityGroups", Filters=filters)
        if groups:
            return groups[0]
        if anyio.current_time() >= deadline:
            raise CallRefused(f"EC2 has a security group {name!r} and does not show it", code="InvalidGroup.Duplicate")
        await anyio.sleep(next(pauses))


async def _permit(api: Api, group: str, have: set[Rule], want: set[Rule]) -> None:
    """Add missing rules, and remove obsolete ones for port 22."""
    for direction in ("ingress", "egress"):
        missing = sorted(rule for rule in want - have if rule.direction == direction)
        if missing:
            await _authorize(api, group, direction, missing)
    stale = [rule.permission() for rule in sorted(rule for rule in have - want if rule.is_door)]
    if stale:
        await api.call("revoke_security_group_ingress", lag_s=LAG_S, GroupId=group, IpPermissions=stale)


async def _authorize(api: Api, group: str, direction: str, rules: Sequence[Rule]) -> None:
    """Add rules in one call. If EC2 refuses because one exists already (after a lost answer), add them one by one."""
    permissions = [rule.permission() for rule in rules]
    try:
        await api.call(f"authorize_security_group_{direction}", lag_s=LAG_S, GroupId=group, IpPermissions=permissions)
    except ProviderError as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
        if len(rules) > 1:
            for rule in rules:
                await _authorize(api, group, direction, [rule])


async def _check_groups(api: Api, vpc: str, groups: Collection[str]) -> None:
    described = (await api.call("describe_security_groups", GroupIds=sorted(groups)))["SecurityGroups"]
    strangers = sorted(each["GroupId"] for each in described if each["VpcId"] != vpc)
    if strangers:
        raise BadRequest(f"the security groups {', '.join(strangers)} are not of {vpc}, where the machines would be")


# --- rules of the group, without I/O ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """A rule of a security group. ``peer``: a CIDR, or the id of a security group. ``port``: None: all traffic."""

    direction: Direction
    peer: str
    port: int | None = None

    @property
    def is_door(self) -> bool:
        return self.direction == "ingress" and self.port == SSH and not self.peer.startswith("sg-")

    def permission(self) -> dict[str, Any]:
        """Return the rule in the form of EC2's calls."""
        protocol: dict[str, Any] = {"IpProtocol": "-1"}
        if self.port is not None:
            protocol = {"IpProtocol": "tcp", "FromPort": self.port, "ToPort": self.port}
        if self.peer.startswith("sg-"):
            return protocol | {"UserIdGroupPairs": [{"GroupId": self.peer}]}
        if ":" in self.peer:
            return protocol | {"Ipv6Ranges": [{"CidrIpv6": self.peer}]}
        return protocol | {"IpRanges": [{"CidrIp": self.peer}]}


OUT: frozenset[Rule] = frozenset({Rule("egress", "0.0.0.0/0")})  # the rule that EC2 puts into every new group


def wanted(group: str, ssh_from: Iterable[str], *, efa: bool) -> set[Rule]:
    """Return the rules of a pool's group.

    EFA is not IP, so a rule "to everywhere" does not cover it: it needs an egress rule to the group itself ("Get
    started with EFA", EC2 guide).
    """
    among = {Rule("ingress", group)} | ({Rule("egress", group)} if efa else set())
    return among | {Rule("ingress", cidr, SSH) for cidr in ssh_from}


def rules_of(group: Mapping[str, Any]) -> set[Rule]:
    """Parse the rules in an answer of DescribeSecurityGroups, of the kinds that a pool's group has."""
    rules: set[Rule] = set()
    directions: tuple[tuple[Direction, str], ...] = (
        ("ingress", "IpPermissions"),
        ("egress", "IpPermissionsEgress"),
    )
    for direction, key in directions:
        for permission in group.get(key, ()):
            one_port = permission.get("FromPort") == permission.get("ToPort") and permission["IpProtocol"] == "tcp"
            if not one_port and permission["IpProtocol"] != "-1":
                continue
            port = int(permission["FromPort"]) if permission["IpProtocol"] == "tcp" else None
            peers = [each["CidrIp"] for each in permission.get("IpRanges", ())]
            peers += [each["CidrIpv6"] for each in permission.get("Ipv6Ranges", ())]
            peers += [each["GroupId"] for each in permission.get("UserIdGroupPairs", ())]
            rules |= {Rule(direction, peer, port) for peer in peers}
    return rules
