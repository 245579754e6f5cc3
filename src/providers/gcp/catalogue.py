"""A region's catalogue: Compute Engine's machine types, their zones and prices; and `VENDOR`, its names and error
codes.

The types are read from Compute Engine, and the prices from a table.

The table (``prices.json``) has, for each family of types, USD per vCPU and per GB of memory in us-central1; each
region's factor; GPU prices by region; and spot prices as a share of the on-demand price (for GPUs in USD). See decision
68.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..cloud.caching import bundled_table, cheapest_first, kept_for
from ..cloud.calls import unless_unknown
from ..cloud.offers import Catalogue, InstanceType
from ..cloud.vendor import Vendor
from ..errors import BadRequest
from ..shared.side_by_side import each_of
from .api import UNKNOWN

if TYPE_CHECKING:
    from .api import Api


# Compute Engine's name of a GPU -> (Outrider's name, GB of memory); Google's page "GPU machine types"
GPUS: Final[Mapping[str, tuple[str, float]]] = {
    "nvidia-l4": ("L4", 24), "nvidia-tesla-t4": ("T4", 16), "nvidia-tesla-p4": ("P4", 8),
    "nvidia-tesla-v100": ("V100", 16), "nvidia-tesla-p100": ("P100", 16), "nvidia-tesla-a100": ("A100", 40),
    "nvidia-a100-80gb": ("A100", 80), "nvidia-h100-80gb": ("H100", 80), "nvidia-h100-mega-80gb": ("H100", 80),
    "nvidia-h200-141gb": ("H200", 141), "nvidia-b200": ("B200", 180), "nvidia-gb200": ("GB200", 186),
    "nvidia-rtx-pro-6000": ("RTXPRO6000", 96),
}  # fmt: skip

PREEMPTED, FULL_TIME = "compute.instances.preempted", "time limit"

# Causes of a machine's end. The keys are types of operations in "gcloud compute operations list", and `FULL_TIME`.
CAUSES = {
    PREEMPTED: "spot preemption",
    FULL_TIME: "reached the run time that GCP(max_run_hours=...) or max_lifetime gives it",
    "compute.instances.hostError": "its host failed",
    "compute.instances.terminateOnHostMaintenance": "its host is being serviced",
    "compute.instances.guestTerminate": "powered itself off: its lease ran out or its task shut it down",
    "stop": "somebody else stopped it",
    "delete": "somebody else deleted it",
}


def regions_with(accelerator: str) -> list[str]:
    """Return the regions whose GPU prices in the table include an accelerator (Outrider's name), cheapest first."""
    having = [regions for name, regions in bundled_table(__file__)["gpus"].items() if GPUS[name][0] == accelerator]
    return cheapest_first((region, usd) for regions in having for region, (usd, _) in regions.items())


VENDOR = Vendor(
    name="GCP",
    service="Compute Engine",
    causes=CAUSES,
    interruptions=frozenset({PREEMPTED}),
    quotas=frozenset({"QUOTA_EXCEEDED", "quotaExceeded"}),
    lasting=frozenset({"UNSUPPORTED_OPERATION"}),
    general_purpose=("e2-", "n2-", "n2d-", "t2d-"),
    price_advice="the table of this version has none, so choose other types, or another region",
    # The zones of AI machines have longer names.
    usual_zone=lambda region, zone: zone.startswith(f"{region}-") and len(zone) == len(region) + 2,
    off_is_ended=False,  # a machine that is off still has its disk, which costs money
    user_data_bytes=256 << 10,  # Google's page "About VM metadata": a value has at most 256 KB
    regions_with=regions_with,
)


# --- types and prices -------------------------------------------------------------------------------------------------


TYPES_S: Final = 600.0  # seconds to keep a catalogue in the cache
_FIELDS = "name,guestCpus,memoryMb,architecture,isSharedCpu,accelerators,bundledLocalSsds,deprecated"

# GPUs that can be attached to n1-standard machines: GPU -> number of GPUs -> the highest number of vCPUs allowed.
ATTACHED: Final[Mapping[str, Mapping[int, int]]] = {
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 64},
}


def _place(api: Api) -> Hashable:
    """Return the cache key for an `Api`. With the user's own endpoint, each `Api` object has another key: a test server
    may get the port of an earlier one.
    """
    return api.project, api.region, api.endpoint_url and id(api)


