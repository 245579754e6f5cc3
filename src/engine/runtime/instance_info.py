"""The function `instance_info`, by which a task finds out where it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ..api.accelerators import Accelerator
from ..api.instance import InstanceInfo, Peer

VARIABLE = "COMPUTE_POOL"  # environment variable of every task, with the information of `instance_info` as JSON


def instance_info() -> InstanceInfo:
    """Return where this task runs, and with which other ranks.

    This also works in processes that a task starts. Outside a pool, the result describes a single rank on this
    computer.
    """
    from ..node.context import current

    context = current()
    if context is not None:
        return _parsed(context.info)
    inherited = os.environ.get(VARIABLE)
    if inherited:
        return _parsed(json.loads(inherited))
    import socket

    hostname = socket.gethostname()
    return InstanceInfo(hostname=hostname, peers=(Peer(0, 0, hostname, "127.0.0.1"),))


def _parsed(facts: Mapping[str, Any]) -> InstanceInfo:
    kind = facts.get("accelerator")
    known: dict[str, Any] = {name: facts[name] for name in InstanceInfo.__match_args__ if name != "accelerator"}
    known["accelerator"] = None if kind is None else Accelerator(kind["type"], kind["count"], kind["memory_gb"])
    known["peers"] = tuple(
        Peer(each["rank"], each["node"], each["hostname"], each["address"], each["port"]) for each in facts["peers"]
    )
    return InstanceInfo(**known)
