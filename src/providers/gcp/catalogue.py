"""A region's catalogue: machine types and their zones, read from Compute Engine, and their prices from a table.

The table (``prices.json``) has, for each family of types, USD per vCPU and per GB of memory in us-central1; each
region's factor; GPU prices by region; and spot prices as a share of the on-demand price (for GPUs in USD). See decision
68.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from ..cloud.answer_cache import kept_for
from ..cloud.failures import unless_unknown
from ..cloud.offers import Catalogue, InstanceType
from ..cloud.price_table import bundled_table
from ..errors import BadRequest
from ..side_by_side import each_of
from .errors import UNKNOWN
from .vendor import GPUS, VENDOR

if TYPE_CHECKING:
    from .api import Api

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
