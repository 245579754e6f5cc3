"""The tags by which a pool's resources are found: set by each create call itself, never afterwards."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from typing import Any

from ..resource_ownership import Thing

POOL = "outrider:pool"
OWNER = "outrider:owner"  # user@host at that time
LAUNCH = "outrider:launch"  # the token of the create call, which finds a resource if the answer was lost
RESERVED = ("outrider:", "aws:")

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # characters not allowed in all kinds of names


def tags_of(pool: str, others: Mapping[str, str]) -> dict[str, str]:
    """The tags of each resource of ``pool``. ``others``: the user's."""
    return {"Name": name_of(pool), **others, POOL: pool, OWNER: _owner()}


def name_of(pool: str) -> str:
    return f"outrider-{_NOT_IN_NAMES.sub('-', pool)}"[:100]


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of a create call's ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def told(resource: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource in a describe call's answer."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """A resource in a describe call's answer as a `Thing`. ``name``: its name in the journal."""
    said = told(resource)
    return Thing(name, pool=said.get(POOL, ""), owner=said.get(OWNER, ""), launch=said.get(LAUNCH, ""))


def of(pool: str) -> dict[str, Any]:
    """The filter of a describe call. Some characters are wildcards to EC2: other pools' resources may match."""
    return {"Name": f"tag:{POOL}", "Values": [pool]}


def of_any_pool() -> dict[str, Any]:
    return {"Name": "tag-key", "Values": [POOL]}


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:256]
