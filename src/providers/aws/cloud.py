"""EC2 in one region: `EC2Cloud` finds and ends machines, and `AWSSurveyor` does so for `outrider ps` and `gc`.

`EC2Cloud` implements `providers.cloud.port.Cloud`. `survey` and `instances` list a region's resources. Leftovers are
the resources besides machines that a pool creates and that cost nothing: launch templates, placement groups and
security groups.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from ...lazy_dataclass import dataclass
from ..base import MachineId
from ..cloud import teardown
from ..cloud.inventory import InstanceView, ListedMachine
from ..cloud.labels import POOL
from ..cloud.port import Leftover
from ..cloud.surveyor import CloudSurveyor
from ..errors import ProviderError
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Claim, Others, Thing
from ..shared.side_by_side import all_of
from ..survey import FoundMachine
from . import tags
from .api import Api
from .catalogue import VENDOR
from .tags import batches, where


def place_of(api: Api) -> dict[str, str]:
    """Return where a pool's machines are (region, endpoint URL and profile), as the journal stores it."""
    place = {"region": api.region, "endpoint_url": api.endpoint_url, "profile": api.profile}
    return {key: value for key, value in place.items() if value}


class EC2Cloud:
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 500  # "TerminateInstances", EC2 API Reference: at most 1000; smaller calls are faster

    def __init__(self, api: Api) -> None:
        self.api, self.leftovers = api, leftovers(api)

    @property
    def place(self) -> Mapping[str, str]:
        return place_of(self.api)

    def where(self, place: Mapping[str, str]) -> str:
        return " ".join(filter(None, (place.get("region"), place.get("endpoint_url"))))

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        return views_of(await instances(self.api, tags.of(pool), also=also), of)

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        answer = await self.api.call("terminate_instances", InstanceIds=list(machines))
        ended = answer.get("TerminatingInstances") or ()
        return [InstanceView(MachineId(each["InstanceId"]), each["CurrentState"]["Name"]) for each in ended]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code.startswith("InvalidInstanceID")


# --- lists ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Survey:
    """All resources of all pools in a region."""

    machines: tuple[FoundMachine, ...] = ()  # without terminated machines
    others: tuple[Thing, ...] = ()  # security groups, launch templates, placement groups: they cost nothing


async def survey(api: Api, known: Sequence[str] = ()) -> Survey:
    """List everything with a pool's tag in this region, and the ``known`` machines, whose tags may have been removed.

    Raises:
        ProviderError: EC2 did not respond, or refused.
    """
    any_pool = where("tag-key", POOL)
    machines, others = await all_of(partial(instances, api, any_pool, also=known), partial(all_shown, api, any_pool))
    listed = [each.summary for each in map(read, machines) if each.state != "terminated"]
    return Survey(tuple(listed), tuple(others))


