"""Names of pods. A name contains the pool and its owner, because RunPod lists no other text that a create call can set.

A name has the form ``outrider:POOL:USER@HOST:TOKEN``, with at most 187 characters: if the owner is too long, its user
name is shortened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..cloud import labels
from ..resource_ownership import Thing

UNTIL = "OUTRIDER_UNTIL"  # environment variable of a pod: the unix time at which the pod's max_lifetime ends
_OWNER_AT_MOST = 80  # most characters of the owner in a pod's name
_NAME = re.compile(r"outrider:(?P<pool>[\w.-]+):(?P<owner>[^:]*):(?P<launch>[0-9a-f]{32})", re.ASCII)


def name_of(pool: str, token: str) -> str:
    """Return the name of the pod that a launch creates. ``token``: the launch's token, 32 hexadecimal digits."""
    user, _, host = labels.labels_of(pool, {})[labels.OWNER].replace(":", "-").rpartition("@")
    user = user[: max(1, _OWNER_AT_MOST - len(host))]
    return f"outrider:{pool}:{user}@{host}:{token}"


def thing(pod: Mapping[str, Any]) -> Thing:
    """Convert a pod to a `Thing`: its name says which pool owns it. A renamed pod belongs to no pool, unless the
    journal has its id.
    """
    match = _NAME.fullmatch(pod["name"])
    return Thing(pod["id"]) if match is None else Thing(pod["id"], **match.groupdict())
