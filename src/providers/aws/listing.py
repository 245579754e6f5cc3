"""Lists of a region's resources: those with Outrider's tags, and known machines. It does not decide on ownership."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ...lazy_dataclass import dataclass
from ..cloud.instance_inventory import InstanceView
from ..cloud.labels import POOL
from ..cloud.listed import ListedMachine
from ..resource_ownership import Claim, Others, Thing
from ..side_by_side import all_of
from ..survey import FoundMachine
from . import tags
from .api import Api
from .leftovers import all_shown
from .tags import batches, where


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
    """Return the views of instances that belong to ``of``; None: all instances."""
    return [each.view for each in map(read, instances) if of is None or of.has(each.whose)]


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert an instance from DescribeInstances."""
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
