"""Lambda's interface: address, rate limits, errors, the user's key, and machine types with prices and free capacity.

`VENDOR` has the names and error codes that the modules of `providers.cloud` need. No I/O except in `load_catalogue`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..base import Architecture, LaunchRequest
from ..cloud.account import ApiKeys
from ..cloud.calls import CallRefused, Meanings
from ..cloud.http import HttpApi, Service
from ..cloud.offers import SOLD_OUT, Catalogue, InstanceType
from ..cloud.provider import check_known
from ..cloud.vendor import Vendor
from ..errors import BadRequest, NoCapacity, NotAuthorized, QuotaExceeded

NO_ROOM = "instance-operations/launch/insufficient-capacity"
QUOTA = "global/quota-exceeded"
UNKNOWN = "global/object-does-not-exist"
PREEMPTED = "preempted"
USER = "ubuntu"  # the login name in all of Lambda's images

STILL_BILLED = (
    "Lambda bills a machine until it is terminated, also when it is powered off: if this program is killed, its "
    "machines stop working, and cost money until `outrider gc --apply` ends them"
)

VENDOR = Vendor(
    name="Lambda",
    service="Lambda",
    causes={PREEMPTED: "Lambda has taken it back", "unhealthy": "Lambda says that it is unhealthy"},
    interruptions=frozenset({PREEMPTED}),
    quotas=frozenset({QUOTA}),
    off_is_ended=False,
    price_advice="Lambda's list of types says none",
    warning=STILL_BILLED,
    user_data_bytes=1 << 20,  # bytes; "cannot exceed 1MB in size": InstanceLaunchRequest in Lambda Cloud API 1.10.0
)


# --- the interface ----------------------------------------------------------------------------------------------------


URL = "https://cloud.lambda.ai"
VERSION = "/api/v1"
KEY = "LAMBDA_API_KEY"
KEYS_PAGE = "https://cloud.lambda.ai/api-keys"
KEYS = ApiKeys(provider="Lambda", name="lambda", variable=KEY, page=KEYS_PAGE)
LAUNCH = "/instance-operations/launch"
# Lambda Cloud API 1.10.0 allows "one request per second", and for launches "one request every 12 seconds, or five
# requests per minute". Launches are 12.5 s apart, because requests may arrive closer together than they were sent.
LIMITS = {"calls": (1.0, 1.0), "launches": (1.0, 1 / 12.5)}
CAPACITY_AGAIN_S = 30.0

MEANINGS: Meanings = (
    (NotAuthorized, {
        "global/invalid-api-key": f"Lambda does not accept the API key: make one at {KEYS_PAGE}, and set {KEY} to it",
        "global/account-inactive": "the Lambda account is inactive: look into it at https://cloud.lambda.ai",
        "global/invalid-address": "Lambda has no valid billing address: give one at https://cloud.lambda.ai",
    }),
    (QuotaExceeded, {QUOTA: "a quota of the Lambda account is used up: ask Lambda's support for more"}),
    (NoCapacity, {NO_ROOM: "Lambda has no such machine left there now"}),
    (BadRequest, {
        "instance-operations/launch/file-system-in-wrong-region":
            "a file system is in another region than the machine: give Lambda(regions=[...]) of the file system",
        "global/invalid-parameters": "Lambda does not take this request as it is",
    }),
    (CallRefused, {
        UNKNOWN: "Lambda does not know what was asked for",
        "global/duplicate": "Lambda has such a thing already",
    }),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of Lambda's interface. ``endpoint_url``: another address than Lambda's, without the
    version.
    """
    return Service(
        name="Lambda",
        extra="lambda",
        base_url=f"{(endpoint_url or URL).rstrip('/')}{VERSION}",
        limits=LIMITS,
        limits_of=lambda method, path: ("launches", "calls") if (method, path) == ("POST", LAUNCH) else ("calls",),
        meanings=MEANINGS,
        again_after_s={NO_ROOM: CAPACITY_AGAIN_S},
        credentials=f"set {KEY} to a key of {KEYS_PAGE}",
    )


# --- types and prices -------------------------------------------------------------------------------------------------


