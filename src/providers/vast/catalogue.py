"""Vast.ai's offers: machines that people rent out, on demand or for bids. Each machine has one tenant at a time. No I/O
except in `load`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest
from ..cloud.failures import ELSEWHERE
from ..cloud.http import HttpApi
from ..cloud.offers import Catalogue, InstanceType
from ..errors import NoCapacity
from .service import SEARCH
from .vendor import VENDOR

WHERE = "its offers"  # where the machines are, in error texts: these name no single country
# Most offers in one response, the cheapest ones: Vast.ai returns no more (observed, not documented).
MOST = 64
DISK_GB = 32  # GB of a container's disk if the pool requests none
SHORTEST_S = 3600.0  # seconds; without max_lifetime, an offer must be valid for at least this long
AGAIN_S = 30.0
ARCHITECTURES: Mapping[str, Architecture] = {"amd64": "x86_64", "arm64": "arm64"}
# Vast.ai's names of GPUs that differ from Outrider's in more than spaces (source: dstackai/gpuhunt,
# providers/vastai.py).
_NAMES: Mapping[str, Sequence[str]] = {
    "A100": ("A100 PCIE", "A100 SXM4"),
    "H100": ("H100 PCIE", "H100 SXM", "H100 NVL"),
    "H200": ("H200", "H200 NVL"),
    **{each: (f"Tesla {each}",) for each in ("P100", "P40", "P4", "T4", "V100")},
}


class VastOptions(Protocol):
    """The options of `Vast` that a launch reads."""

    @property
    def image(self) -> str | None: ...

    @property
    def regions(self) -> Collection[str] | None: ...

    @property
    def reliability(self) -> float: ...

    @property
    def verified(self) -> bool: ...

    @property
    def min_cuda(self) -> float | None: ...

    @property
    def bid(self) -> float: ...

    @property
    def endpoint_url(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Ask:
    """One offer. ``bid``: USD per hour that the pool would bid for it, without disk; ``storage_usd``: USD per hour for
    its disk.
    """

    id: int
    kind: str  # the GPUs, as text for people: "2x RTX 4090"
    type: InstanceType
    country: str
    on_demand_usd: float | None = None  # USD per hour, including the disk
    bid: float | None = None
    storage_usd: float = 0.0

    @property
    def spot_usd(self) -> float | None:
        return None if self.bid is None else self.bid + self.storage_usd


async def load(api: HttpApi, provider: VastOptions, request: LaunchRequest) -> list[Ask]:
    """Search for offers that fit the request and the provider's options, in the markets that the request allows (spot,
    on demand).

    Raises:
        NoCapacity: There are no such offers now.
        ProviderError: Vast.ai does not respond, or refuses.
    """
    asks: dict[int, Ask] = {}
    for market in ("ondemand", "bid"):
        if request.allocation == {"ondemand": "spot", "bid": "on-demand"}[market]:
            continue
        answer = await api.call("POST", SEARCH, body=query(provider, request, market), idempotent=True)
        for offer in api.part(answer, list, "offers"):
            if not _holds(offer, provider, request, market):
                continue
            known = asks.get(offer["id"])
            asks[offer["id"]] = ask(offer, request, market, provider.bid, known)
    if not asks:
        what = "machine" if request.accelerator is None else str(request.accelerator)
        raise NoCapacity(
            f"Vast.ai has no offer of {what} now that fits this pool, and what Vast(reliability=..., verified=..., "
            f"regions=..., min_cuda=...) ask for",
            retry_after_s=AGAIN_S,
            advice=ELSEWHERE,
        )
    return list(asks.values())


def query(provider: VastOptions, request: LaunchRequest, market: str) -> dict[str, Any]:
    """Return the body of a search. The search itself has to filter the offers, because Vast.ai returns at most `MOST`
    of them.
    """
    filters: dict[str, Any] = {
        "rentable": {"eq": True},
        "external": {"eq": False},
        "direct_port_count": {"gte": 1},
        "reliability": {"gte": provider.reliability},
        "disk_space": {"gte": disk_gb(request)},
        "duration": {"gte": max(SHORTEST_S, request.max_lifetime_s or 0.0)},
        "cpu_cores_effective": {"gte": max(1, request.vcpus)},
    }
    if provider.verified:
        filters["verified"] = {"eq": True}
    if provider.regions is not None:
        filters["geolocation"] = {"in": list(provider.regions)}
    if provider.min_cuda is not None:
        filters["cuda_max_good"] = {"gte": provider.min_cuda}
    if request.accelerator is not None:
        filters["gpu_name"] = {"in": names_of(request.accelerator.name)}
        filters["num_gpus"] = {"gte": request.accelerator.count}
        filters["gpu_ram"] = {"gte": int(request.accelerator.memory_gb * 0.9 * 1024)}
    if request.architecture is not None:
        filters["cpu_arch"] = {"eq": "arm64" if request.architecture == "arm64" else "amd64"}
    return {
        **filters,
        "type": market,
        "order": [["dph_total", "asc"]],
        "limit": MOST,
        "allocated_storage": disk_gb(request),
    }


def disk_gb(request: LaunchRequest) -> int:
    return max(8, request.disk_gb or DISK_GB)  # 8 GB: the smallest disk at Vast.ai


def names_of(accelerator: str) -> list[str]:
    """Return the names that Vast.ai may use for an accelerator."""
    if accelerator in _NAMES:
        return list(_NAMES[accelerator])
    rtx = re.fullmatch(r"RTX(PRO|A)?(\d{4})(Ada|Ti|S)?", accelerator)
    if rtx is None:
        return [accelerator]
    series = "RTX PRO " if rtx[1] == "PRO" else f"RTX {rtx[1] or ''}"
    if rtx[3] == "Ti":
        return [f"{series}{rtx[2]} Ti"]
    return [
        f"{series}{rtx[2]}{rtx[3] or ''}",
        *([f"{series}{rtx[2]} WS", f"{series}{rtx[2]} S"] if rtx[1] == "PRO" else ()),
    ]


def _holds(offer: Mapping[str, Any], provider: VastOptions, request: LaunchRequest, market: str) -> bool:
    """Check again that an offer meets the most important conditions: if Vast.ai misunderstood a filter, it would cost
    the user money.
    """
    trusted = (offer.get("reliability") or 0.0) >= provider.reliability
    verified = not provider.verified or offer.get("verification") == "verified"
    room = (offer.get("disk_space") or 0.0) >= disk_gb(request)
    priced = offer.get("min_bid" if market == "bid" else "dph_total") is not None
    return bool(trusted and verified and room and priced and offer.get("rentable", True))


def ask(offer: Mapping[str, Any], request: LaunchRequest, market: str, over: float, known: Ask | None = None) -> Ask:
    """Convert an offer to an `Ask`. ``known``: the same offer in the other market; ``over``: the factor on the lowest
    bid.
    """
    gpu, gpus, share = offer["gpu_name"], offer["num_gpus"], offer.get("gpu_frac") or 1.0
    wanted, memory_gb = request.accelerator, round((offer.get("gpu_ram") or 0) / 1024)
    storage_usd = offer.get("storage_total_cost") or 0.0
    on_demand = offer["dph_total"] if market == "ondemand" else known.on_demand_usd if known else None
    bid = round(offer["min_bid"] * over, 4) if market == "bid" else known.bid if known else None
    name = wanted.name if wanted is not None and wanted.fits(gpu, wanted.memory_gb) else gpu.replace(" ", "")
    # Every machine at Vast.ai has GPUs. If the request names no accelerator, count the machine as one without GPUs, so
    # that it fits.
    accelerator = "" if wanted is None else name
    return Ask(
        offer["id"],
        f"{gpus}x {gpu}",
        InstanceType(
            f"{gpus}x {gpu} (offer {offer['id']})",
            int(offer["cpu_cores_effective"]),
            offer["cpu_ram"] / 1024 * share,
            ARCHITECTURES.get(offer.get("cpu_arch") or "amd64", "x86_64"),
            accelerator=accelerator,
            accelerators=gpus if accelerator else 0,
            accelerator_memory_gb=float(memory_gb) if accelerator else 0.0,
            spot=bid is not None,
            on_demand=on_demand is not None,
        ),
        country(offer.get("geolocation")),
        on_demand,
        bid,
        storage_usd,
    )


def country(geolocation: str | None) -> str:
    """Return the country code at the end of a place, as "US" in "Texas, US"."""
    return (geolocation or "").rpartition(",")[2].strip() or "unknown"


def catalogue(asks: Iterable[Ask]) -> Catalogue:
    types: dict[str, InstanceType] = {}
    zones: dict[str, frozenset[str]] = {}
    spot: dict[tuple[str, str], float] = {}
    on_demand: dict[str, float] = {}
    for each in asks:
        name = each.type.name
        types[name], zones[name] = each.type, frozenset({each.country})
        if each.spot_usd is not None:
            spot[name, each.country] = each.spot_usd
        if each.on_demand_usd is not None:
            on_demand[name] = each.on_demand_usd
    return Catalogue(VENDOR, WHERE, types, zones, spot=spot, on_demand=on_demand)
