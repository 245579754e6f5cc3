"""Subnets and security groups: what is chosen, what is opened to whom, and what a lagging EC2 does to it."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import anyio
import pytest
import trio.testing
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws import cloud as leftovers
from outrider.providers.aws import network, tags
from outrider.providers.aws.api import Api, Credentials
from outrider.providers.aws.errors import Failure, translate
from outrider.providers.aws.network import OUT, Network, Rule, VpcSubnets, choose, rules_of, wanted
from outrider.providers.aws.network import _own_address as own_address
from outrider.providers.cloud import addresses, labels
from outrider.providers.cloud import addresses as own_addresses
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.errors import BadRequest, NoCapacity, ProviderError
from outrider.providers.shared.resource_ownership import Claim
from outrider.testing import EC2 as WholeEC2  # noqa: N811

sources = partial(addresses.sources, "AWS")
pytestmark = pytest.mark.anyio

VPC = {"VpcId": "vpc-1", "CidrBlock": "172.31.0.0/16", "CidrBlockAssociationSet": [{"CidrBlock": "172.31.0.0/16"}]}
CLIENT = "203.0.113.7/32"


def subnet(name: str, zone: str, **facts: object) -> dict[str, Any]:
    usual = {"VpcId": "vpc-1", "State": "available", "MapPublicIpOnLaunch": True, "AvailableIpAddressCount": 100}
    return {"SubnetId": name, "AvailabilityZone": zone, **usual, **facts}


async def remove(api: object, what: Claim, known: Sequence[str] = ()) -> list[str]:
    """Delete a pool's groups as its teardown does; return those that were deleted."""
    (groups,) = (each for each in leftovers.leftovers(cast("Api", api)) if each.kind == "security-group")
    removed = await groups.remove(what, known)
    for error in removed.errors:
        raise error
    return list(removed.gone)


