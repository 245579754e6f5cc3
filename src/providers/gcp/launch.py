"""Build the request to Compute Engine for a launch. No I/O.

A launch is one bulkInsert in the region: one machine type, and the zones that may have it. The machines' names are
chosen here, from the order's token: repeated, it would find them taken even where the requestId is forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud import small_labels as labels
from .catalogue import machine_of

if TYPE_CHECKING:
    from ..cloud.offers import Offer
    from .provider import GCP

BILLED_S = 60.0  # "VM instance pricing": by the second, for at least a minute
HOURS_PER_MONTH = 730.0
BALANCED_GB_MONTH_USD = 0.10  # "Disk pricing", us-central1
IPV4_HOUR_USD = 0.005  # "Network pricing"; half of it for spot
ONLY_HYPERDISK = ("a4", "c4", "g4", "h4", "n4", "x4")  # beginnings of families that take no Persistent Disk
DISK_GB, GPU_DISK_GB = 20, 60
UBUNTU = "projects/ubuntu-os-cloud/global/images/family/ubuntu-2404-lts"
# Ubuntu with NVIDIA's driver, whose modules are signed. R580 is the last branch that runs P100 and V100.
UBUNTU_GPU = "projects/ubuntu-os-accelerator-images/global/images/family/ubuntu-accelerator-2404"
MORE_S = 300.0  # the lease ends a machine after max_lifetime; where it cannot, Google does, so much later
LONGEST_S, SHORTEST_S = 120 * 86400, 30  # "Limit the run time of a VM"
# Google's guest agent makes host keys of its own at the first boot, which would replace the one that is pinned.
KEEP_HOST_KEY = "printf '[InstanceSetup]\\nset_host_keys = false\\n' >/etc/default/instance_configs.cfg"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The network of machines. ``tag``: they are known by it to firewall rules."""

    network: str
    subnet: str
    tags: tuple[str, ...]
    public: bool


def image_of(offer: Offer, given: str | None) -> str:
    """The image of machines of this offer: the user's, which may be a family or a whole path, or a current Ubuntu."""
    if given is not None:
        return given if "/" in given else f"global/images/family/{given}"
    arm = offer.type.architecture == "arm64"
    if offer.type.accelerator:
        return f"{UBUNTU_GPU}-{'arm64' if arm else 'amd64'}-with-nvidia-580"
    return f"{UBUNTU}-{'arm64' if arm else 'amd64'}"


def disk_gb(request: LaunchRequest) -> int:
    return max(request.disk_gb, GPU_DISK_GB if request.accelerator is not None else DISK_GB)


def extras_usd(request: LaunchRequest, *, public: bool) -> float:
    """USD per hour of a machine's disk and address."""
    return disk_gb(request) * BALANCED_GB_MONTH_USD / HOURS_PER_MONTH + (IPV4_HOUR_USD if public else 0.0)


def run_s(request: LaunchRequest, max_run_hours: float) -> int:
    """The seconds after which Google deletes a machine, whatever runs on it and whoever speaks for it."""
    lifetime_s = request.max_lifetime_s
    least = max_run_hours * 3600 if lifetime_s is None else min(max_run_hours * 3600, lifetime_s + MORE_S)
    return ceil(min(max(least, SHORTEST_S), LONGEST_S))


def names(pool: str, token: str, count: int) -> list[str]:
    return [f"{labels.stem(pool)}-{token[:10]}-{number}" for number in range(count)]


def bulk(
    offers: Sequence[Offer], names: Sequence[str], zones: Sequence[str], properties: Mapping[str, Any]
) -> dict[str, Any]:
    """The body of bulkInsert: up to ``len(names)`` machines of the offers' type. ``zones``: all of the region."""
    allowed = {offer.zone for offer in offers}
    preferences = {f"zones/{zone}": {"preference": "ALLOW" if zone in allowed else "DENY"} for zone in sorted(zones)}
    return {
        "count": str(len(names)),
        "minCount": "1",
        "perInstanceProperties": {name: {} for name in names},
        "instanceProperties": dict(properties),
        "locationPolicy": {"locations": preferences, "targetShape": "ANY"},
    }


def machine(
    provider: GCP,
    request: LaunchRequest,
    offer: Offer,
    place: Place,
    *,
    config: str,
    labels: Mapping[str, str],
    description: str,
) -> dict[str, Any]:
    """The properties of a machine of this offer, wherever it will be. ``config``: its user data."""
    (machine, gpu, gpus), spot = machine_of(offer.type.name), offer.market == "spot"
    disk = "hyperdisk-balanced" if machine.startswith(ONLY_HYPERDISK) else "pd-balanced"
    interface: dict[str, Any] = {"network": place.network}
    if place.subnet:
        interface = {"subnetwork": place.subnet}
    if place.public:
        interface["accessConfigs"] = [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}]
    properties: dict[str, Any] = {
        "machineType": machine,
        "description": description,
        "labels": dict(labels),
        "tags": {"items": list(place.tags)},
        "disks": [
            {
                "boot": True,
                "autoDelete": True,
                "initializeParams": {
                    "sourceImage": image_of(offer, provider.image),
                    "diskSizeGb": str(disk_gb(request)),
                    "diskType": disk,
                },
            }
        ],
        "networkInterfaces": [interface],
        "metadata": {
            "items": [
                {"key": "user-data", "value": config},
                {"key": "block-project-ssh-keys", "value": "TRUE"},  # nobody but the pool logs in
                {"key": "enable-oslogin", "value": "FALSE"},
            ]
        },
        "scheduling": {
            "provisioningModel": "SPOT" if spot else "STANDARD",
            "automaticRestart": False,  # a machine that comes back would be another one
            "onHostMaintenance": "TERMINATE" if spot or offer.type.accelerator else "MIGRATE",
            "instanceTerminationAction": "DELETE",  # at the end of maxRunDuration, and when a spot machine is preempted
            "maxRunDuration": {"seconds": str(run_s(request, provider.max_run_hours))},
        },
    }
    if gpus:
        properties["guestAccelerators"] = [{"acceleratorType": gpu, "acceleratorCount": gpus}]
    if provider.service_account is not None:
        scopes = ["https://www.googleapis.com/auth/cloud-platform"]
        properties["serviceAccounts"] = [{"email": provider.service_account, "scopes": scopes}]
    return properties
