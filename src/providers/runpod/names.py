"""Names of pods, which contain the pool and its owner. A create call can set no other text that lists show.

The form is ``outrider:POOL:USER@HOST:TOKEN``, with at most 187 characters: a long owner's user name is shortened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..cloud import labels
from ..resource_ownership import Thing

UNTIL = "OUTRIDER_UNTIL"  # a pod's environment variable with the unix time at which its max_lifetime ends
_OWNER_AT_MOST = 80  # most characters of the owner
_NAME = re.compile(r"outrider:(?P<pool>[\w.-]+):(?P<owner>[^:]*):(?P<launch>[0-9a-f]{32})", re.ASCII)


def name_of(pool: str, token: str) -> str:
    """Return the name of the pod of a launch. ``token``: 32 hexadecimal digits."""
    user, _, host = labels.labels_of(pool, {})[labels.OWNER].replace(":", "-").rpartition("@")
    user = user[: max(1, _OWNER_AT_MOST - len(host))]
    return f"outrider:{pool}:{user}@{host}:{token}"


def thing(pod: Mapping[str, Any]) -> Thing:
    """Return a pod as a `Thing`, from its name. A renamed pod belongs to no pool, except by the journal."""
    match = _NAME.fullmatch(pod["name"])
    return Thing(pod["id"]) if match is None else Thing(pod["id"], **match.groupdict())
