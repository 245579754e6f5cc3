"""List a region's resources: those with Outrider's tags, and machines known to be a pool's. Judges nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...lazy_dataclass import dataclass
from ..base import MachineId
from ..cloud.instance_inventory import InstanceView
from ..cloud.labels import LAUNCH
from ..cloud.single_flight import side_by_side
from ..resource_ownership import Claim, Others, Thing
from ..survey import FoundMachine
from . import tags
from .api import Api

VALUES = 200  # values that a filter takes: "DescribeInstances", EC2 API Reference


@dataclass(frozen=True, slots=True)
class Survey:
    """All resources of all pools in a region."""

    machines: tuple[FoundMachine, ...] = ()  # without terminated ones
    others: tuple[Thing, ...] = ()  # security groups, launch templates, placement groups: they cost nothing


async def survey(api: Api, known: Sequence[str] = ()) -> Survey:
    """List everything with a pool's tag in this region, and the ``known`` machines, whose tags may have been removed.

    Raises:
        ProviderError: EC2 did not answer, or refused.
    """
    any_pool = tags.of_any_pool()
    found: list[list[Thing]] = [[], [], []]
    machines: list[dict[str, Any]] = []

    async def look() -> None:
        machines.extend(await _instances(api, any_pool, known))

    async def look_for(place: int, operation: str, key: str, name: str) -> None:
        found[place] = await _things(api, operation, key, name, any_pool)

    kinds = enumerate((_GROUPS, _TEMPLATES, _PLACEMENTS))
    await side_by_side([look, *(partial(look_for, place, *kind) for place, kind in kinds)])
    living = [_machine(each) for each in machines if each["State"]["Name"] != "terminated"]
    return Survey(tuple(living), tuple(each for some in found for each in some))


async def instances(api: Api, pool: str, *, also: Collection[str] = ()) -> list[dict[str, Any]]:
    """The instances with the pool's tag, as DescribeInstances shows them.

    Includes those of ``also``, by id, whose tags are not set yet or have been removed.
    """
    return await _instances(api, tags.of(pool), also)


async def security_groups(api: Api, pool: str) -> list[Thing]:
    return await _things(api, *_GROUPS, tags.of(pool))


async def templates(api: Api, pool: str) -> list[Thing]:
    return await _things(api, *_TEMPLATES, tags.of(pool))


async def placement_groups(api: Api, pool: str) -> list[Thing]:
    return await _things(api, *_PLACEMENTS, tags.of(pool))


# --- one request ------------------------------------------------------------------------------------------------------

# (operation, key of the list in the answer, key of the name that the journal uses)
_GROUPS = ("describe_security_groups", "SecurityGroups", "GroupId")
_TEMPLATES = ("describe_launch_templates", "LaunchTemplates", "LaunchTemplateName")
_PLACEMENTS = ("describe_placement_groups", "PlacementGroups", "GroupName")


async def _things(api: Api, operation: str, key: str, name: str, which: dict[str, Any]) -> list[Thing]:
    return [tags.thing(each[name], each) for each in await api.pages(operation, key, Filters=[which])]


async def _instances(api: Api, which: dict[str, Any], also: Collection[str]) -> list[dict[str, Any]]:
    found = await _described(api, which)
    shown = {instance["InstanceId"] for instance in found}
    hidden = sorted(set(also) - shown)
    for start in range(0, len(hidden), VALUES):
        found += await _described(api, {"Name": "instance-id", "Values": hidden[start : start + VALUES]})
    return found


async def _described(api: Api, which: dict[str, Any]) -> list[dict[str, Any]]:
    reservations = await api.pages("describe_instances", "Reservations", Filters=[which])
    return [instance for reservation in reservations for instance in reservation["Instances"]]


def views_of(instances: Iterable[Mapping[str, Any]], of: Claim | Others | None = None) -> list[InstanceView]:
    """The sightings in a describe call's answer that belong to ``of``; None: all."""
    return [
        view_of(instance)
        for instance in instances
        if of is None or of.has(tags.thing(instance["InstanceId"], instance))
    ]


def view_of(instance: Mapping[str, Any]) -> InstanceView:
    """The sighting of an instance as DescribeInstances shows it."""
    reason = instance.get("StateReason") or {}
    return InstanceView(
        id=MachineId(instance["InstanceId"]),
        state=instance["State"]["Name"],
        public=instance.get("PublicIpAddress") or "",
        private=instance.get("PrivateIpAddress") or "",
        reason=reason.get("Code") or "",
        message=reason.get("Message") or "",
        launch=tags.told(instance).get(LAUNCH, ""),
    )


def change(instance: Mapping[str, Any]) -> InstanceView:
    """The sighting of an instance in TerminateInstances' answer."""
    return InstanceView(MachineId(instance["InstanceId"]), instance["CurrentState"]["Name"])


def _machine(instance: dict[str, Any]) -> FoundMachine:
    what = tags.thing(instance["InstanceId"], instance)
    return FoundMachine(
        what.id,
        instance["InstanceType"],
        instance.get("InstanceLifecycle") or "on-demand",
        (instance.get("Placement") or {}).get("AvailabilityZone", ""),
        instance["State"]["Name"],
        instance["LaunchTime"].timestamp(),
        instance.get("PublicIpAddress") or instance.get("PrivateIpAddress") or "",
        pool=what.pool,
        owner=what.owner,
        launch=what.launch,
    )
