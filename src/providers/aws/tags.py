"""Tags and filters in EC2's format: tags in create calls and in answers, filters in describe calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..cloud import labels
from ..shared.resource_ownership import Thing

RESERVED = (labels.RESERVED, "aws:")
VALUES: Final = 200  # most values of a filter: "DescribeInstances", EC2 API Reference


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return one entry of a create call's ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource in a describe call's answer."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """Return a resource in a describe call's answer as a `Thing`. ``name``: its name in the journal."""
    return labels.thing(name, tags_of(resource))


def where(name: str, *values: str) -> dict[str, Any]:
    """Return a filter for resources with one of these values."""
    return {"Name": name, "Values": list(values)}


def batches(values: Sequence[str]) -> list[Sequence[str]]:
    """Split the values into batches of at most `VALUES`."""
    return [values[start : start + VALUES] for start in range(0, len(values), VALUES)]


def of(pool: str) -> dict[str, Any]:
    """Return a filter for a pool's tag. EC2 treats some characters as wildcards, so other pools may match, too."""
    return where(f"tag:{labels.POOL}", pool)
