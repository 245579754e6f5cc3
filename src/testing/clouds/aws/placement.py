"""Placement groups, which moto does not implement."""

from __future__ import annotations

from .call import CloudCall
from .filters import TAGS, Facts, chosen, launch_tags, tag_list
from .protocol import Answer, EC2Error
from .state import PlacementGroup


def create_placement_group(call: CloudCall) -> Answer:
    region, name = call.region, call.ask["GroupName"]
    if region.placement_groups.get(name) is not None:
        raise EC2Error("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    group = PlacementGroup(
        id=region.state.new_id("pg"),
        name=name,
        strategy=call.ask.get("Strategy", "cluster"),
        tags=launch_tags(call.ask, "placement-group"),
    )
    region.placement_groups.put(name, group)
    return {"PlacementGroup": _rendered(group)}


def delete_placement_group(call: CloudCall) -> Answer:
    region, name = call.region, call.ask["GroupName"]
    if region.placement_groups.get(name, call.ago) is None:
        raise unknown(name)
    if any(each.placement_group == name and each.state != "terminated" for each in region.instances.all()):
        raise EC2Error("InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted.")
    region.placement_groups.put(name, None)
    return {}


def describe_placement_groups(call: CloudCall) -> Answer:
    groups = call.region.placement_groups.all(call.ago)
    for name in call.ask.get("GroupNames") or ():
        if name not in [each.name for each in groups]:
            raise unknown(name)
    for key, attribute in (("GroupNames", "name"), ("GroupIds", "id")):
        wanted = call.ask.get(key)
        groups = [each for each in groups if not wanted or getattr(each, attribute) in wanted]
    fitting = chosen(groups, call.ask.get("Filters"), _FACTS, TAGS)
    return {"PlacementGroups": [_rendered(each) for each in fitting]}


def unknown(name: str) -> EC2Error:
    return EC2Error("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")


def _rendered(group: PlacementGroup) -> Answer:
    return {
        "GroupName": group.name,
        "GroupId": group.id,
        "State": "available",
        "Strategy": group.strategy,
        "Tags": tag_list(group.tags),
    }


_FACTS: Facts[PlacementGroup] = {
    "group-name": lambda it: [it.name],
    "strategy": lambda it: [it.strategy],
    "state": lambda _: ["available"],
}

ACTIONS = {
    "CreatePlacementGroup": create_placement_group,
    "DeletePlacementGroup": delete_placement_group,
    "DescribePlacementGroups": describe_placement_groups,
}
