"""Prepare the network of a pool's machines: a subnet per zone, and a security group that is open to its client."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

import anyio
import anyio.abc

from ...lazy_dataclass import dataclass
from ..cloud import labels as marks
from ..cloud.addresses import as_cidr, sources
from ..cloud.failures import CallRefused
from ..errors import BadRequest, NoCapacity, ProviderError
from ..resource_ownership import Claim, Others
from . import listing, tags
from .api import Api
from .errors import Failure, translate
from .firewall import OUT, Rule, rules_of, wanted

CHECKIP = "https://checkip.amazonaws.com"  # answers with the client's address
CHECKIP_S = 5.0
LAG_S = 30.0  # EC2 knows new resources by then: "Ensure idempotency / eventual consistency", EC2 Developer Guide
UNSHOWN_S = 10.0  # for so long, a group that was made and cannot be found counts as new, not as deleted
IN_USE_S = 120.0  # a terminated machine's network interface may use its group for a while
IN_USE = frozenset({"DependencyViolation", "InvalidGroup.InUse"})

Addressed = Literal["public", "private"]


@dataclass(frozen=True, slots=True)
class Network:
    """The prepared network. ``group`` is empty where the user gave groups, as the pool has none of its own then."""

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
    address: Addressed = "public",
    ssh_from: str | Sequence[str] = "auto",
    efa: bool = False,
) -> Network:
    """Find the subnets and make the pool's security group, tagged with ``labels`` from its creation.

    Without ``vpc`` and ``subnets``: the default VPC. Given subnets are used as they are; of a VPC's, with a public
    ``address``, only those that give public addresses. ``ssh_from``: CIDRs, or ``"auto"``: this computer's address as
    AWS sees it, or with private addresses the VPC's own. ``efa``: the group also lets all traffic among its members
    out, which EFA needs.

    ``claim``: decides which resources are the pool's. An existing group of the pool is updated, so that port 22 is open
    to this client and nobody else. EC2 may not know a new group everywhere for some seconds, so its users retry
    ``InvalidGroup.NotFound``.

    Raises:
        ValueError: ``ssh_from`` is no address.
        BadRequest: the network does not exist, does not fit, or this computer's address is not to be found out.
        NoCapacity: its subnets have no free addresses.
        ProviderError: as `Api.call` does.
    """
    named = () if ssh_from == "auto" else sources("AWS", ssh_from)
    place = await _vpc_subnets(api, vpc, subnets)
    chosen = choose(place, zones=zones, public=address == "public")
    if security_groups:
        await _check_groups(api, place.vpc, security_groups)
        return Network(place.vpc, chosen, "", ())
    if not named:
        named = place.cidrs if address == "private" else (await own_address(api.endpoint_url),)
    group, rules = await _group(api, claim, labels, place.vpc)
    await _permit(api, group, rules, wanted(group, named, efa=efa))
    return Network(place.vpc, chosen, group, named)


async def zones(
    api: Api, *, vpc: str | None, subnets: Collection[str] | None, zones: Collection[str] | None, public: bool
) -> frozenset[str]:
    """Return the zones that `prepare` would use. Nothing is made.

    Raises:
        ProviderError: there are none, or EC2 did not answer.
    """
    return frozenset(choose(await _vpc_subnets(api, vpc, subnets), zones=zones, public=public))


async def remove(
    api: Api, what: Claim | Others, *, known: Iterable[str] = (), timeout_s: float = IN_USE_S
) -> list[str]:
    """Delete a pool's groups, and the ``known`` ones, which EC2 may not show yet; return those that were deleted.

    Raises:
        Refused: one is still in use after ``timeout_s``.
        ProviderError: as `Api.call` does.
    """
    groups = await listing.security_groups(api, what.pool)
    lags = dict.fromkeys(known, UNSHOWN_S) | {group.id: 0.0 for group in groups if what.has(group)}
    deadline = anyio.current_time() + timeout_s
    return [group for group in sorted(lags) if await _delete(api, group, deadline, lag_s=lags[group])]


async def own_address(endpoint_url: str | None = None) -> str:
    """Find out this computer's public address as AWS sees it, as a CIDR.

    For another cloud (``endpoint_url``), the local address from which that cloud is reached.

    Raises:
        BadRequest: the address cannot be found out.
    """
    host = urlsplit(endpoint_url or "").hostname
    try:
        if host and not host.endswith((".amazonaws.com", ".amazonaws.com.cn", ".aws")):
            async with await anyio.create_connected_udp_socket(host, 9) as there:  # sends nothing
                return as_cidr(there.extra(anyio.abc.SocketAttribute.local_address)[0])  # noqa: S610 (no Django)
        return as_cidr(await _asked(CHECKIP))
    except (OSError, TimeoutError, ValueError) as error:
        raise BadRequest(
            f"this computer's public address could not be learnt from {host or CHECKIP} "
            f"({error or type(error).__name__}): give AWS(ssh_from='203.0.113.7/32'), with its own"
        ) from None


# --- subnets ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class VpcSubnets:
    """A VPC, and those of its subnets that may be used."""

    vpc: str
    cidrs: tuple[str, ...]
    subnets: Sequence[Mapping[str, Any]]  # as DescribeSubnets gives them
    given: bool  # whether the user named the subnets


async def _vpc_subnets(api: Api, vpc: str | None, subnets: Collection[str] | None) -> VpcSubnets:
    found: list[dict[str, Any]] = []
    if subnets is not None:
        found = (await api.call("describe_subnets", SubnetIds=sorted(subnets)))["Subnets"]
        homes = sorted({subnet["VpcId"] for subnet in found})
        if len(homes) != 1 or vpc not in {None, *homes}:
            raise BadRequest(f"the subnets are of {' and '.join(homes)}: give those of one VPC, and no other VPC")
        vpc = homes[0]
    if vpc is None:
        vpcs = (await api.call("describe_vpcs", Filters=[_filter("is-default", "true")]))["Vpcs"]
    else:
        vpcs = (await api.call("describe_vpcs", VpcIds=[vpc]))["Vpcs"]
    if not vpcs:
        raise translate(Failure(code="DefaultVpcDoesNotExist", region=api.region))
    home = vpcs[0]["VpcId"]
    if subnets is None:
        found = await api.pages("describe_subnets", "Subnets", Filters=[_filter("vpc-id", home)])
    return VpcSubnets(home, _cidrs(vpcs[0]), found, given=subnets is not None)


def choose(place: VpcSubnets, *, zones: Collection[str] | None, public: bool) -> dict[str, str]:
    """Choose the subnet for each zone: the one with the most free addresses.

    Raises:
        BadRequest: there is none, or none in one of the ``zones``.
        NoCapacity: all are full.
    """
    usable = [each for each in place.subnets if place.given or _is_usable(each, public=public)]
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
    roomy.sort(key=lambda each: (each["AvailabilityZone"], _free(each), each["SubnetId"]))  # the last of a zone wins
    return {each["AvailabilityZone"]: each["SubnetId"] for each in roomy}


def _is_usable(subnet: Mapping[str, Any], *, public: bool) -> bool:
    """Return whether a subnet may be used unasked. Outposts are a customer's own hardware, used only if named."""
    ready = subnet.get("State", "available") == "available" and not subnet.get("OutpostArn")
    return ready and not subnet.get("Ipv6Native") and (not public or bool(subnet.get("MapPublicIpOnLaunch")))