class EC2:
    """Networks as EC2 keeps them: what was made is known everywhere only after ``lag_s``."""

    region, endpoint_url, profile = "us-east-1", None, None

    def __init__(self) -> None:
        self.lag_s = 0.0
        self.vpcs: list[dict[str, Any]] = [VPC]
        self.subnets = [subnet("subnet-a", "us-east-1a"), subnet("subnet-b", "us-east-1b")]
        self.groups: dict[str, dict[str, Any]] = {}
        self.made_at: dict[str, float] = {}
        self.in_use: dict[str, float] = {}  # until when
        self.calls: list[str] = []
        self.lost = 0  # answers of create calls

    async def call(
        self, operation: str, /, *, lag_s: float = 0, idempotent: bool = False, **asked: Any
    ) -> dict[str, Any]:
        self.calls.append(operation)
        group = asked.get("GroupId", "")
        known_in_s = self.made_at.get(group, 0.0) + self.lag_s - anyio.current_time()
        if group in self.groups and known_in_s > 0:
            if lag_s < known_in_s:
                raise refuse("InvalidGroup.NotFound")
            await anyio.sleep(known_in_s)
        if operation == "delete_security_group" and group not in self.groups:
            await anyio.sleep(lag_s)
        return getattr(self, operation)(**asked) or {}

    async def pages(self, operation: str, key: str, /, **asked: Any) -> list[dict[str, Any]]:
        return (await self.call(operation, **asked))[key]

    def describe_vpcs(self, VpcIds: list[str] | None = None, Filters: Any = None) -> dict[str, Any]:  # noqa: N803
        found = [vpc for vpc in self.vpcs if VpcIds is None or vpc["VpcId"] in VpcIds]
        if VpcIds and not found:
            raise refuse("InvalidVpcID.NotFound")
        return {"Vpcs": found}

    def describe_subnets(self, SubnetIds: list[str] | None = None, Filters: Any = None) -> dict[str, Any]:  # noqa: N803
        vpcs = Filters[0]["Values"] if Filters else [each["VpcId"] for each in self.subnets]
        wanted = [each for each in self.subnets if each["VpcId"] in vpcs]
        return {"Subnets": [each for each in wanted if SubnetIds is None or each["SubnetId"] in SubnetIds]}

    def create_security_group(self, **asked: Any) -> dict[str, Any]:
        if any((g["GroupName"], g["VpcId"]) == (asked["GroupName"], asked["VpcId"]) for g in self.groups.values()):
            raise refuse("InvalidGroup.Duplicate")
        name = f"sg-{len(self.groups) + 1}"
        self.made_at[name] = anyio.current_time()
        self.groups[name] = {
            "GroupId": name,
            "GroupName": asked["GroupName"],
            "VpcId": asked["VpcId"],
            "Tags": asked["TagSpecifications"][0]["Tags"],
            "IpPermissions": [],
            "IpPermissionsEgress": [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}],
        }
        if self.lost:  # and `Api`, told that it may, asks again
            self.lost -= 1
            return self.create_security_group(**asked)
        return {"GroupId": name}

    def describe_security_groups(self, GroupIds: Any = None, Filters: Any = ()) -> dict[str, Any]:  # noqa: N803
        now = anyio.current_time()
        found = [g for name, g in self.groups.items() if self.made_at[name] + self.lag_s <= now]
        for each in Filters:
            name, values = each["Name"], each["Values"]
            field = {"group-name": "GroupName", "vpc-id": "VpcId"}.get(name)
            found = [g for g in found if (g[field] if field else tags.tags_of(g).get(name[4:])) in values]
        return {"SecurityGroups": [g for g in found if GroupIds is None or g["GroupId"] in GroupIds]}

    def authorize_security_group_ingress(self, GroupId: str, IpPermissions: list[dict[str, Any]]) -> None:  # noqa: N803
        self._add(self.groups[GroupId]["IpPermissions"], IpPermissions)

    def authorize_security_group_egress(self, GroupId: str, IpPermissions: list[dict[str, Any]]) -> None:  # noqa: N803
        self._add(self.groups[GroupId]["IpPermissionsEgress"], IpPermissions)

    def revoke_security_group_ingress(self, GroupId: str, IpPermissions: list[dict[str, Any]]) -> None:  # noqa: N803
        for each in IpPermissions:
            self.groups[GroupId]["IpPermissions"].remove(each)

    def delete_security_group(self, GroupId: str) -> None:  # noqa: N803
        if GroupId not in self.groups:
            raise refuse("InvalidGroup.NotFound")
        if self.in_use.get(GroupId, 0.0) > anyio.current_time():
            raise refuse("DependencyViolation")
        del self.groups[GroupId]

    def _add(self, have: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
        if any(each in have for each in more):
            raise refuse("InvalidPermission.Duplicate")
        have += more

    @property
    def rules(self) -> set[Rule]:
        (group,) = self.groups.values()
        return rules_of(group)


def refuse(code: str) -> ProviderError:
    return translate(Failure(code=code, region="us-east-1"))


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


@pytest.fixture
def ec2() -> EC2:
    return EC2()


def claim(pool: str) -> Claim:
    return Claim(pool, hosts=frozenset({socket.gethostname()}))


async def prepare(ec2: EC2, pool: str = "p", **options: Any) -> Network:
    options = {"ssh_from": CLIENT, **options}
    return await network.prepare(cast("Api", ec2), claim(pool), labels.labels_of(pool, {}), **options)


# --- subnets ----------------------------------------------------------------------------------------------------------


def place(*subnets: Mapping[str, Any], are_chosen: bool = False) -> VpcSubnets:
    return VpcSubnets("vpc-1", ("172.31.0.0/16",), subnets, are_chosen)


def test_each_zone_has_its_roomiest_subnet() -> None:
    a, b = subnet("a", "z1", AvailableIpAddressCount=5), subnet("b", "z1", AvailableIpAddressCount=50)
    assert choose(place(a, b, subnet("c", "z2")), zones=None, public=True) == {"z1": "b", "z2": "c"}


@pytest.mark.parametrize("facts", [{"State": "pending"}, {"MapPublicIpOnLaunch": False}, {"OutpostArn": "arn:..."},
                                   {"Ipv6Native": True}])  # fmt: skip
def test_subnet_without_public_addresses_is_not_used(facts: dict[str, object]) -> None:
    assert choose(place(subnet("a", "z1", **facts), subnet("b", "z2")), zones=None, public=True) == {"z2": "b"}
    with pytest.raises(BadRequest, match=r"give AWS\(subnets="):
        choose(place(subnet("a", "z1", **facts)), zones=None, public=True)


def test_private_machines_need_no_public_subnet() -> None:
    assert choose(place(subnet("a", "z1", MapPublicIpOnLaunch=False)), zones=None, public=False) == {"z1": "a"}


def test_a_given_subnet_is_the_users_word() -> None:
    private = subnet("a", "z1", MapPublicIpOnLaunch=False)
    assert choose(place(private, are_chosen=True), zones=None, public=True) == {"z1": "a"}


def test_zones_are_chosen_among_those_there_are() -> None:
    both = place(subnet("a", "z1"), subnet("b", "z2"))
    assert choose(both, zones=["z2"], public=True) == {"z2": "b"}
    with pytest.raises(BadRequest, match="no subnet in z3, but in z1, z2"):
        choose(both, zones=["z2", "z3"], public=True)


def test_full_subnets_are_no_capacity() -> None:
    full = subnet("a", "z1", AvailableIpAddressCount=0)
    assert choose(place(full, subnet("b", "z2")), zones=None, public=True) == {"z2": "b"}
    with pytest.raises(NoCapacity, match="no free address"):
        choose(place(full), zones=None, public=True)


async def test_without_a_default_vpc_the_error_says_what_to_do(ec2: EC2) -> None:
    ec2.vpcs = []
    with pytest.raises(BadRequest, match="create-default-vpc") as caught:
        await prepare(ec2)
    assert caught.value.code == "DefaultVpcDoesNotExist"
    assert not ec2.groups


async def test_given_subnets_are_of_one_vpc(ec2: EC2) -> None:
    ec2.subnets.append(subnet("subnet-c", "us-east-1c", VpcId="vpc-2"))
    with pytest.raises(BadRequest, match="one VPC"):
        await prepare(ec2, subnets=["subnet-a", "subnet-c"])
    with pytest.raises(BadRequest, match="no other VPC"):
        await prepare(ec2, subnets=["subnet-a"], vpc="vpc-2")
    assert (await prepare(ec2, subnets=["subnet-a"])).subnets == {"us-east-1a": "subnet-a"}


# --- the group --------------------------------------------------------------------------------------------------------

cidrs = st.one_of(st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), st.just("10.1.2.3/8"))
rules = st.builds(Rule, st.sampled_from(["ingress", "egress"]), st.just("sg-1") | cidrs.map(lambda c: sources(c)[0]),
                  st.none() | st.integers(1, 65535))  # fmt: skip


