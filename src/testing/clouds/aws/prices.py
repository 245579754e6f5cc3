"""Prices: invented but plausible, equal for equal seeds, and close to EC2's where that is easy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from .behaviour import Behaviour
from .call import CloudCall
from .filters import Facts, chosen, page
from .instance_types import catalogue, known, vcpus, zones
from .protocol import Answer

GPU_USD = {
    "T4": 0.35,
    "T4g": 0.3,
    "A10G": 0.75,
    "L4": 0.6,
    "L40S": 1.4,
    "V100": 2.6,
    "A100": 3.2,
    "H100": 9.0,
    "H200": 10.0,
}
VCPU_USD, ARM_VCPU_USD, GIB_USD, OTHER_USD = 0.035, 0.028, 0.0035, 1.0
HISTORY_S = 6 * 3600.0  # seconds for which a price is valid


def on_demand(behaviour: Behaviour, region: str, type_name: str) -> float:
    """Return USD per hour on demand."""
    usd = behaviour.on_demand_usd.get(type_name)
    if usd is not None:
        return usd
    data = known(behaviour.types, region, type_name)
    gpus = data.get("GpuInfo", {}).get("Gpus", ())
    chips = sum(each["Count"] * GPU_USD.get(each["Name"], OTHER_USD) for each in gpus)
    chips += OTHER_USD * sum(each["Count"] for each in data.get("InferenceAcceleratorInfo", {}).get("Accelerators", ()))
    arm = "arm64" in data["ProcessorInfo"]["SupportedArchitectures"]
    rest = vcpus(data) * (ARM_VCPU_USD if arm else VCPU_USD) + data["MemoryInfo"]["SizeInMiB"] / 1024 * GIB_USD
    return round(float(chips + rest * (0.6 if data.get("BurstablePerformanceSupported") else 1.0)), 4)


def spot(behaviour: Behaviour, region: str, zone: str, type_name: str, period: int = 0) -> float:
    """Return USD per hour for spot, ``period`` periods ago."""
    usd = behaviour.spot_usd.get(f"{type_name} {zone}", behaviour.spot_usd.get(type_name))
    if usd is not None:
        return usd
    share = Random(f"{behaviour.seed} {type_name} {zone}").uniform(0.25, 0.6)  # noqa: S311 - reproducible by its seed
    drift = Random(f"{behaviour.seed} {type_name} {zone} {period}").uniform(0.97, 1.03) if period else 1.0  # noqa: S311
    return round(on_demand(behaviour, region, type_name) * share * drift, 4)


def describe_spot_price_history(call: CloudCall) -> Answer:
    """Return one price every 6 hours, the newest first; the oldest one was valid at the requested start."""
    state, ask, region = call.region.state, call.ask, call.region.name
    types, places = catalogue(state.behaviour.types), zones(region)
    names = [name for name in ask.get("InstanceTypes") or types if name in types and name in places]
    now = state.clock.date()
    since, until = ask.get("StartTime") or now - timedelta(days=90), ask.get("EndTime") or now
    since, until = (each if each.tzinfo else each.replace(tzinfo=UTC) for each in (since, until))
    pools = [
        (name, zone) for name in names for zone in sorted(places[name]) if ask.get("AvailabilityZone", zone) == zone
    ]
    pools = [pool for pool in chosen(pools, ask.get("Filters"), _FACTS) if _spot_sold(types[pool[0]])]
    products = ask.get("ProductDescriptions")
    product = next((each for each in products or _PRODUCTS if each in _PRODUCTS), None)
    periods = list(_periods(now, since, until))
    shown, following = page(range(len(pools) * len(periods) if product else 0), ask)
    history = [
        {
            "AvailabilityZone": zone,
            "InstanceType": name,
            "ProductDescription": product,
            "SpotPrice": f"{spot(state.behaviour, region, zone, name, period):.6f}",
            "Timestamp": at,
        }
        for place in shown
        for (name, zone), (period, at) in [(pools[place // len(periods)], periods[place % len(periods)])]
    ]
    return {"SpotPriceHistory": history, "NextToken": following or ""}


_PRODUCTS = ["Linux/UNIX", "Linux/UNIX (Amazon VPC)"]


_FACTS: Facts[tuple[str, str]] = {
    "instance-type": lambda pool: [pool[0]],
    "availability-zone": lambda pool: [pool[1]],
    "product-description": lambda _: _PRODUCTS,
}


def _spot_sold(data: Mapping[str, Any]) -> bool:
    return "spot" in data["SupportedUsageClasses"]


def _periods(now: datetime, since: datetime, until: datetime) -> Iterator[tuple[int, datetime]]:
    """Yield (periods ago, start of the period), the newest first; the oldest one was valid at ``since``."""
    began = now - timedelta(seconds=now.timestamp() % HISTORY_S)
    for period in range(4 * 90):
        at = began - timedelta(seconds=period * HISTORY_S)
        if at <= until or period == 0:
            yield period, at
        if at <= since:
            return


ACTIONS = {"DescribeSpotPriceHistory": describe_spot_price_history}
