"""Tags and filters as EC2 writes them: tags in create calls and in answers, filters in describe calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..cloud import labels
from ..resource_ownership import Thing

RESERVED = (labels.RESERVED, "aws:")
VALUES: Final = 200  # that a filter takes: "DescribeInstances", EC2 API Reference


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of a create call's ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource in a describe call's answer."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """A resource in a describe call's answer as a `Thing`. ``name``: its name in the journal."""
    return labels.thing(name, tags_of(resource))


def where(name: str, *values: str) -> dict[str, Any]:
    """A filter for what has one of these values."""
    return {"Name": name, "Values": list(values)}


def batches(values: Sequence[str]) -> list[Sequence[str]]:
    """The values in lots that a filter takes."""
    return [values[start : start + VALUES] for start in range(0, len(values), VALUES)]


def of(pool: str) -> dict[str, Any]:
    """A filter for a pool's tag. Some characters are wildcards to EC2: other pools' resources may match."""
    return where(f"tag:{labels.POOL}", pool)
