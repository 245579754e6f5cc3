"""The rules of the test cloud's bulkInsert (a call that creates many machines): which parameters are incompatible, and
which zones have a type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..shared.front import Refused
from .zones import GPUS, types_in

IMAGES = re.compile(r"projects/[\w-]+/global/images/(family/)?[\w-]+|global/images/(family/)?[\w-]+")
LONGEST_S, SHORTEST_S = 120 * 86400, 30  # seconds, the limits of maxRunDuration; page "Limit the run time of a VM"


def check_launch(body: Mapping[str, Any]) -> None:
    """Raise an error for a request that Compute Engine refuses at once.

    Raises:
        Refused: Parameters are incompatible.
    """
    properties = body["instanceProperties"]
    scheduling, gpu = properties["scheduling"], kind_of(properties)[1]
    run_s = int(scheduling.get("maxRunDuration", {}).get("seconds", SHORTEST_S))
    image = properties["disks"][0]["initializeParams"]["sourceImage"]
    network = properties["networkInterfaces"][0].get("network", "global/networks/default")
    spot = scheduling.get("provisioningModel") == "SPOT"
    for wrong, reason in (
        (len(body["perInstanceProperties"]) != int(body["count"]), "count is not the number of names"),
        (not SHORTEST_S <= run_s <= LONGEST_S, "maxRunDuration is not between 30 seconds and 120 days"),
        (spot and scheduling.get("automaticRestart", True), "spot machines are not restarted"),
        (bool(gpu) and scheduling.get("onHostMaintenance") != "TERMINATE", "machines with GPUs do not migrate"),
        (not IMAGES.fullmatch(image), f"{image} is no image"),
        (network != "global/networks/default", f"The resource '{network}' was not found"),
    ):
        if wrong:
            raise Refused("invalid", f"Invalid value for field 'resource.instanceProperties': {reason}", 400)


def kind_of(properties: Mapping[str, Any]) -> tuple[str, str]:
    """Return a machine's type, with its attached GPUs, as in `Offer`, and the name of its GPU (empty: no GPU)."""
    attached, machine = properties.get("guestAccelerators") or (), properties["machineType"]
    if attached:
        gpu = attached[0]["acceleratorType"]
        return f"{machine}+{gpu}:{attached[0]['acceleratorCount']}", gpu
    return machine, "built-in" if machine.startswith(("a2-", "a3-", "g2-")) else ""


def has(zone: str, machine: str, gpu: str) -> bool:
    """Return whether a zone has the machine type and the GPU."""
    there = machine in {each["name"] for each in types_in(zone)}
    return there and (gpu in {"", "built-in"} or gpu in GPUS.get(zone, ()))
