"""A region's catalogue: EC2's instance types, their zones and prices; and `VENDOR`, EC2's names and error codes.

`load` reads types, zones and spot prices from EC2. On-demand prices are from a bundled table, and from AWS's own price
list if it responds: see decision 20.

The table (``prices.json``) has the prices in us-east-1. For other regions it has a family's price relative to
us-east-1, which all sizes of the family share. The table has one size of each general-purpose family; the prices of
other sizes are proportional.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import time
from typing import Any, Final, get_args

from ..base import Architecture, LaunchRequest
from ..cloud import caching
from ..cloud.caching import Price, bundled_table, cheapest_first, kept_for
from ..cloud.calls import every_page
from ..cloud.offers import LEAST_VCPUS, SPAN, Catalogue, InstanceType, suitable
from ..cloud.vendor import Vendor
from ..shared.paths import cache_root
from ..shared.side_by_side import all_of
from .api import Api, page_of
from .errors import OF_VCPUS
from .tags import batches, where


def regions_with(accelerator: str) -> list[str]:
    """Return the regions with types that have the accelerator, according to the table; the lowest prices first."""
    families = bundled_table(__file__)["families"].values()
    having = [each for each in families if each.get("accelerator", "").lower() == accelerator.lower()]
    return cheapest_first(price for each in having for price in each["regions"].items())


VENDOR = Vendor(
    name="AWS",
    service="EC2",
    # "StateReason" in the EC2 API Reference, and "Troubleshoot instance launch issues" in the EC2 user guide
    causes={
        "Server.SpotInstanceTermination": "spot interruption",
        "Server.SpotInstanceShutdown": "spot interruption",
        "Server.InsufficientInstanceCapacity": "EC2 had no capacity to start it after all",
        "Server.InternalError": "EC2 failed to start it",
        "Server.ScheduledStop": "EC2 retired its host",
        "Client.InstanceInitiatedShutdown": "powered itself off: its lease ran out or its task shut it down",
        "Client.InstanceTerminated": "somebody else terminated it",
        "Client.InternalError": "it could not start; may the account use the key that encrypts its volume?",
        "Client.UserInitiatedShutdown": "somebody else terminated it",
        "Client.UserInitiatedHibernate": "somebody else stopped it",
        "Client.VolumeLimitExceeded": "the account's limit for EBS volumes is reached",
    },
    interruptions=frozenset({
        "Server.SpotInstanceTermination", "Server.SpotInstanceShutdown", "Server.InsufficientInstanceCapacity"
    }),
    quotas=OF_VCPUS,
    # Permanent failures: the type is not sold to this account in that zone, or the account's owner must request it.
    lasting=frozenset({"Unsupported", "InstanceTypeNotSupported", "InvalidAvailabilityZone", "OptInRequired"}),
    general_purpose=("m", "c", "r"),
    price_advice="allow pricing:GetProducts",
    usual_zone=lambda region, zone: zone.startswith(region) and len(zone) == len(region) + 1,  # excludes local zones
    regions_with=regions_with,
)  # fmt: skip


# --- types and zones --------------------------------------------------------------------------------------------------


TYPES_S: Final = 600.0  # seconds for which types and their zones are cached
SPOT_S: Final = 60.0  # seconds for which spot prices are cached; they change a few times a day
# Largest error of this computer's clock; more than five minutes invalidate every signature.
CLOCK_AHEAD: Final = timedelta(minutes=10)
TYPES_AT_MOST: Final = 100  # of the suitable types, only so many cheapest ones are used
# Name patterns of type families. Each tuple is read as one chain of pages; the chains are read concurrently.
ACCELERATED: Final = (("g*",), ("p*", "trn*", "inf*", "dl*", "f*", "vt*"))
GENERAL: Final = (("m*",), ("c*",), ("r*",), ("x*", "u*"))

# The numbers of vCPUs of EC2's machines.
VCPUS: Final = (1, 2, 4, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 48, 64, 72, 96, 128, 192, 224, 256, 384, 448, 896)

# EC2's device names that differ from Outrider's names by more than spaces.
NAMES: Final[Mapping[str, str]] = {
    "T4g": "T4G",
    "A100-80GB": "A100",
    "RTX PRO Server 6000": "RTXPRO6000",
    "Gaudi HL-205": "Gaudi",
    "HL-205": "Gaudi",
}


async def load(api: Api, request: LaunchRequest, *, instance_types: Collection[str] | None = None) -> Catalogue:
    """Return the part of the region's catalogue that this request can use. ``instance_types``: consider only these.

    Types, zones and on-demand prices are cached for 10 minutes, and spot prices for 1 minute. The whole process shares
    the cache, except with the user's own endpoint URL. Cancellation is safe.

    Raises:
        BadRequest: No type in the region fits the request.
        ProviderError: EC2 did not respond.
    """
    types = await _types(api, request, instance_types)
    names = _shortlist(suitable(request, types, VENDOR, api.region, instance_types), api.region)
    zones, spot, on_demand = await all_of(
        partial(_zones, api, names),
        partial(spot_prices, api, [] if request.allocation == "on-demand" else names),
        partial(on_demand_prices, api, [] if request.allocation == "spot" else names),
    )
    return Catalogue(VENDOR, api.region, {each.name: each for each in types}, zones, spot, on_demand)


def parse(answer: Mapping[str, Any]) -> InstanceType | None:
    """Parse an entry of DescribeInstanceTypes' ``InstanceTypes``. None: the type does not run Linux (a Mac)."""
    architectures = answer.get("ProcessorInfo", {}).get("SupportedArchitectures", ())
    architecture: Architecture | None = next((each for each in get_args(Architecture) if each in architectures), None)
    if architecture is None:
        return None
    name, usage = answer["InstanceType"], answer.get("SupportedUsageClasses", ())
    network = answer.get("NetworkInfo", {})
    return InstanceType(
        name=name,
        vcpus=answer["VCpuInfo"]["DefaultVCpus"],
        memory_gb=answer["MemoryInfo"]["SizeInMiB"] / 1024,
        architecture=architecture,
        **_accelerators(answer),
        network_gbps=_gbps(network),
        network_cards=network.get("MaximumNetworkCards", 1),
        interconnect="efa" if network.get("EfaSupported") else "",
        interconnect_cards=network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        cluster="cluster" in answer.get("PlacementGroupInfo", {}).get("SupportedStrategies", ()),
        spot="spot" in usage,
        on_demand="on-demand" in usage,
        nvme_gb=float(answer.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)),
        bare_metal=answer.get("BareMetal", False),
        # Flex types guarantee their vCPUs for 95 % of the time: "Flex instances", EC2 User Guide.
        burstable=answer.get("BurstablePerformanceSupported", False) or "-flex." in name,
        current=answer.get("CurrentGeneration", True),
    )


