"""Names of pods: all that RunPod lets a create call write on a pod for others to find. Whose a pod is, stands in it.

``outrider:POOL:USER@HOST:TOKEN``, 187 characters at most: the user is cut where the owner's name is long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..cloud import labels
from ..resource_ownership import Thing

UNTIL = "OUTRIDER_UNTIL"  # the variable of a pod's environment with the unix time at which its max_lifetime is over
_OWNER_AT_MOST = 80  # characters
_NAME = re.compile(r"outrider:(?P<pool>[\w.-]+):(?P<owner>[^:]*):(?P<launch>[0-9a-f]{32})", re.ASCII)


def name_of(pool: str, token: str) -> str:
    """The name of the pod of a launch. ``token``: 32 hexadecimal digits."""
    user, _, host = labels.labels_of(pool, {})[labels.OWNER].replace(":", "-").rpartition("@")
    user = user[: max(1, _OWNER_AT_MOST - len(host))]
    return f"outrider:{pool}:{user}@{host}:{token}"


def thing(pod: Mapping[str, Any]) -> Thing:
    """The owner of a pod by its name. A pod that somebody has renamed is nobody's, but for the journal."""
    match = _NAME.fullmatch(pod["name"])
    return Thing(pod["id"]) if match is None else Thing(pod["id"], **match.groupdict())
