"""Hyperstack's interface: address, rate limits, errors, the user's key, machine types ("flavors") and their prices.

`VENDOR` has the names and error codes that the modules of `providers.cloud` need.

Sources: the documentation at docs.hyperstack.cloud in November 2026 ("Errors", "Rate limits", "Pagination"), and the
OpenAPI document from which the official client `hyperstack` 1.56.1a0 was generated.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

from ..cloud.account import ApiKeys
from ..cloud.http import HttpApi, Service
from ..cloud.offers import SOLD_OUT, Catalogue, InstanceType
from ..cloud.vendor import Vendor
from ..errors import BadRequest, NoCapacity, NotAuthorized, QuotaExceeded
from ..shared.side_by_side import each_of

UNKNOWN = "not_found"

# Costs by the state of a machine: SHUTOFF is billed like ACTIVE, and ERROR is not billed ("States and billing" in
# Hyperstack's documentation).
VENDOR = Vendor(
    name="Hyperstack",
    service="Hyperstack",
    causes={
        "SHUTOFF": "it was powered off, and costs money until it is deleted",
        "HIBERNATED": "it was hibernated, and its disk costs money until it is deleted",
        "ERROR": "Hyperstack could not start it, or has lost it",
        "DELETING": "it was deleted, or Hyperstack has taken it back",
        "DELETED": "it was deleted, or Hyperstack has taken it back",
    },
    price_advice="name other types, or see https://www.hyperstack.cloud/gpu-pricing",
    off_is_ended=False,
    warning="if this program is killed, nothing ends its machines at Hyperstack by itself: they power themselves off "
    "and cost as much as before, until `outrider gc --apply` ends them",
)


# --- the interface ----------------------------------------------------------------------------------------------------


KEY = "HYPERSTACK_API_KEY"
KEYS_PAGE = "https://console.hyperstack.cloud/api-keys"
KEYS = ApiKeys(provider="Hyperstack", name="hyperstack", variable=KEY, page=KEYS_PAGE)
PAGE = 100  # entries to request for one page of a list

# Code -> words in the message of an error. Hyperstack has only ten error reasons; details are in the messages, and only
# two of these are documented.
_SENTENCES = {
    "insufficient_balance": r"balance|credit",
    "quota_exceeded": r"quota|limit",
    "no_stock": r"stock|capacity|not enough|not available|unavailable|no valid host|insufficient",
}


def words_of(body: object) -> tuple[str, str]:
    """Return the code and message of ``{"status": false, "message": "...", "error_reason": "..."}``.

    The code is the error reason, or, if that reason says too little, a code from `_SENTENCES`.
    """
    if not isinstance(body, Mapping):
        return "", ""
    message, reason = str(body.get("message") or ""), str(body.get("error_reason") or "")
    if reason in {"", "bad_request"}:  # these two reasons can mean anything, so take the code from the message
        reason = next((code for code, words in _SENTENCES.items() if re.search(words, message, re.IGNORECASE)), reason)
    return reason, message


SERVICE = Service(
    name="Hyperstack",
    extra="hyperstack",
    base_url="https://infrahub-api.nexgencloud.com/v1",
    limits={"calls": (60.0, 8.0)},  # Hyperstack allows 500 requests per minute from one address
    limits_of=lambda method, path: ("calls",),  # noqa: ARG005
    meanings=(
        (NotAuthorized, {"unauthorized": f"Hyperstack does not accept the API key: make one at {KEYS_PAGE}"}),
        (
            QuotaExceeded,
            {
                "insufficient_balance": "the credit of the Hyperstack account is too little: add some in its console",
                "quota_exceeded": "a limit of the Hyperstack account is reached: its support raises it",
            },
        ),
        (NoCapacity, {"no_stock": "Hyperstack has no such machine now"}),
    ),
    again_after_s={"no_stock": 30.0},
    words_of=words_of,
    refuses=lambda answer: isinstance(answer, Mapping) and answer.get("status") is False,
    credentials=f"check {KEY}",
    header="api_key",
)


async def listed(api: HttpApi, path: str, name: str) -> list[Mapping[str, Any]]:
    """Return all entries of a list, page after page. An entry may be missing if the list changes between two pages."""
    entries: dict[int, Mapping[str, Any]] = {}
    for page in count(1):
        answer = await api.call("GET", path, params={"page": str(page), "pageSize": str(PAGE)})
        entries |= {each["id"]: each for each in answer[name]}
        # Fewer entries than on a full page: this is the last page. A full page may have fewer than requested.
        if len(answer[name]) < (answer.get("page_size") or PAGE):
            break
    return list(entries.values())


# --- types and prices -------------------------------------------------------------------------------------------------


ADDRESS_USD = 0.0067  # USD per hour of a public address, from the price list of November 2026
SPOT = "-spot"  # ends the names of spot flavors, and of their GPUs
# GPU -> GB of its memory, for GPUs whose flavor does not name the memory.
_MEMORY_GB = {"A40": 48, "B200": 180, "B300": 268, "L40": 48, "L40S": 48, "RTXA4000": 16, "RTXA5000": 24}
_MEMORY_GB |= {"RTXA6000": 48, "RTXPRO6000": 96, "RTX4090": 24, "RTX5090": 32}


async def market(api: HttpApi, wanted: Iterable[str] | None, disk_gb: int) -> tuple[Catalogue, Mapping[str, str]]:
    """Return the catalogue of the ``wanted`` environments (None: all), and the region of each environment.

    The types in the catalogue have disks of at least ``disk_gb``.

    Raises:
        BadRequest: A wanted environment does not exist, or there are no environments at all.
        ProviderError: Hyperstack does not respond, or refuses.
    """
    there, book = await each_of(["/core/flavors", "/pricebook"], partial(api.call, "GET"))
    environments = await listed(api, "/core/environments", "environments")
    chosen = _chosen({str(each["name"]): str(each["region"]) for each in environments}, wanted)
    flavors = [each for group in there["data"] for each in group["flavors"]]
    return catalogue_of(flavors, book_of(book), chosen, disk_gb), chosen


def _chosen(regions: Mapping[str, str], wanted: Iterable[str] | None) -> Mapping[str, str]:
    missing = [each for each in wanted or () if each not in regions]
    if missing or not regions:
        there = f"it has {', '.join(sorted(regions))}" if regions else "it has none"
        what = f"no environment {missing[0]}" if missing else "no environment"
        raise BadRequest(f"the Hyperstack account has {what}: {there}; make one in Hyperstack's console")
    return {name: region for name, region in regions.items() if wanted is None or name in wanted}


def book_of(entries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the price of each item in the price list, in USD per hour, with discounts applied."""
    return {str(each["name"]): float(each["value"]) for each in entries if each.get("value") is not None}