# --- parts of an answer -----------------------------------------------------------------------------------------------


def _accelerators(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the accelerators, which EC2 lists in five fields. FPGAs and media accelerators count, since they cost
    money.
    """
    places = (
        ("GpuInfo", "Gpus"),
        ("NeuronInfo", "NeuronDevices"),
        ("InferenceAcceleratorInfo", "Accelerators"),
        ("FpgaInfo", "Fpgas"),
        ("MediaAcceleratorInfo", "Accelerators"),
    )
    for place, key in places:
        for each in answer.get(place, {}).get(key, ()):
            share = each.get("GpuPartitionSize", 1.0)
            model = each.get("Name") or each.get("Manufacturer") or key
            return {
                "accelerator": NAMES.get(model, model.replace(" ", "")),
                "accelerators": each.get("LogicalGpuCount", 1) if share < 1 else each.get("Count", 1),
                "accelerator_memory_gb": each.get("MemoryInfo", {}).get("SizeInMiB", 0) / 1024,
                "accelerator_share": share,
            }
    return {}


def _gbps(network: Mapping[str, Any]) -> float:
    cards = network.get("NetworkCards", ())
    bandwidths = [card["BaselineBandwidthInGbps"] for card in cards if "BaselineBandwidthInGbps" in card]
    if bandwidths:
        return float(sum(bandwidths))
    words = network.get("NetworkPerformance", "")  # "4x 100 Gigabit", "Up to 10 Gigabit", "High"
    match = re.fullmatch(r"(?:(\d+)x )?(\d+(?:\.\d+)?) Gigabit", words)
    return float(match[1] or 1) * float(match[2]) if match else 0.0


# --- calls ------------------------------------------------------------------------------------------------------------


def _place(api: Api) -> Hashable:
    """Return the part of a cache key that depends on the region and the credentials.

    With the user's own endpoint URL, each `Api` object has another key, because a test server may get the port of an
    earlier one.
    """
    return api.region, api.profile, None if api.endpoint_url is None else id(api)


async def _types(api: Api, request: LaunchRequest, instance_types: Collection[str] | None) -> list[InstanceType]:
    """Describe the types concurrently, with one chain of pages for each tuple of name patterns."""
    if instance_types is not None:
        chains: Sequence[Sequence[str]] = batches(sorted(set(instance_types)))
        usual: list[dict[str, Any]] = []
    else:
        chains = ACCELERATED if request.accelerator is not None else GENERAL
        usual = [where("bare-metal", "false"), where("burstable-performance-supported", "false")]
        if request.accelerator is None:
            usual += [where("current-generation", "true"), *_sizes(request)]
    described = await all_of(*(partial(_described, api, names, usual) for names in chains))
    return sorted((each for types in described for each in types), key=lambda each: each.name)


@kept_for(TYPES_S, by=_place)
async def _described(api: Api, names: Sequence[str], usual: Sequence[dict[str, Any]]) -> list[InstanceType]:
    filters = [where("instance-type", *names), *usual]
    answers = await api.pages("describe_instance_types", "InstanceTypes", Filters=filters)
    return [each for each in map(parse, answers) if each is not None]


def _sizes(request: LaunchRequest) -> list[dict[str, Any]]:
    """Return a filter that leaves out the largest machines, which cost more than `SPAN` times the cheapest one.

    The filter saves time: parsing a page of 100 types takes 0.1 s, and there are nine pages without it.
    """
    if request.max_hourly_cost is not None:
        return []
    most = 2 * SPAN * max(request.vcpus, request.memory_gb / 8, LEAST_VCPUS)
    sizes = [str(vcpus) for vcpus in VCPUS if request.vcpus <= vcpus <= most]
    return [where("vcpu-info.default-vcpus", *sizes)] if sizes else []


@kept_for(TYPES_S, by=_place)
async def _zones(api: Api, names: Sequence[str]) -> dict[str, frozenset[str]]:
    zones_by_type: dict[str, set[str]] = {}
    for some in batches(names):
        for each in await api.pages(
            "describe_instance_type_offerings",
            "InstanceTypeOfferings",
            LocationType="availability-zone",
            Filters=[where("instance-type", *some)],
        ):
            zones_by_type.setdefault(each["InstanceType"], set()).add(each["Location"])
    return {name: frozenset(zones) for name, zones in zones_by_type.items()}


@kept_for(SPOT_S, by=_place)
async def spot_prices(api: Api, names: Sequence[str]) -> dict[tuple[str, str], float]:
    if not names:  # without names, EC2 would return all types
        return {}
    answers = await api.pages(
        "describe_spot_price_history",
        "SpotPriceHistory",
        InstanceTypes=list(names),
        ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
        StartTime=datetime.now(UTC) - CLOCK_AHEAD,  # returns the prices valid at that time, and all later changes
    )
    return latest(answers)


@kept_for(TYPES_S, by=_place)
async def on_demand_prices(api: Api, names: Sequence[str]) -> dict[str, float]:
    return await on_demand(api, names, now=time(), kept=cache_file(api.region))


def latest(history: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Return the latest price of each type and zone in DescribeSpotPriceHistory's answer, which is unordered."""
    # In the result, later changes replace earlier ones.
    changes = sorted(history, key=lambda each: (each["Timestamp"], float(each["SpotPrice"])))
    return {(each["InstanceType"], each["AvailabilityZone"]): float(each["SpotPrice"]) for each in changes}


def _shortlist(types: Sequence[InstanceType], region: str) -> list[str]:
    """Return the cheapest types on demand. Others are never chosen, so their zones and spot prices are not read."""
    known = {each.name: bundled(each.name, region) for each in types}
    unknown = max((price.usd for price in known.values() if price is not None), default=0.0)
    cost = {name: unknown if price is None else price.usd for name, price in known.items()}
    return sorted(sorted(cost, key=lambda name: (cost[name], name))[:TYPES_AT_MOST])


# --- on-demand prices -------------------------------------------------------------------------------------------------


PATIENCE_S: Final = 5.0
TYPES_IN_A_QUESTION: Final = 40  # types per query; a filter's value has at most 1024 characters
FRACTIONS_OF_LARGE: Final = {"nano": 1 / 16, "micro": 1 / 8, "small": 1 / 4, "medium": 1 / 2, "large": 1.0}


async def on_demand(api: Api, types: Collection[str], *, now: float, kept: Path | None = None) -> dict[str, float]:
    """Return USD per hour of these types in the API's region. Types without a known price are left out.

    Prices older than a month are requested again, and stored in the file ``kept``; prices from the user's own endpoint
    are not stored. If the price list does not respond in 5 s, or this account may not read it, old prices are used;
    nothing is raised. ``now``: seconds since 1970.
    """
    known = {name: price for name in types if (price := bundled(name, api.region)) is not None}
    return await caching.current_prices(
        types,
        known,
        partial(_ask, api),
        now=now,
        kept=kept if api.endpoint_url is None else None,
        at_a_time=TYPES_IN_A_QUESTION,
        patience_s=PATIENCE_S,
    )


def cache_file(region: str) -> Path:
    """Return the file that caches this region's prices between processes."""
    return cache_root() / "aws" / f"prices-{region}.json"


# --- the table --------------------------------------------------------------------------------------------------------


def bundled(type_: str, region: str) -> Price | None:
    """Return the price in the bundled table; None: not in the table."""
    table = bundled_table(__file__)
    family, _, size = type_.partition(".")
    entry = table["families"].get(family)
    if entry is None or region not in entry["regions"]:
        return None
    usd = entry["sizes"].get(size)
    if usd is None and "accelerator" not in entry and (times := _times_large(size)) is not None:
        usd = entry["sizes"]["large"] * times
    if usd is None:
        return None
    return Price(usd * entry["regions"][region], datetime.fromisoformat(table["as_of"]).replace(tzinfo=UTC).timestamp())


def _times_large(size: str) -> float | None:
    match = re.fullmatch(r"(\d*)xlarge", size)
    return 2.0 * int(match[1] or 1) if match else FRACTIONS_OF_LARGE.get(size)


# --- the price list ---------------------------------------------------------------------------------------------------


def question(types: Collection[str], region: str) -> dict[str, Any]:
    """Return the parameters of GetProducts: Linux on shared hardware, without licences, per hour."""
    wanted = {
        "regionCode": region,
        "operatingSystem": "Linux",
        "operation": "RunInstances",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "marketoption": "OnDemand",
    }
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]
    filters.append({"Type": "ANY_OF", "Field": "instanceType", "Value": ",".join(types)})
    return {"ServiceCode": "AmazonEC2", "FormatVersion": "aws_v1", "Filters": filters}


def understand(products: Iterable[str], region: str) -> dict[str, float]:
    """Parse GetProducts' answer, whose items are JSON texts, into USD per hour by type."""
    prices: dict[str, float] = {}
    for text in products:
        product = json.loads(text)
        attributes = product["product"]["attributes"]
        if attributes.get("regionCode") == region and attributes.get("tenancy") == "Shared":
            for usd in _hourly(product):
                name = attributes["instanceType"]
                prices[name] = max(usd, prices.get(name, 0.0))
    return prices


def _hourly(product: Mapping[str, Any]) -> Iterator[float]:
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            usd = float(dimension["pricePerUnit"].get("USD", 0))
            if dimension["unit"] == "Hrs" and usd > 0:
                yield usd


async def _ask(api: Api, types: Sequence[str]) -> dict[str, float]:
    query = question(types, api.region)

    async def page(token: str) -> tuple[Sequence[str], str]:
        answer = await api.call("get_products", service="pricing", **query, **page_of(token))
        return answer.get("PriceList", ()), answer.get("NextToken", "")

    return understand(await every_page(page), api.region)
