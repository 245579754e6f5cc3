"""The clouds that `outrider ps` and `outrider gc` ask: which pools there are in a place, and that one of them ends."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import anyio

from ...providers.errors import ProviderError
from ...providers.journal import Journal, PoolRecord
from ...providers.owners import Place
from .leftovers import Asked, MachineLeft, Seen

if TYPE_CHECKING:
    from ...providers.aws.api import Api
    from ...providers.aws.teardown import PoolSeen

AT_A_TIME = 8  # places


class Cloud(Protocol):
    """One kind of provider whose machines outlive a client."""

    async def survey(self, place: Place) -> Sequence[Seen]:
        """Every pool of which there is anything.

        Raises:
            ProviderError
        """
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal) -> Sequence[str]:
        """End all of the pool there, confirmed, and settle it; what it was.

        Raises:
            ProviderError: something may be left.
        """
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """All places that can be reached as this one is.

        Raises:
            ProviderError
        """
        ...


class AWSCloud:
    """Amazon EC2. A place has a region, and maybe an endpoint_url and a profile."""

    async def survey(self, place: Place) -> Sequence[Seen]:
        from ...providers.aws.teardown import survey

        async with _api(place) as api:
            pools = await survey(api)
            prices = await _prices(api, pools)
        return [_seen(pool, prices) for pool in pools]

    async def sweep(self, place: Place, pool: str, journal: Journal) -> Sequence[str]:
        from ...providers.aws.teardown import sweep

        async with _api(place) as api:
            swept = await sweep(api, pool, journal=journal)
        return [*swept.machines, *swept.templates, *swept.placement_groups, *swept.security_groups]

    async def everywhere(self, place: Place) -> Sequence[Place]:

        async with _api(place) as api:
            answer = await api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


CLOUDS: Mapping[str, Cloud] = {"aws": AWSCloud()}


async def ask(records: Sequence[PoolRecord], places: Sequence[Place], *, everywhere: Place | None) -> list[Asked]:
    """Each place that the journal knows, and those: all at the same time. ``everywhere``: as that one is reached."""
    wanted: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, Place]] = {}
    errors: list[Asked] = []
    known = [(record.provider or "aws", place) for record in records for place in record.places]
    given: list[Place] = list(places)
    if everywhere is not None:
        try:
            given += await CLOUDS["aws"].everywhere(everywhere)
        except ProviderError as error:
            errors.append(Asked("aws", everywhere, error=str(error)))
    for provider, place in [*known, *(("aws", place) for place in given)]:
        wanted[provider, tuple(sorted(place.items()))] = (provider, place)
    limit, answers = anyio.Semaphore(AT_A_TIME), errors

    async def one(provider: str, place: Place) -> None:
        async with limit:
            answers.append(await _ask(provider, place))

    async with anyio.create_task_group() as tasks:
        for provider, place in wanted.values():
            tasks.start_soon(one, provider, place)
    return answers


async def _ask(provider: str, place: Place) -> Asked:
    cloud = CLOUDS.get(provider)
    if cloud is None:
        return Asked(provider, place, error=f"nobody here knows how to ask {provider}")
    try:
        return Asked(provider, place, tuple(await cloud.survey(place)))
    except ProviderError as error:
        return Asked(provider, place, error=str(error))


def _api(place: Place) -> AbstractAsyncContextManager[Api]:
    from ...providers.aws.api import Api

    region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
    return Api.open(region=region, endpoint_url=endpoint_url, profile=profile)


async def _prices(api: Api, pools: Sequence[PoolSeen]) -> dict[tuple[str, str], float]:
    """USD per hour, by type and by zone for spot or ``""`` on demand. For people: without them all else is shown."""
    from ...providers.aws import prices

    machines = [machine for pool in pools for machine in pool.machines]
    found: dict[tuple[str, str], float] = {}
    with suppress(ProviderError):
        on_demand = sorted({machine.type for machine in machines if machine.market != "spot"})
        if on_demand:
            kept = prices.cache_file(api.region)
            said = await prices.on_demand(api, on_demand, now=time.time(), kept=kept)
            found |= {(kind, ""): usd for kind, usd in said.items()}
        spot = sorted({machine.type for machine in machines if machine.market == "spot"})
        if spot:
            history = await api.pages(
                "describe_spot_price_history",
                "SpotPriceHistory",
                InstanceTypes=spot,
                ProductDescriptions=["Linux/UNIX"],
                StartTime=datetime.now(UTC),
            )
            found |= {(each["InstanceType"], each["AvailabilityZone"]): float(each["SpotPrice"]) for each in history}
    return found


def _seen(pool: PoolSeen, prices: Mapping[tuple[str, str], float]) -> Seen:
    machines = tuple(
        MachineLeft(
            machine.id,
            machine.type,
            machine.market,
            machine.zone,
            machine.state,
            machine.launched_at.timestamp(),
            machine.address,
            prices.get((machine.type, machine.zone if machine.market == "spot" else "")),
        )
        for machine in pool.machines
    )
    return Seen(pool.name, pool.owner, machines, (*pool.security_groups, *pool.templates, *pool.placement_groups))
