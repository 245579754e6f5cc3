"""Decide whether EC2 has another machine: capacity by type, zone and market, and quotas of vCPUs."""

from __future__ import annotations

from collections.abc import Sequence

from ....lazy_dataclass import dataclass
from .faults import Market, NoCapacity, Quota
from .instance_types import known, quota_code, vcpus, zones
from .prices import spot
from .protocol import EC2Error
from .state import Region


@dataclass(frozen=True, slots=True)
class Pool:
    """A capacity pool: the source of one kind of machine."""

    type: str
    zone: str
    market: Market


def check(region: Region, pool: Pool, planned: Sequence[Pool], max_usd: float | None = None) -> None:
    """Check that there is one more machine, in addition to living and planned ones.

    Raises:
        EC2Error: No such machine is available.
    """
    state = region.state
    size = vcpus(known(state.behaviour.types, region.name, pool.type))
    if pool.zone not in zones(region.name)[pool.type]:
        raise _not_there(region, pool)
    if pool.market == "spot" and max_usd is not None:
        price = spot(state.behaviour, region.name, pool.zone, pool.type)
        if max_usd < price:
            words = (
                f"Your Spot request price of {max_usd} is lower than the minimum required Spot request fulfillment "
                f"price of {price}."
            )
            raise EC2Error("SpotMaxPriceTooLow", words)
    taken = [Pool(each.type, each.zone, each.market) for each in region.living()] + list(planned)
    _check_quota(region, pool, size, taken)
    for fault in state.faults.of(NoCapacity):
        limit = (fault.type, fault.zone, fault.market)
        full = sum(_covers(limit, each) for each in taken) >= fault.machines
        if _covers(limit, pool) and full and state.faults.happens(fault):
            raise no_capacity(region, pool)


def _covers(limit: tuple[str | None, str | None, str | None], pool: Pool) -> bool:
    return all(
        wanted in (None, actual) for wanted, actual in zip(limit, (pool.type, pool.zone, pool.market), strict=True)
    )


def _check_quota(region: Region, pool: Pool, size: int, taken: Sequence[Pool]) -> None:
    state, code = region.state, quota_code(pool.type, pool.market)
    limits = [(fault.vcpus, fault) for fault in state.faults.of(Quota) if fault.code == code]
    used = sum(
        vcpus(known(state.behaviour.types, region.name, each.type))
        for each in taken
        if quota_code(each.type, each.market) == code
    )
    for limit, fault in limits:
        if used + size > limit and state.faults.happens(fault):
            raise _over_quota(pool, limit)
    if used + size > state.behaviour.quotas.get(code, used + size):
        raise _over_quota(pool, state.behaviour.quotas[code])


def _over_quota(pool: Pool, limit: int) -> EC2Error:
    if pool.market == "spot":
        return EC2Error("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    words = (
        f"You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance bucket "
        "that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to "
        "request an adjustment to this limit."
    )
    return EC2Error("VcpuLimitExceeded", words)


def no_capacity(region: Region, pool: Pool) -> EC2Error:
    if pool.market == "spot":
        words = "There is no Spot capacity available that matches your request."
    else:
        words = (
            f"We currently do not have sufficient {pool.type} capacity in the Availability Zone you requested "
            f"({pool.zone}). Our system will be working on provisioning additional capacity. You can currently get "
            f"{pool.type} capacity by not specifying an Availability Zone in your request or choosing "
            f"{_others(region, pool)}."
        )
    return EC2Error("InsufficientInstanceCapacity", words, 500)


def _not_there(region: Region, pool: Pool) -> EC2Error:
    words = (
        f"Your requested instance type ({pool.type}) is not supported in your requested Availability Zone "
        f"({pool.zone}). Please retry your request by not specifying an Availability Zone or choosing "
        f"{_others(region, pool)}."
    )
    return EC2Error("Unsupported", words)


def _others(region: Region, pool: Pool) -> str:
    return ", ".join(sorted(zones(region.name)[pool.type] - {pool.zone}))