@given(st.sets(rules, max_size=8))
def test_rules_are_read_as_they_are_said(said: set[Rule]) -> None:
    group = {
        "IpPermissions": [rule.permission() for rule in said if rule.direction == "ingress"],
        "IpPermissionsEgress": [rule.permission() for rule in said if rule.direction == "egress"],
    }
    assert rules_of(group) == said


@given(st.lists(cidrs, min_size=1, max_size=5), st.booleans())
def test_nothing_is_open_but_port_22_for_the_client(given_: list[str], efa: bool) -> None:
    said = wanted("sg-1", sources(given_), efa=efa)
    from_outside = {rule for rule in said if rule.direction == "ingress" and rule.peer != "sg-1"}
    assert {rule.port for rule in from_outside} == {22}
    assert {rule.peer for rule in from_outside} == set(sources(given_))
    assert (Rule("egress", "sg-1") in said) is efa


async def test_the_pools_group_is_tagged_as_it_is_made(ec2: EC2) -> None:
    made = await prepare(ec2)
    assert made == Network("vpc-1", {"us-east-1a": "subnet-a", "us-east-1b": "subnet-b"}, "sg-1", (CLIENT,))
    assert tags.tags_of(ec2.groups["sg-1"])[labels.POOL] == "p"
    assert ec2.rules == {Rule("ingress", "sg-1"), Rule("ingress", CLIENT, 22), *OUT}


