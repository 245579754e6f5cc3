"""The labels by which a pool's resources are found: set by each create call itself, never afterwards.

Clouds call them tags or labels. Where a cloud has none, they are parts of a resource's name.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping

from ..resource_ownership import Thing

POOL = "outrider:pool"
OWNER = "outrider:owner"  # user@host at that time
LAUNCH = "outrider:launch"  # the token of the create call, which finds a resource if the answer was lost
RESERVED = "outrider:"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]")  # characters not allowed in all kinds of names


def labels_of(pool: str, others: Mapping[str, str]) -> dict[str, str]:
    """The labels of each resource of ``pool``. ``others``: the user's."""
    return {"Name": name_of(pool), **others, POOL: pool, OWNER: _owner()}


def name_of(pool: str) -> str:
    return f"outrider-{_NOT_IN_NAMES.sub('-', pool)}"[:100]


def thing(name: str, labels: Mapping[str, str]) -> Thing:
    """A resource with these labels as a `Thing`. ``name``: its name in the journal."""
    return Thing(name, pool=labels.get(POOL, ""), owner=labels.get(OWNER, ""), launch=labels.get(LAUNCH, ""))


def _owner() -> str:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container without a user database
        user = "unknown"
    return f"{user}@{socket.gethostname()}"[:256]