def catalogue_of(
    flavors: Collection[Mapping[str, Any]], book: Mapping[str, float], regions: Mapping[str, str], disk_gb: int = 0
) -> Catalogue:
    """Return the catalogue of these environments. A type without a known price is in the catalogue, but not offered."""
    types: dict[str, InstanceType] = {}
    zones: dict[str, frozenset[str]] = {}
    spot: dict[tuple[str, str], float] = {}
    on_demand: dict[str, float] = {}
    stock: dict[tuple[str, str], str] = {}
    for each in flavors:
        here = frozenset(name for name, region in regions.items() if region == each["region_name"])
        if not here or each["disk"] < disk_gb:
            continue
        kind, usd = type_of(each), usd_of(each, book)
        types[kind.name], zones[kind.name] = kind, zones.get(kind.name, here) | here
        if usd is not None and kind.spot:
            spot |= {(kind.name, zone): usd for zone in here}
        elif usd is not None:
            on_demand[kind.name] = usd
        stock |= {(kind.name, zone): SOLD_OUT for zone in here if not each["stock_available"]}
    if not types:
        raise BadRequest(f"Hyperstack has no machine with a disk of {disk_gb} GB in {', '.join(sorted(regions))}")
    where = ", ".join(sorted({*regions.values()}))
    return Catalogue(VENDOR, where, types, zones, spot=spot, on_demand=on_demand, stock=stock)


def type_of(flavor: Mapping[str, Any]) -> InstanceType:
    name, gpu = str(flavor["name"]), str(flavor["gpu"] or "")
    accelerator, memory_gb = accelerator_of(gpu)
    interruptible = gpu.endswith(SPOT) or name.endswith(SPOT)
    return InstanceType(
        name,
        int(flavor["cpu"]),
        float(flavor["ram"]),
        "x86_64",
        accelerator=accelerator,
        accelerators=int(flavor["gpu_count"] or 0),
        accelerator_memory_gb=memory_gb,
        spot=interruptible,
        on_demand=not interruptible,
    )


def accelerator_of(gpu: str) -> tuple[str, float]:
    """Return the name and the memory (GB) of a GPU. ``H100-80G-PCIe-NVLink`` is an H100 with 80 GB,
    ``RTX-PRO6000-SE-spot`` an RTXPRO6000 with 96 GB.
    """
    words = gpu.removesuffix(SPOT).split("-")
    name = "".join(words[:2]) if words[0] == "RTX" else words[0]
    match = re.search(r"-(\d+)G\b", gpu)
    return name, float(match[1]) if match else float(_MEMORY_GB.get(name, 0))


def usd_of(flavor: Mapping[str, Any], book: Mapping[str, float]) -> float | None:
    """Return the price of a machine in USD per hour; None: it has no price. The price of a GPU includes processors and
    memory.
    """
    gpu = str(flavor["gpu"] or "")
    if gpu:
        return book[gpu] * int(flavor["gpu_count"]) if gpu in book else None
    vcpu, ram = book.get("vCPU (cpu-only-flavors)"), book.get("RAM (cpu-only-flavors)")
    return None if vcpu is None or ram is None else vcpu * int(flavor["cpu"]) + ram * float(flavor["ram"])
