"""Tags as EC2 writes them: in create calls, in answers, and in filters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..cloud import labels
from ..cloud.labels import POOL
from ..resource_ownership import Thing
from .filters import where

RESERVED = (labels.RESERVED, "aws:")


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of a create call's ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def told(resource: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource in a describe call's answer."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """A resource in a describe call's answer as a `Thing`. ``name``: its name in the journal."""
    return labels.thing(name, told(resource))


def of(pool: str) -> dict[str, Any]:
    """The filter of a describe call. Some characters are wildcards to EC2: other pools' resources may match."""
    return where(f"tag:{POOL}", pool)


def of_any_pool() -> dict[str, Any]:
    return where("tag-key", POOL)
