"""The clouds that `outrider ps` and `outrider gc` ask which pools exist, and where `gc` ends them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import anyio

from ...providers.errors import ProviderError
from ...providers.journal import Intent, Journal, PoolRecord
from ...providers.owners import Place
from .leftovers import MachineLeft, PlaceAnswer

if TYPE_CHECKING:
    from ...providers.aws.api import Api
    from ...providers.aws.listing import MachineSeen

AT_A_TIME = 8  # places that are asked concurrently


class Cloud(Protocol):
    """A kind of provider whose machines outlive their client."""

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags.

        Raises:
            ProviderError: the cloud did not answer, or refused.
        """
        ...

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal.

        ``lease_s``: the lease of its machines in seconds; None where it is unknown.

        Raises:
            ProviderError: something may be left; `NotGone` says what.
        """
        ...

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed.

        Raises:
            ProviderError: something may be left.
        """
        ...

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """All places (regions) that can be reached with the credentials of this one.

        Raises:
            ProviderError: the cloud did not answer, or refused.
        """
        ...


class AWSCloud:
    """Amazon EC2. A place has a region, and optionally an endpoint_url and a profile."""

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        from ...providers.aws.listing import survey
        from ...providers.aws.teardown import FLEET

        machines = [machine for intent in known if intent.kind == FLEET for machine in intent.ids or ()]
        async with _api(place) as api:
            found = await survey(api, machines)
            prices = await _prices(api, found.machines)
        return PlaceAnswer("aws", place, tuple(_machine(each, prices) for each in found.machines), found.others)

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        from ...providers.aws.teardown import sweep

        async with _api(place) as api:
            await sweep(api, pool, journal=journal, lease_s=lease_s)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        from ...providers.aws.teardown import sweep_others

        async with _api(place) as api:
            await sweep_others(api, pool, journal=journal)

    async def everywhere(self, place: Place) -> Sequence[Place]:

        async with _api(place) as api:
            answer = await api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


CLOUDS: Mapping[str, Cloud] = {"aws": AWSCloud()}


async def ask(records: Sequence[PoolRecord], places: Sequence[Place], *, everywhere: Place | None) -> list[PlaceAnswer]:
    """Ask every place that the journal knows and every one of ``places``, concurrently.

    ``everywhere``: a place with whose access all regions are asked as well.
    """
    wanted: dict[tuple[str, tuple[tuple[str, str], ...]], tuple[str, Place]] = {}
    errors: list[PlaceAnswer] = []
    known = [(record.provider or "aws", place) for record in records for place in record.places]
    given: list[Place] = list(places)
    if everywhere is not None:
        try:
            given += await CLOUDS["aws"].everywhere(everywhere)
        except ProviderError as error:
            errors.append(PlaceAnswer("aws", everywhere, error=str(error)))
    for provider, place in [*known, *(("aws", place) for place in given)]:
        wanted[provider, tuple(sorted(place.items()))] = (provider, place)
    limit, answers = anyio.Semaphore(AT_A_TIME), errors

    async def one(provider: str, place: Place) -> None:
        async with limit:
            intents = [each for record in records for each in record.intents if dict(each.place) == dict(place)]
            answers.append(await _ask(provider, place, intents))

    async with anyio.create_task_group() as tasks:
        for provider, place in wanted.values():
            tasks.start_soon(one, provider, place)
    return answers


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    cloud = CLOUDS.get(provider)
    if cloud is None:
        return PlaceAnswer(provider, place, error=f"nobody here knows how to ask {provider}")
    try:
        return await cloud.survey(place, known)
    except ProviderError as error:
        return PlaceAnswer(provider, place, error=str(error))


def _api(place: Place) -> AbstractAsyncContextManager[Api]:
    from ...providers.aws.api import Api

    region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
    return Api.open(region=region, endpoint_url=endpoint_url, profile=profile)


async def _prices(api: Api, machines: Sequence[MachineSeen]) -> dict[tuple[str, str], float]:
    """USD per hour by (type, zone) for spot and (type, "") on demand. Empty where prices are not to be had."""
    from ...providers.aws import prices

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


def _machine(seen: MachineSeen, prices: Mapping[tuple[str, str], float]) -> MachineLeft:
    return MachineLeft(
        seen.id,
        seen.type,
        seen.market,
        seen.zone,
        seen.state,
        seen.launched_at.timestamp(),
        seen.address,
        prices.get((seen.type, seen.zone if seen.market == "spot" else "")),
        pool=seen.pool,
        owner=seen.owner,
        launch=seen.launch,
    )