# From PublicRegionCode in Lambda Cloud API 1.10.0; a region that is not in this list is accepted while it has capacity.
REGIONS = (
    "asia-northeast-1", "asia-northeast-2", "asia-south-1", "australia-east-1", "europe-central-1", "me-west-1",
    "us-east-1", "us-east-2", "us-east-3", "us-midwest-1", "us-midwest-2", "us-south-1", "us-south-2", "us-south-3",
    "us-west-1", "us-west-2", "us-west-3",
)  # fmt: skip
WHERE = "its regions"  # for error texts that say where machines are: a pool may use several regions
NOWHERE = "no region"  # used as the zone of a type that is sold out in all regions
ROOM = "some"  # used as the stock of a type that has capacity, because Lambda does not report how many machines
# NVIDIA's GH and GB types have Grace processors, whose architecture is ARM.
_ARM = re.compile(r"G[HB]\d+", re.IGNORECASE)
# Matches Lambda's description of a GPU, such as "A100 (40 GB SXM4)".
_GPU = re.compile(r"(?:NVIDIA )?(.+?)\s*\((\d+) ?GB")
_NAMES = {"RTX 6000": "RTX6000", "A6000": "RTXA6000"}  # Lambda's name of a GPU -> its name in `outrider.accelerators`


async def load_catalogue(api: HttpApi, request: LaunchRequest, regions: Collection[str] | None) -> Catalogue:
    """Query Lambda for its machine types. ``regions``: search only these; None: all.

    Raises:
        BadRequest: There is no such region, or no type of this kind.
        ProviderError: Lambda does not respond.
    """
    return catalogue(api.part(await api.call("GET", "/instance-types"), dict, "data"), request, regions)


def catalogue(listed: Mapping[str, Any], request: LaunchRequest, regions: Collection[str] | None) -> Catalogue:
    """Return the catalogue for a response. A type without capacity in the ``regions`` (None: all) is in it as sold out.

    Raises:
        BadRequest: There is no such region, or no type with so large a disk; or the request is for spot machines.
    """
    if request.allocation == "spot":
        raise BadRequest("Lambda sells no spot machines: use allocation='on-demand', or 'spot-if-available'")
    types: dict[str, InstanceType] = {}
    prices: dict[str, float] = {}
    room: dict[str, frozenset[str]] = {}
    disks: dict[str, int] = {}
    for name, entry in listed.items():
        what = entry["instance_type"]
        types[name], prices[name] = _type(name, what), what["price_cents_per_hour"] / 100
        room[name] = frozenset(region["name"] for region in entry["regions_with_capacity_available"])
        disks[name] = int(what["specs"].get("storage_gib", 0))
    check_known("Lambda", "region", regions or (), {*REGIONS, *frozenset().union(*room.values())})
    fitting = {name: each for name, each in types.items() if disks[name] >= request.disk_gb}
    if types and not fitting:
        raise BadRequest(f"disk_gb={request.disk_gb} is more than any type of Lambda has: {max(disks.values())}")
    zones = {name: room[name] | frozenset(regions or (() if room[name] else (NOWHERE,))) for name in fitting}
    stock = {(name, zone): ROOM if zone in room[name] else SOLD_OUT for name, there in zones.items() for zone in there}
    return Catalogue(VENDOR, WHERE, fitting, zones, on_demand=prices, stock=stock)


def _type(name: str, what: Mapping[str, Any]) -> InstanceType:
    specs, gpu = what["specs"], _GPU.match(what.get("gpu_description", ""))
    model = "" if gpu is None else _NAMES.get(gpu[1], gpu[1].replace(" ", ""))
    arm = what.get("architecture") == "arm64" or ("architecture" not in what and _ARM.match(model) is not None)
    architecture: Architecture = "arm64" if arm else "x86_64"
    return InstanceType(
        name,
        specs["vcpus"],
        specs["memory_gib"],
        architecture,
        accelerator=model,
        accelerators=specs["gpus"] if model else 0,
        accelerator_memory_gb=0.0 if gpu is None else float(gpu[2]),
        on_demand=True,
    )