async def test_efa_needs_its_own_rule_out(ec2: EC2) -> None:
    await prepare(ec2, efa=True)
    assert Rule("egress", "sg-1") in ec2.rules


async def test_preparing_twice_is_preparing_once(ec2: EC2) -> None:
    assert await prepare(ec2) == await prepare(ec2)
    assert len(ec2.groups) == 1


async def test_moved_client_replaces_the_rule_for_port_22(ec2: EC2) -> None:
    await prepare(ec2, efa=True)
    before = ec2.rules
    await prepare(ec2, ssh_from="198.51.100.1")
    assert ec2.rules == before - {Rule("ingress", CLIENT, 22)} | {Rule("ingress", "198.51.100.1/32", 22)}
    await prepare(ec2)
    assert ec2.rules == before


@pytest.mark.parametrize("lost", [0, 1])
async def test_an_ec2_that_lags_costs_only_time(ec2: EC2, lost: int) -> None:
    ec2.lag_s, ec2.lost = 8.0, lost
    await prepare(ec2)
    assert ec2.rules == {Rule("ingress", "sg-1"), Rule("ingress", CLIENT, 22), *OUT}
    assert anyio.current_time() < 30


async def test_a_rule_whose_answer_was_lost_is_not_in_the_way(ec2: EC2) -> None:
    await prepare(ec2)
    group = ec2.groups["sg-1"]
    group["IpPermissions"].pop()
    hidden, ec2.describe_security_groups = group["IpPermissions"][:], lambda **_: {"SecurityGroups": [  # type: ignore[method-assign]
        {**group, "IpPermissions": []}]}  # fmt: skip
    await prepare(ec2)
    assert len(hidden) == 1
    assert ec2.rules == {Rule("ingress", "sg-1"), Rule("ingress", CLIENT, 22), *OUT}


async def test_a_copy_of_its_group_is_left_alone_by_a_pool(ec2: EC2) -> None:
    await prepare(ec2)
    with pytest.raises(BadRequest, match="not of this pool"):
        await network.prepare(cast("Api", ec2), Claim("p", hosts=frozenset({"another"})), {}, ssh_from=CLIENT)
    assert await remove(ec2, Claim("p", hosts=frozenset({"another"}))) == []
    assert ec2.groups


async def test_anothers_group_of_that_name_is_left_alone(ec2: EC2) -> None:
    await prepare(ec2, pool="a b")
    before = ec2.rules
    with pytest.raises(BadRequest, match="not of this pool"):
        await prepare(ec2, pool="a-b", ssh_from="198.51.100.1")
    assert ec2.rules == before


async def test_the_users_groups_are_used_as_they_are(ec2: EC2) -> None:
    await prepare(ec2, pool="other")
    made = await prepare(ec2, security_groups=["sg-1"])
    assert made.group == ""
    assert len(ec2.groups) == 1
    ec2.groups["sg-1"]["VpcId"] = "vpc-2"
    with pytest.raises(BadRequest, match="sg-1 are not of vpc-1"):
        await prepare(ec2, security_groups=["sg-1"])


async def test_private_machines_are_open_to_their_vpc(ec2: EC2) -> None:
    made = await prepare(ec2, address="private", ssh_from="auto")
    assert made.ssh_from == ("172.31.0.0/16",)


