"""Vast.ai's interface: address, rate limits, errors, the user's key, and its offers with their prices.

An offer is one machine that somebody rents out, on demand or for bids; it has one tenant at a time. `VENDOR` has the
names and error codes that the modules of `providers.cloud` need. No I/O except in `load_offers`.

Sources: Vast.ai's documentation (github.com/vast-ai/docs), especially its OpenAPI files, and its own client,
vast-ai/vast-cli. ``testing/clouds/vast/openapi.json`` names the files and commits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest
from ..cloud import machine_start
from ..cloud.account import ApiKeys
from ..cloud.calls import ELSEWHERE, CallRefused, Meanings
from ..cloud.http import HttpApi, Service
from ..cloud.offers import Catalogue, InstanceType
from ..cloud.vendor import Vendor
from ..errors import NoCapacity, NotAuthorized, QuotaExceeded

TAKEN = "no_such_ask"
STALE_PRICE = "invalid_price"
NO_CREDIT = "insufficient_credit"
UNKNOWN = frozenset({"no_such_instance", "instances_not_found"})
OUTBID = "outbid"
STOPPED = "stopped"

APART = (
    "machines of Vast.ai are in different places, and reach each other at no port: frameworks that connect the ranks "
    "of several nodes, such as torch, do not work there; take one node with several GPUs, or tasks without ranks"
)

VENDOR = Vendor(
    name="Vast",
    service="Vast.ai",
    causes={
        OUTBID: "somebody bid more for its GPUs, or rented them on demand, and Vast.ai has stopped it",
        STOPPED: "Vast.ai has stopped it: its host, its rental's end or the account's credit may be why",
    },
    interruptions=frozenset({OUTBID}),
    quotas=frozenset({NO_CREDIT}),
    first_lease_more_s=machine_start.CONTAINER_GRACE_S - machine_start.GRACE_S,
    warning_of_several=APART,
    price_advice="Vast.ai's offers say none",
)


# --- the interface ----------------------------------------------------------------------------------------------------


URL = "https://console.vast.ai"
KEY = "VAST_API_KEY"
KEYS_PAGE = "https://cloud.vast.ai/manage-keys/"
KEY_FILE = "~/.config/vastai/vast_api_key"  # file in which `vastai set api-key` stores the key
KEYS = ApiKeys(provider="Vast", name="vast", variable=KEY, page=KEYS_PAGE, usual=KEY_FILE)
BILLING_PAGE = "https://cloud.vast.ai/billing/"
ACCOUNT = "/api/v0/users/current/"
SEARCH = "/api/v0/bundles/"
ASK = "/api/v0/asks/{}/"
LIST = "/api/v1/instances/"
END = "/api/v0/instances/"
# Rates of the operations. Vast.ai's x-rate-limit names the least seconds between two requests; a fifth is added to
# each. Searches: 10 per minute.
LIMITS = {"search": (10.0, 1 / 6.5), "rent": (1.0, 1 / 5.4), "list": (1.0, 1 / 1.2), "end": (1.0, 1 / 3.6)}
_LIMITED = {("POST", SEARCH): "search", ("GET", LIST): "list", ("DELETE", END): "end"}
NO_KEY = "invalid_user_key"
_IN_WORDS = re.compile(r"\b(no_such_ask|no_such_instance|insufficient_credit)\b")

MEANINGS: Meanings = (
    (NotAuthorized, {NO_KEY: f"Vast.ai does not accept the API key: make one at {KEYS_PAGE}, and set {KEY} to it"}),
    (QuotaExceeded, {NO_CREDIT: f"the Vast.ai account has no credit left: add some at {BILLING_PAGE}"}),
    (NoCapacity, {
        TAKEN: "somebody else has rented that machine of Vast.ai's meanwhile",
        STALE_PRICE: "the price of that machine of Vast.ai's has changed meanwhile",
    }),
    (CallRefused, {"|".join(sorted(UNKNOWN)): "Vast.ai does not know that instance"}),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of Vast.ai's interface. ``endpoint_url``: another address than Vast.ai's."""
    return Service(
        name="Vast.ai",
        extra="vast",
        base_url=(endpoint_url or URL).rstrip("/"),
        limits=LIMITS,
        limits_of=_limits_of,
        meanings=MEANINGS,
        again_after_s={TAKEN: 10.0, STALE_PRICE: 10.0},
        words_of=words_of,
        credentials=f"set {KEY} to a key of {KEYS_PAGE} that may use instance_read, instance_write, user_read and misc",
    )


def _limits_of(method: str, path: str) -> Sequence[str]:
    if method == "PUT":
        return ("rent",)
    name = _LIMITED.get((method, path))
    return () if name is None else (name,)


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of an error response. If an offer or instance is unknown, only the message may have the
    code.
    """
    if not isinstance(body, Mapping):
        return "", ""
    message = next((str(body[key]) for key in ("msg", "message", "detail") if body.get(key)), "")
    if "invalid user key" in message.lower():
        return NO_KEY, message
    named = _IN_WORDS.search(message)
    return named[1] if named else str(body.get("error") or ""), message


# --- types and prices -------------------------------------------------------------------------------------------------


WHERE = "its offers"  # for error texts that say where machines are: they name no single country
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


async def load_offers(api: HttpApi, provider: VastOptions, request: LaunchRequest) -> list[Ask]:
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
    """Convert an offer to an `Ask`. ``known``: the same offer in the other market (spot or on demand). ``over``: the
    lowest bid is multiplied by this factor.
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
    """Return the country code at the end of an offer's ``geolocation``, as "US" in "Texas, US"."""
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