async def instances(api: Api, which: dict[str, Any], *, also: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the instances that a filter selects, as DescribeInstances shows them.

    The result includes the instances in ``also``, by id, whose tags are not set yet or have been removed.
    """
    described = await _described(api, which)
    shown = {instance["InstanceId"] for instance in described}
    for some in batches(sorted(set(also) - shown)):
        described += await _described(api, where("instance-id", *some))
    return described


async def _described(api: Api, which: dict[str, Any]) -> list[dict[str, Any]]:
    reservations = await api.pages("describe_instances", "Reservations", Filters=[which])
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def views_of(instances: Iterable[Mapping[str, Any]], of: Claim | Others | None = None) -> list[InstanceView]:
    """Return an `InstanceView` for each instance that belongs to the claim ``of``; if ``of`` is None, for every one."""
    return [each.view for each in map(read, instances) if of is None or of.has(each.whose)]


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert an instance in the answer of DescribeInstances to a `ListedMachine`."""
    reason, state, launched = instance.get("StateReason") or {}, instance["State"]["Name"], instance.get("LaunchTime")
    return ListedMachine(
        tags.thing(instance["InstanceId"], instance),
        state,
        status=state,
        kind=instance.get("InstanceType", ""),
        zone=(instance.get("Placement") or {}).get("AvailabilityZone", ""),
        market=instance.get("InstanceLifecycle") or "on-demand",
        launched_at=launched and launched.timestamp(),
        public=instance.get("PublicIpAddress") or "",
        private=instance.get("PrivateIpAddress") or "",
        reason=reason.get("Code") or "",
        message=reason.get("Message") or "",
    )


# --- resources besides machines ---------------------------------------------------------------------------------------


IN_USE_S = 120.0  # seconds for which resources of a terminated machine stay in use


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of resources. ``describe``, ``delete``: EC2's operations that list and delete such resources.

    ``key``: the key of the list in the answer of ``describe``. ``id``: the field whose value is the resource's name in
    the journal. ``unshown_s``: seconds for which a deletion is retried if EC2 does not know the resource, because a new
    one may not be known everywhere yet.
    """

    name: str
    describe: str
    key: str
    id: str
    delete: str
    has_machines: bool = False
    unshown_s: float = 0.0


TEMPLATES = Kind(
    name="launch-template",
    describe="describe_launch_templates",
    key="LaunchTemplates",
    id="LaunchTemplateName",
    delete="delete_launch_template",
)
PLACEMENT_GROUPS = Kind(
    name="placement-group",
    describe="describe_placement_groups",
    key="PlacementGroups",
    id="GroupName",
    delete="delete_placement_group",
    has_machines=True,
)
SECURITY_GROUPS = Kind(
    name="security-group",
    describe="describe_security_groups",
    key="SecurityGroups",
    id="GroupId",
    delete="delete_security_group",
    has_machines=True,
    unshown_s=10.0,
)
KINDS = (TEMPLATES, PLACEMENT_GROUPS, SECURITY_GROUPS)  # in the order of their removal


def leftovers(api: Api) -> Sequence[Leftover]:
    return [
        teardown.leftover(
            kind.name,
            shown=partial(shown_of, api, kind),
            delete=partial(_delete, api, kind),
            is_unknown=lambda error: "NotFound" in error.code or error.code.endswith(".Unknown"),
            is_used=lambda error: error.code == "DependencyViolation" or error.code.endswith(".InUse"),
            used_s=IN_USE_S,
            has_machines=kind.has_machines,
        )
        for kind in KINDS
    ]


async def shown(api: Api, kind: Kind, which: dict[str, Any]) -> list[Thing]:
    """List the resources of a kind. ``which``: a filter."""
    return [tags.thing(each[kind.id], each) for each in await api.pages(kind.describe, kind.key, Filters=[which])]


async def all_shown(api: Api, which: dict[str, Any]) -> list[Thing]:
    """List the resources of all kinds. ``which``: a filter."""
    return [each for things in await all_of(*(partial(shown, api, kind, which) for kind in KINDS)) for each in things]


async def shown_of(api: Api, kind: Kind, pool: str) -> list[Thing]:
    """List the resources of a kind with the pool's tag."""
    return await shown(api, kind, tags.of(pool))


async def _delete(api: Api, kind: Kind, name: str) -> None:
    which: dict[str, Any] = {kind.id: name}
    await api.call(kind.delete, lag_s=kind.unshown_s, **which)


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class AWSSurveyor(CloudSurveyor["EC2Cloud"]):
    """Implements `survey.Surveyor`, which finds and ends machines for `outrider ps` and `outrider gc`.

    A `Place` has a region, and optionally an endpoint_url and a profile.
    """

    provider, mark = "aws", "region"

    @asynccontextmanager
    async def reach(self, place: Place) -> AsyncIterator[EC2Cloud]:
        from .api import Api

        region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
        async with Api.open(region=region, endpoint_url=endpoint_url, profile=profile) as api:
            yield EC2Cloud(api)

    async def find(self, cloud: EC2Cloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:

        answer = await survey(cloud.api, known)
        prices = await _prices(cloud.api, answer.machines)
        machines = [
            replace(each, hourly_usd=prices.get((each.kind, each.zone if each.market == "spot" else "")))
            for each in answer.machines
        ]
        return machines, answer.others

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all regions that can be reached with the credentials for ``place``, each as a `Place`."""
        async with self.reach(place) as cloud:
            answer = await cloud.api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


async def _prices(api: Api, machines: Sequence[FoundMachine]) -> dict[tuple[str, str], float]:
    """Return USD per hour by (type, zone) for spot and (type, "") on demand. Empty if prices are not available."""
    from .catalogue import on_demand_prices, spot_prices

    prices: dict[tuple[str, str], float] = {}
    with suppress(ProviderError):
        on_demand = sorted({machine.kind for machine in machines if machine.market != "spot"})
        prices |= {(kind, ""): usd for kind, usd in (await on_demand_prices(api, on_demand)).items()}
        prices |= await spot_prices(api, sorted({machine.kind for machine in machines if machine.market == "spot"}))
    return prices
