"""Tags of resources that this cloud stores itself; moto stores those of other resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ..shared.versions import Versions
from .call import CloudCall
from .filters import Facts, chosen, page
from .protocol import Answer, EC2Error
from .state import Region

KINDS = {
    "i": "instance",
    "vol": "volume",
    "sir": "spot-instances-request",
    "lt": "launch-template",
    "pg": "placement-group",
}
UNKNOWN_ID_CODES = {
    "i": "InvalidInstanceID.NotFound",
    "vol": "InvalidVolume.NotFound",
    "sir": "InvalidSpotInstanceRequestID.NotFound",
    "lt": "InvalidLaunchTemplateId.NotFound",
    "pg": "InvalidPlacementGroup.Unknown",
}


def ours(resource: str) -> bool:
    return resource.partition("-")[0] in KINDS


def create_tags(call: CloudCall) -> Answer:
    new_tags = {tag["Key"]: tag.get("Value", "") for tag in call.ask["Tags"]}
    return _retagged(call, lambda tags: {**tags, **new_tags})


def delete_tags(call: CloudCall) -> Answer:
    """Delete tags. A tag given with a value is deleted only if it has that value; without names, all tags are
    deleted.
    """
    named = {tag["Key"]: tag.get("Value") for tag in call.ask.get("Tags") or ()}

    def without(tags: Mapping[str, str]) -> dict[str, str]:
        if not named:
            return {}
        return {key: value for key, value in tags.items() if key not in named or named[key] not in (None, value)}

    return _retagged(call, without)


def describe_tags(call: CloudCall) -> Answer:
    region = call.region
    listed = [
        _Tag(name, KINDS[prefix], key, value)
        for prefix, (kept, _) in _kept(region).items()
        for thing in kept.all(call.ago)
        for name, tags in [(thing.id, thing.tags)]
        for key, value in tags.items()
    ]
    listed += [_Tag(*each) for each in region.state.moto.tags(region.name)]
    shown, following = page(chosen(listed, call.ask.get("Filters"), _FACTS, lambda it: {it.key: it.value}), call.ask)
    tags = [{"ResourceId": it.of, "ResourceType": it.kind, "Key": it.key, "Value": it.value} for it in shown]
    return {"Tags": tags, "NextToken": following}


class _Tag(NamedTuple):
    of: str
    kind: str
    key: str
    value: str


_FACTS: Facts[_Tag] = {
    "key": lambda it: [it.key],
    "resource-id": lambda it: [it.of],
    "resource-type": lambda it: [it.kind],
    "value": lambda it: [it.value],
}


def _retagged(call: CloudCall, change: Callable[[Mapping[str, str]], dict[str, str]]) -> Answer:
    kept = _kept(call.region)
    things: list[tuple[Versions[Any], str, Any]] = []
    for name in call.ask["Resources"]:
        prefix = name.partition("-")[0]
        versions, key_of = kept[prefix]
        matches = [each for each in versions.all(call.ago) if each.id == name]
        if not matches:
            raise EC2Error(UNKNOWN_ID_CODES[prefix], f"The ID '{name}' does not exist")
        things.append((versions, key_of(matches[0]), matches[0]))
    for versions, key, _ in things:
        newest = versions.get(key)
        if newest is not None:
            versions.put(key, replace(newest, tags=change(newest.tags)))
    return {}


def _kept(region: Region) -> dict[str, tuple[Versions[Any], Callable[[Any], str]]]:
    return {
        "i": (region.instances, _id),
        "vol": (region.volumes, _id),
        "sir": (region.spot_requests, _id),
        "lt": (region.templates, _id),
        "pg": (region.placement_groups, lambda it: str(it.name)),
    }


def _id(thing: Any) -> str:
    return str(thing.id)


def split(resources: Iterable[str]) -> tuple[list[str], list[str]]:
    """Split resources into those of this cloud and those of moto."""
    named = list(resources)
    return [each for each in named if ours(each)], [each for each in named if not ours(each)]


ACTIONS = {"CreateTags": create_tags, "DeleteTags": delete_tags, "DescribeTags": describe_tags}
