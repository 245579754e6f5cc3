"""Read a region's catalogue from Compute Engine: machine types, the zones that have them, and bundled prices."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ..cloud.answer_cache import kept_for
from ..cloud.failures import unless_unknown
from ..cloud.offers import Catalogue, InstanceType
from ..errors import BadRequest
from ..side_by_side import each_of
from . import prices
from .errors import UNKNOWN
from .prices import GPUS, PricedParts

if TYPE_CHECKING:
    from .api import Api

TYPES_S: Final = 600.0  # how long types and their zones are cached
_FIELDS = (
    "items(name,guestCpus,memoryMb,architecture,isSharedCpu,accelerators,bundledLocalSsds,deprecated),nextPageToken"
)

# GPUs that are attached to n1-standard machines: for each number of them, the most vCPUs.
ATTACHED: Final[Mapping[str, Mapping[int, int]]] = {
    "nvidia-tesla-t4": {1: 48, 2: 48, 4: 96},
    "nvidia-tesla-p4": {1: 24, 2: 48, 4: 96},
    "nvidia-tesla-v100": {1: 12, 2: 24, 4: 48, 8: 96},
    "nvidia-tesla-p100": {1: 16, 2: 32, 4: 64},
}


async def load(api: Api) -> Catalogue:
    """Return the region's catalogue, with prices as far as the table has them. Types are cached for 10 minutes.

    Raises:
        BadRequest: there is no such region.
        ProviderError: Compute Engine did not answer.
    """
    types: dict[str, InstanceType] = {}
    zones: dict[str, set[str]] = {}
    spot: dict[tuple[str, str], float] = {}
    on_demand: dict[str, float] = {}
    for zone, said in (await _types(api)).items():
        for each, parts in said:
            types[each.name] = each
            zones.setdefault(each.name, set()).add(zone)
            usual, cheap = (prices.hourly_usd(parts, api.region, spot=market) for market in (False, True))
            if usual is not None:
                on_demand[each.name] = usual
            if cheap is not None:
                spot[each.name, zone] = cheap
    places = {name: frozenset(there) for name, there in zones.items()}
    return Catalogue(api.vendor, api.region, types, places, spot, on_demand)


def _place(api: Api) -> Hashable:
    """The cache key of a cloud. With an endpoint of one's own each `Api` has its own key, as ports are reused."""
    return api.project, api.region, api.endpoint_url and id(api)


@kept_for(TYPES_S, by=_place)
async def _types(api: Api) -> dict[str, list[tuple[InstanceType, PricedParts]]]:
    """The types of each zone, and their priced parts."""

    async def in_zone(zone: str) -> list[tuple[InstanceType, PricedParts]]:
        gpus = await api.pages(f"/zones/{zone}/acceleratorTypes", {"fields": "items(name),nextPageToken"})
        types = await api.pages(f"/zones/{zone}/machineTypes", {"fields": _FIELDS})
        attached = {each["name"] for each in gpus} & ATTACHED.keys()
        return [one for each in types for one in parse(each, attached)]

    there = await zones(api)
    return dict(zip(there, await each_of(there, in_zone), strict=True))


@kept_for(TYPES_S, by=_place)
async def zones(api: Api) -> Sequence[str]:
    """The region's zones.

    Raises:
        BadRequest: there is no such region.
    """
    region = await unless_unknown(api.call("GET", f"/regions/{api.region}"), *UNKNOWN)
    if region is None:
        raise BadRequest(
            f"there is no region {api.region!r} for this project: 'gcloud compute regions list' lists them"
        )
    return [url.rpartition("/")[2] for url in region.get("zones", ())]


def parse(said: Mapping[str, Any], attached: Collection[str] = ()) -> Iterator[tuple[InstanceType, PricedParts]]:
    """Parse a machine type: as it is, and with each of the ``attached`` GPUs that it may have.

    Nothing comes of types with TPUs, or with GPUs that are not in `GPUS`.
    """
    name: str = said["name"]
    family = name.partition("-")[0]
    built_in = (said.get("accelerators") or [{}])[0]
    gpu, count = built_in.get("guestAcceleratorType", ""), built_in.get("guestAcceleratorCount", 0)
    if (gpu and gpu not in GPUS) or family.startswith("ct"):
        return
    ssds = (said.get("bundledLocalSsds") or {}).get("partitionCount", 0)
    parts = PricedParts(family, said["guestCpus"], said["memoryMb"] / 1024, gpu, count, ssds)
    yield _type(name, said, parts), parts
    if name.startswith("n1-standard-"):
        for each in sorted(attached):
            for number, vcpus in ATTACHED[each].items():
                if parts.vcpus <= vcpus:
                    more = PricedParts(family, parts.vcpus, parts.memory_gb, each, number)
                    yield _type(f"{name}+{each}:{number}", said, more), more


def _type(name: str, said: Mapping[str, Any], parts: PricedParts) -> InstanceType:
    accelerator, memory_gb = GPUS.get(parts.gpu, ("", 0.0))
    return InstanceType(
        name=name,
        vcpus=parts.vcpus,
        memory_gb=parts.memory_gb,
        architecture="arm64" if said.get("architecture") == "ARM64" else "x86_64",
        accelerator=accelerator,
        accelerators=parts.gpus,
        accelerator_memory_gb=memory_gb,
        cluster=True,  # all machines of a zone may be near each other
        spot=True,
        on_demand=True,
        bare_metal=name.endswith("-metal"),
        burstable=bool(said.get("isSharedCpu")),
        current=not said.get("deprecated"),
    )


def machine_of(name: str) -> tuple[str, str, int]:
    """A type's machine type, and the GPUs to attach: ``"n1-standard-8+nvidia-tesla-t4:2"``."""
    machine, _, gpus = name.partition("+")
    gpu, _, count = gpus.partition(":")
    return machine, gpu, int(count or 0)
