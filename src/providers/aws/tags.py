"""The tags by which everything of a pool is found again: set with each create call, never after it."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from typing import Any

from ..whose import Thing

POOL = "outrider:pool"
OWNER = "outrider:owner"  # user@host, as they were called then
LAUNCH = "outrider:launch"  # the token of the call that created it, so that its answer may be lost
RESERVED = ("outrider:", "aws:")

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # security groups, launch templates and placement groups all take these


def tags_of(pool: str, others: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that each resource of ``pool`` carries; ``others`` are the user's."""
    return {"Name": name_of(pool), **others, POOL: pool, OWNER: _owner()}


def name_of(pool: str) -> str:
    return f"outrider-{_NOT_IN_NAMES.sub('-', pool)}"[:100]


def specification(kind: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """One entry of a create call's ``TagSpecifications``."""
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in tags.items()]}


def told(resource: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a resource as a describe call gives it."""
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags", ())}


def thing(name: str, resource: Mapping[str, Any]) -> Thing:
    """Return the thing that the journal knows by ``name``, from a describe call's answer. `whose` says whose it is."""
    said = told(resource)
    return Thing(name, pool=said.get(POOL, ""), owner=said.get(OWNER, ""), launch=said.get(LAUNCH, ""))


def of(pool: str) -> dict[str, Any]:
    """The filter of a describe call. EC2 takes some characters for wildcards: it may show other pools' things too."""
    return {"Name": f"tag:{POOL}", "Values": [pool]}


def of_any_pool() -> dict[str, Any]:
    return {"Name": "tag-key", "Values": [POOL]}


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:256]