async def test_public_machines_are_open_to_this_computer(ec2: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    async def asked(url: str) -> str:
        assert url == "https://checkip.amazonaws.com"
        return "203.0.113.7\n"

    monkeypatch.setattr(own_addresses, "_text_at", asked)
    assert (await prepare(ec2, ssh_from="auto")).ssh_from == (CLIENT,)


@pytest.mark.parametrize("said", ["<html>", "", OSError("no route"), TimeoutError()])
async def test_an_address_that_cannot_be_learnt_is_asked_for(
    ec2: EC2, monkeypatch: pytest.MonkeyPatch, said: str | Exception
) -> None:
    async def asked(url: str) -> str:
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(own_addresses, "_text_at", asked)
    with pytest.raises(BadRequest, match=r"give AWS\(ssh_from='203.0.113.7/32'\)"):
        await prepare(ec2, ssh_from="auto")
    assert not ec2.groups


async def test_a_cloud_of_ones_own_sees_the_address_that_leads_to_it() -> None:
    assert await own_address("http://127.0.0.1:5000") == "127.0.0.1/32"


@pytest.fixture
async def checkip() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="203.0.113.7\n", status=int(request.path[1:]))

    app = web.Application()
    app.router.add_get("/{status}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_awss_word_on_ones_address(checkip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_addresses, "CHECKIP", f"{checkip}/200")
    assert await own_address(None) == CLIENT
    assert await own_address("https://ec2.us-east-1.amazonaws.com") == CLIENT
    monkeypatch.setattr(own_addresses, "CHECKIP", f"{checkip}/503")
    with pytest.raises(BadRequest, match="503"):
        await own_address(None)


# --- the end ----------------------------------------------------------------------------------------------------------


async def test_removing_waits_until_nothing_uses_the_group(ec2: EC2) -> None:
    await prepare(ec2)
    ec2.in_use["sg-1"] = anyio.current_time() + 60
    assert await remove(ec2, claim("p")) == ["sg-1"]
    assert not ec2.groups
    assert await remove(ec2, claim("p")) == []


async def test_removing_ends_at_its_deadline(ec2: EC2, monkeypatch: pytest.MonkeyPatch) -> None:
    await prepare(ec2)
    monkeypatch.setattr(leftovers, "IN_USE_S", 20.0)
    ec2.in_use["sg-1"] = anyio.current_time() + 1000
    with pytest.raises(CallRefused, match="outrider gc") as caught:
        await remove(ec2, claim("p"))
    assert caught.value.code == "DependencyViolation"
    assert 20 <= anyio.current_time() < 30


async def test_removing_leaves_others_alone(ec2: EC2) -> None:
    await prepare(ec2, pool="other")
    assert await remove(ec2, claim("p")) == []
    assert len(ec2.groups) == 1


async def test_a_group_that_ec2_does_not_show_yet_is_removed_by_its_id(ec2: EC2) -> None:
    await prepare(ec2)
    ec2.lag_s = 8
    assert await remove(ec2, claim("p"), known=["sg-1", "sg-gone"]) == ["sg-1"]
    assert not ec2.groups


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_test_cloud_takes_what_is_asked(cloud: WholeEC2) -> None:
    credentials = Credentials("AKIATEST", "secret")
    async with Api.open(region=cloud.region, endpoint_url=cloud.endpoint_url, credentials=credentials) as api:
        made = await network.prepare(api, claim("p"), labels.labels_of("p", {"team": "ü"}), efa=True)
        assert made.ssh_from == ("127.0.0.1/32",)
        moved = await network.prepare(
            api, claim("p"), labels.labels_of("p", {}), efa=True, ssh_from=["2001:db8::/32", "198.51.100.1"]
        )
        assert moved.group == made.group
        (group,) = (await api.call("describe_security_groups", GroupIds=[made.group]))["SecurityGroups"]
        assert rules_of(group) == wanted(made.group, moved.ssh_from, efa=True) | OUT
        assert tags.tags_of(group)["team"] == "ü"
        with pytest.raises(BadRequest, match="describe-vpcs"):
            await network.prepare(api, claim("q"), {}, vpc="vpc-12345678", ssh_from=CLIENT)
        with pytest.raises(BadRequest, match="describe-subnets"):
            await network.prepare(api, claim("q"), {}, subnets=["subnet-12345678"], ssh_from=CLIENT)
        assert await remove(api, claim("p")) == [made.group]
        assert await remove(api, claim("p")) == []