@kept_for(TYPES_S, by=_place)
async def load(api: Api) -> Catalogue:
    """Return the region's catalogue, with the prices that the table has. It is cached for 10 minutes.

    Raises:
        BadRequest: The region does not exist.
        ProviderError: Compute Engine did not respond.
    """
    types: dict[str, InstanceType] = {}
    places: dict[str, frozenset[str]] = {}
    spot: dict[tuple[str, str], float] = {}
    on_demand: dict[str, float] = {}
    region = await unless_unknown(api.call("GET", f"/regions/{api.region}"), *UNKNOWN)
    if region is None:
        raise BadRequest(
            f"there is no region {api.region!r} for this project: 'gcloud compute regions list' lists them"
        )
    zones = [url.rpartition("/")[2] for url in region.get("zones", ())]
    for zone, listed in zip(zones, await each_of(zones, partial(_types, api)), strict=True):
        for each, gpu, ssds in listed:
            types[each.name], places[each.name] = each, places.get(each.name, frozenset()) | {zone}
            usual, cheap = (hourly_usd(each, gpu, ssds, api.region, spot=market) for market in (False, True))
            if usual is not None:
                on_demand[each.name] = usual
            if cheap is not None:
                spot[each.name, zone] = cheap
    return Catalogue(VENDOR, api.region, types, places, spot, on_demand)


async def _types(api: Api, zone: str) -> list[tuple[InstanceType, str, int]]:
    gpus = await api.pages(f"/zones/{zone}/acceleratorTypes", {"fields": "items(name),nextPageToken"})
    types = await api.pages(f"/zones/{zone}/machineTypes", {"fields": f"items({_FIELDS}),nextPageToken"})
    attached = {each["name"] for each in gpus} & ATTACHED.keys()
    return [one for each in types for one in parse(each, attached)]


def parse(machine_type: Mapping[str, Any], attached: Collection[str] = ()) -> Iterator[tuple[InstanceType, str, int]]:
    """Parse a machine type. Yield it without extra GPUs, and with each possible number of each of the ``attached``
    GPUs.

    Each result has the type, Compute Engine's name of its GPUs, and the number of its local disks. Types with TPUs, or
    with GPUs that are not in `GPUS`, are skipped.
    """
    name, vcpus, built_in = (
        machine_type["name"],
        machine_type["guestCpus"],
        (machine_type.get("accelerators") or [{}])[0],
    )
    gpu, count = built_in.get("guestAcceleratorType", ""), built_in.get("guestAcceleratorCount", 0)
    if (gpu and gpu not in GPUS) or name.startswith("ct"):
        return
    kinds = [(name, gpu, count)]
    if name.startswith("n1-standard-"):
        for each in sorted(attached):
            numbers = [number for number, most in ATTACHED[each].items() if vcpus <= most]
            kinds += [(f"{name}+{each}:{number}", each, number) for number in numbers]
    for kind, gpu, count in kinds:
        accelerator, memory_gb = GPUS.get(gpu, ("", 0.0))
        instance_type = InstanceType(
            name=kind,
            vcpus=vcpus,
            memory_gb=machine_type["memoryMb"] / 1024,
            architecture="arm64" if machine_type.get("architecture") == "ARM64" else "x86_64",
            accelerator=accelerator,
            accelerators=count,
            accelerator_memory_gb=memory_gb,
            cluster=True,  # in Compute Engine, machines of any type can be placed near each other in a zone
            spot=True,
            on_demand=True,
            bare_metal=kind.endswith("-metal"),
            burstable=bool(machine_type.get("isSharedCpu")),
            current=not machine_type.get("deprecated"),
        )
        yield instance_type, gpu, (machine_type.get("bundledLocalSsds") or {}).get("partitionCount", 0)


def hourly_usd(each: InstanceType, gpu: str, ssds: int, region: str, *, spot: bool) -> float | None:
    """Return the price of a machine in USD per hour, without boot disk and address; None: a part of the price is
    unknown.

    ``gpu``: Compute Engine's name of its GPUs. ``ssds``: number of its local disks.
    """
    table = bundled_table(__file__)
    family = table["families"].get(each.name.partition("-")[0])
    if family is None:
        return None
    factor = family.get("regions", table["regions"]).get(region)
    share = family.get("spot", {}).get(region) if spot else 1.0
    gpu_usd = table["gpus"].get(gpu, {}).get(region, (None, None))[spot] if gpu else 0.0
    if factor is None or share is None or gpu_usd is None:
        return None
    rest = each.vcpus * family["core"] + each.memory_gb * family["ram"]
    return float(rest * factor * share + each.accelerators * gpu_usd + ssds * table["local_ssd"])