def _free(subnet: Mapping[str, Any]) -> int:
    return int(subnet.get("AvailableIpAddressCount", 1))


def _cidrs(vpc: Mapping[str, Any]) -> tuple[str, ...]:
    blocks = [each["CidrBlock"] for each in vpc.get("CidrBlockAssociationSet", ())]
    return tuple(dict.fromkeys([vpc["CidrBlock"], *blocks]))


# --- the group --------------------------------------------------------------------------------------------------------


async def _group(api: Api, claim: Claim, labels: Mapping[str, str], vpc: str) -> tuple[str, set[Rule]]:
    """The pool's own group and its rules. It is created first and looked for only if it exists, as it rarely does."""
    name = marks.name_of(claim.pool)
    try:
        made = await api.call(
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
        return made["GroupId"], set(OUT)
    there = await _named(api, name, vpc)
    if not claim.has(tags.thing(there["GroupId"], there)):
        raise BadRequest(
            f"{vpc} has a security group {there['GroupName']!r} ({there['GroupId']}) that is not of this pool: "
            "delete it, or give the pool another name"
        )
    return there["GroupId"], rules_of(there)


async def _named(api: Api, name: str, vpc: str) -> dict[str, Any]:
    """Find the security group ``name``. EC2 has said that it exists, but may not show it everywhere yet."""
    deadline, pauses = anyio.current_time() + LAG_S, _Pauses()
    while True:
        filters = [_filter("group-name", name), _filter("vpc-id", vpc)]
        groups = await api.pages("describe_security_groups", "SecurityGroups", Filters=filters)
        if groups:
            return groups[0]
        if anyio.current_time() >= deadline:
            raise CallRefused(f"EC2 has a security group {name!r} and does not show it", code="InvalidGroup.Duplicate")
        await pauses.next()


async def _permit(api: Api, group: str, have: set[Rule], want: set[Rule]) -> None:
    """Add missing rules, and remove outdated ones for port 22."""
    for direction in ("ingress", "egress"):
        missing = sorted(rule for rule in want - have if rule.direction == direction)
        if missing:
            await _authorize(api, group, direction, missing)
    stale = sorted(rule for rule in have - want if rule.is_door)
    if stale:
        await api.call("revoke_security_group_ingress", lag_s=LAG_S, GroupId=group, IpPermissions=_said(stale))


async def _authorize(api: Api, group: str, direction: str, rules: Sequence[Rule]) -> None:
    """Add rules in one call. If one of them exists, after a lost answer, EC2 refuses all: then one by one."""
    try:
        await api.call(f"authorize_security_group_{direction}", lag_s=LAG_S, GroupId=group, IpPermissions=_said(rules))
    except ProviderError as error:
        if error.code != "InvalidPermission.Duplicate":
            raise
        if len(rules) > 1:
            for rule in rules:
                await _authorize(api, group, direction, [rule])


async def _delete(api: Api, group: str, deadline: float, *, lag_s: float) -> bool:
    """Delete a group; False where it did not exist."""
    pauses = _Pauses()
    while True:
        try:
            await api.call("delete_security_group", lag_s=lag_s, GroupId=group)
        except ProviderError as error:
            if error.code in {"InvalidGroup.NotFound", "InvalidGroupId.NotFound"}:
                return False
            if error.code not in IN_USE:
                raise
            if anyio.current_time() >= deadline:
                _give_up(group, error)
        else:
            return True
        await pauses.next()


def _give_up(group: str, error: ProviderError) -> NoReturn:
    told = f"something uses the security group {group} still: 'outrider gc' deletes it when that is gone"
    raise CallRefused(told, retry_after_s=IN_USE_S, code=error.code) from error


async def _check_groups(api: Api, vpc: str, groups: Collection[str]) -> None:
    found = (await api.call("describe_security_groups", GroupIds=sorted(groups)))["SecurityGroups"]
    strangers = sorted(each["GroupId"] for each in found if each["VpcId"] != vpc)
    if strangers:
        raise BadRequest(f"the security groups {', '.join(strangers)} are not of {vpc}, where the machines would be")


# --- small ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pauses:
    """Pauses between requests: half a second, then longer, five seconds at most."""

    seconds: float = field(default=0.5)

    async def next(self) -> None:
        await anyio.sleep(self.seconds)
        self.seconds = min(5.0, 1.5 * self.seconds)


async def _asked(url: str) -> str:
    """The text at a URL, at most 100 bytes of it."""
    import aiohttp

    with anyio.fail_after(CHECKIP_S):
        try:
            async with aiohttp.ClientSession(trust_env=True) as session, session.get(url) as answer:
                answer.raise_for_status()
                return (await answer.content.read(100)).decode("ascii", "replace")
        except aiohttp.ClientError as error:
            raise OSError(str(error)) from error


def _filter(name: str, value: str) -> dict[str, Any]:
    return {"Name": name, "Values": [value]}


def _said(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    return [rule.permission() for rule in rules]
