"""RunPod's interface, REST v2: address, rate limits, errors, the user's key, GPUs and CPU flavors with prices and
stock.

`VENDOR` has the names and error codes that the modules of `providers.cloud` need. No I/O except in `load_catalogue`.

A pod has exactly the requested number of GPUs, and at least the requested processors and memory. So each type here is a
GPU model together with the number of GPUs in the request.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any

from ..base import LaunchRequest
from ..cloud.account import ApiKeys
from ..cloud.calls import CallRefused, Meanings
from ..cloud.http import HttpApi, Service
from ..cloud.offers import LEAST_MEMORY_GB, LEAST_VCPUS, SOLD_OUT, Catalogue, InstanceType
from ..cloud.provider import check_known
from ..cloud.vendor import Vendor
from ..errors import BadRequest, NoCapacity, NotAuthorized, QuotaExceeded

NO_ROOM = "no-instances"  # a code of Outrider's own, because RunPod's errors have only a status and a message
LIMIT = "limit"  # Outrider's own error code for a limit of the RunPod account
UNKNOWN = "HTTP 404"
NO_ACCESS = "HTTP 403"
NOT_TAKEN = "HTTP 400"
EXITED = "EXITED"
ERROR = "ERROR"

VENDOR = Vendor(
    name="RunPod",
    service="RunPod",
    causes={
        EXITED: "its container was stopped, as RunPod does where the account has no balance left",
        ERROR: "RunPod says that its container is in an error that it does not recover from",
    },
    quotas=frozenset({LIMIT}),
    # A pod ends itself by a call to RunPod, which RunPod may refuse: error texts must not promise that the pod ends.
    off_is_ended=False,
    price_advice="RunPod's catalogue says none",
)
# `VENDOR` with a further warning, for pools of several nodes that cannot use RunPod's private network.
APART = replace(
    VENDOR,
    warning_of_several="these pods of RunPod's reach each other at no port: only those with GPUs in the secure cloud "
    "have a network of their own: frameworks that connect the ranks of several nodes, such as torch, do not work there",
)


# --- the interface ----------------------------------------------------------------------------------------------------


URL = "https://api.runpod.io"
VERSION = "/v2"
KEY = "RUNPOD_API_KEY"
KEYS = ApiKeys(provider="RunPod", name="runpod", variable=KEY, page="https://console.runpod.io/user/settings")
PODS = "/pods"
# RunPod allows 60 requests a minute, 3,000 an hour and 50,000 a day: header RateLimit-Policy in its documentation.
LIMITS = {"calls": (20.0, 0.65)}
CAPACITY_AGAIN_S = 30.0
# RunPod reports missing capacity with status 400, the message "There are no longer any instances available with the
# requested specifications." and no documented code. The other patterns cover similar messages.
_NO_ROOM = re.compile(
    r"instances? (currently )?available|out of (stock|capacity)|not have the resources"
    r"|(no|not enough|insufficient) (free |gpu )?(capacity|gpus)",
    re.IGNORECASE,
)
_LIMIT = re.compile(r"\bquota\b|(spend|spending|rental|pod|account) limit|limit (of|on) .*pods", re.IGNORECASE)

MEANINGS: Meanings = (
    (NotAuthorized, {
        "HTTP 401": f"RunPod does not accept the API key: make one at {KEYS.page}, and set {KEY} to it",
        "HTTP 402":
            "the RunPod account has no balance left: add credits at https://console.runpod.io/user/billing",
    }),
    (QuotaExceeded, {LIMIT: "a limit of the RunPod account is reached: ask RunPod's support for more"}),
    (NoCapacity, {NO_ROOM: "RunPod has no such machine left there now"}),
    (CallRefused, {UNKNOWN: "RunPod does not know what was asked for"}),
)  # fmt: skip


def service(endpoint_url: str | None) -> Service:
    """Return the description of RunPod's interface. ``endpoint_url``: another address than RunPod's, without the
    version.
    """
    return Service(
        name="RunPod",
        extra="runpod",
        base_url=f"{base(endpoint_url)}{VERSION}",
        limits=LIMITS,
        limits_of=lambda method, path: ("calls",),  # noqa: ARG005
        meanings=MEANINGS,
        again_after_s={NO_ROOM: CAPACITY_AGAIN_S},
        words_of=words_of,
        credentials=f"set {KEY} to a key of {KEYS.page}",
    )


def base(endpoint_url: str | None) -> str:
    return (endpoint_url or URL).rstrip("/")


def words_of(body: object) -> tuple[str, str]:
    """Return code and message of an error response (RFC 9457). The code is one of Outrider's; empty: use the HTTP
    status.
    """
    if not isinstance(body, Mapping):
        return "", ""
    errors = body.get("errors")
    listed = [each for each in errors if isinstance(each, str)] if isinstance(errors, list) else []
    message = " ".join([str(body.get("detail") or body.get("title") or ""), *listed])
    refused = body.get("status") in {400, 403}
    code = NO_ROOM if refused and _NO_ROOM.search(message) else LIMIT if refused and _LIMIT.search(message) else ""
    return code, message


# --- types and prices -------------------------------------------------------------------------------------------------


WHERE = "its data centers"  # for error texts that say where machines are: they name no single data center
NOWHERE = "no data center"  # used as the zone of a type that is sold out in all data centers
ANYWHERE = "any data center"  # used as the zone of a type that is in stock, if RunPod names no data center for it
# NVIDIA's GH and GB types have Grace processors, whose architecture is ARM.
_ARM = re.compile(r"G[HB]\d+", re.IGNORECASE)
# Words in RunPod's name of a GPU that are not part of the model: "A100 SXM" and "RTX PRO 6000 WK" are the models A100
# and RTXPRO6000.
_FORM = re.compile(
    r"\b(NVIDIA|AMD|Instinct|GeForce|Tesla|PCIe|SXM\d*|NVL|HBM\w*|OAM|SFF|WK|SE|MaxQ|Max-Q)\b", re.IGNORECASE
)


async def load_catalogue(
    api: HttpApi,
    request: LaunchRequest,
    *,
    cloud: str,
    data_centers: Collection[str] | None,
    instance_types: Collection[str] | None,
) -> Catalogue:
    """Query RunPod for the GPUs or CPU flavors that fit the request. ``cloud``: ``"SECURE"`` or ``"COMMUNITY"``.

    Raises:
        BadRequest: There is no such data center, or RunPod has no type of this kind.
        ProviderError: RunPod does not respond.
    """
    if request.allocation == "spot":
        reason = "RunPod's interface v2 sells no spot pods"
        raise BadRequest(f"{reason}: use allocation='on-demand', or 'spot-if-available'")
    wanted = {"include": "AVAILABILITY", "product": "POD"}
    gpus: Sequence[Mapping[str, Any]] = ()
    cpus: Sequence[Mapping[str, Any]] = ()
    if request.accelerator is not None or instance_types is not None:
        count = {"count": str(request.accelerator.count if request.accelerator else 1), "cloud": cloud}
        gpus = api.part(await api.call("GET", "/catalog/gpus", params=wanted | count), list, "gpus")
    # The catalogue has no prices of CPU pods in the community cloud.
    if request.accelerator is None and cloud == "SECURE":
        cpus = api.part(await api.call("GET", "/catalog/cpus", params=wanted), list, "cpus")
    centers: Sequence[Mapping[str, Any]] = ()
    if data_centers is not None or networked(request, cloud):
        centers = api.part(await api.call("GET", "/catalog/datacenters"), list, "dataCenters")
        check_known("RunPod", "data center", data_centers or (), [each["id"] for each in centers])
    among = {each["id"] for each in centers if each["globalNetwork"]} if networked(request, cloud) else None
    return catalogue(gpus, cpus, request, cloud, data_centers=data_centers, among=among)


def networked(request: LaunchRequest, cloud: str) -> bool:
    """Return whether the pods get a private network: several nodes with GPUs, in the secure cloud."""
    return request.nodes > 1 and request.accelerator is not None and cloud == "SECURE"


def catalogue(
    gpus: Sequence[Mapping[str, Any]],
    cpus: Sequence[Mapping[str, Any]],
    request: LaunchRequest,
    cloud: str,
    *,
    data_centers: Collection[str] | None = None,
    among: Collection[str] | None = None,
) -> Catalogue:
    """Return the catalogue made from the lists of GPUs and CPU flavors.

    ``data_centers``: those that the user has chosen; None: all. ``among``: those that have a private network; None: no
    network is needed.
    """
    types: dict[str, InstanceType] = {}
    prices: dict[str, float] = {}
    stock: dict[tuple[str, str], str] = {}
    for each in [*gpus, *cpus]:
        priced = _gpu(each, request, cloud.lower()) if "manufacturer" in each else _cpu(each, request)
        if priced is not None:
            types[priced[0].name], prices[priced[0].name] = priced
            stock |= {(priced[0].name, zone): level for zone, level in _stock(each, data_centers, among).items()}
    zones = {name: frozenset(zone for each, zone in stock if each == name) for name in types}
    return Catalogue(VENDOR, WHERE, types, zones, on_demand=prices, stock=stock)


def _gpu(gpu: Mapping[str, Any], request: LaunchRequest, cloud: str) -> tuple[InstanceType, float] | None:
    """Return the GPU type for the request, with its price per hour. None: this ``cloud`` does not sell the GPU, even if
    it lists a price.
    """
    if not gpu[cloud] or not gpu["price"][cloud] or gpu["manufacturer"] == "UNKNOWN":
        return None
    wanted = request.accelerator.count if request.accelerator else 1
    count = min(wanted, gpu["maxCount"][cloud]) or wanted
    model = model_of(gpu["name"])
    kind = InstanceType(
        gpu["id"],
        request.vcpus,
        request.memory_gb,
        "arm64" if _ARM.match(model) else "x86_64",
        accelerator=model,
        accelerators=count,
        accelerator_memory_gb=float(gpu["memory"]),
        on_demand=True,
    )
    return kind, gpu["price"][cloud] * count


def model_of(name: str) -> str:
    """Return Outrider's name of a GPU, as in `outrider.accelerators`. ``name``: RunPod's name of the GPU."""
    return "".join(_FORM.sub(" ", name).split())


def _cpu(cpu: Mapping[str, Any], request: LaunchRequest) -> tuple[InstanceType, float]:
    """Return a CPU flavor as a type. Its vCPUs are those of the request, rounded up to a power of two; its memory is
    proportional to them.
    """
    memory_gb, per_vcpu = max(request.memory_gb, LEAST_MEMORY_GB), cpu["ramGbPerVcpu"]
    least = max(request.vcpus, LEAST_VCPUS, cpu["vcpu"]["min"], ceil(memory_gb / per_vcpu))
    vcpus = min(1 << (least - 1).bit_length(), cpu["vcpu"]["max"])
    kind = InstanceType(cpu["id"], vcpus, vcpus * per_vcpu, "x86_64", on_demand=True)
    return kind, vcpus * cpu["price"]["securePerVcpu"]


def _stock(entry: Mapping[str, Any], wanted: Collection[str] | None, among: Collection[str] | None) -> dict[str, str]:
    """Return the stock of a type: data center -> RunPod's word for the stock. A type that is sold out also has an
    entry.
    """
    overall = entry.get("availability", "NONE").lower()
    levels = {each["id"]: each["availability"].lower() for each in entry.get("dataCenters") or ()}
    if not levels and overall != SOLD_OUT and wanted is None and among is None:
        return {ANYWHERE: overall}
    levels = {zone: level for zone, level in levels.items() if among is None or zone in among}
    return dict.fromkeys(wanted or (() if levels else (NOWHERE,)), SOLD_OUT) | levels
