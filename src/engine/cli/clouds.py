"""The clouds that `outrider ps` and `outrider gc` ask which pools exist, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

import anyio

from ...providers.errors import ProviderError
from ...providers.journal import Intent, Journal, PoolRecord
from ...providers.pool_lock import Place
from .orphans import FoundMachine, PlaceAnswer

if TYPE_CHECKING:
    from ...providers.aws.api import Api
    from ...providers.aws.listing import MachineSeen

AT_A_TIME = 8  # places that are asked concurrently


class AWSCloud:
    """Amazon EC2. A place has a region, and optionally an endpoint_url and a profile.

    Each method raises `ProviderError` where the cloud does not answer or refuses; `NotGone` says what may be left.
    """

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags."""
        from ...providers.aws.listing import survey
        from ...providers.aws.teardown import FLEET

        machines = [machine for intent in known if intent.kind == FLEET for machine in intent.ids or ()]
        async with _api(place) as api:
            found = await survey(api, machines)
            prices = await _prices(api, found.machines)
        return PlaceAnswer("aws", place, tuple(_machine(each, prices) for each in found.machines), found.others)

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal.

        ``lease_s``: the lease of its machines; None: not known.
        """
        from ...providers.aws.teardown import sweep

        async with _api(place) as api:
            await sweep(api, pool, journal=journal, lease_s=lease_s)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed."""
        from ...providers.aws.teardown import sweep_others

        async with _api(place) as api:
            await sweep_others(api, pool, journal=journal)

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places (regions) that can be reached with the credentials of this one."""
        async with _api(place) as api:
            answer = await api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


CLOUDS: Mapping[str, AWSCloud] = {"aws": AWSCloud()}


async def ask(records: Sequence[PoolRecord], places: Sequence[Place], *, everywhere: Place | None) -> list[PlaceAnswer]:
    """Ask every place that the journal knows and every one of ``places``, concurrently.

    ``everywhere``: a place with whose access all regions are asked as well.
    """
    answers: list[PlaceAnswer] = []
    wanted = [(record.provider or "aws", place) for record in records for place in record.places]
    wanted += [("aws", place) for place in places]
    if everywhere is not None:
        try:
            wanted += [("aws", place) for place in await CLOUDS["aws"].everywhere(everywhere)]
        except ProviderError as error:
            answers.append(PlaceAnswer("aws", everywhere, error=_explained(error)))
    limit = anyio.Semaphore(AT_A_TIME)

    async def one(provider: str, place: Place) -> None:
        async with limit:
            intents = [each for record in records for each in record.intents if each.place == place]
            answers.append(await _ask(provider, place, intents))

    async with anyio.create_task_group() as tasks:
        for at, asked in enumerate(wanted):
            if asked not in wanted[:at]:
                tasks.start_soon(one, *asked)
    return answers


async def _ask(provider: str, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
    cloud = CLOUDS.get(provider)
    if cloud is None:
        error = f"this version of Outrider cannot ask {provider}: use the one that has made the pool"
        return PlaceAnswer(provider, place, error=error)
    try:
        return await cloud.survey(place, known)
    except ProviderError as failed:
        return PlaceAnswer(provider, place, error=_explained(failed))


def _explained(error: ProviderError) -> str:
    """Return why a place was not asked. What will not pass by itself comes from the provider with its next step."""
    return str(error) if error.retry_after_s is None else f"{error}; that may pass by itself: try again"


def _api(place: Place) -> AbstractAsyncContextManager[Api]:
    from ...providers.aws.api import Api

    region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
    return Api.open(region=region, endpoint_url=endpoint_url, profile=profile)


async def _prices(api: Api, machines: Sequence[MachineSeen]) -> dict[tuple[str, str], float]:
    """USD per hour by (type, zone) for spot and (type, "") on demand. Empty where prices are not to be had."""
    from ...providers.aws.catalogue import on_demand_prices, spot_prices

    found: dict[tuple[str, str], float] = {}
    with suppress(ProviderError):
        on_demand = sorted({machine.type for machine in machines if machine.market != "spot"})
        if on_demand:
            found |= {(kind, ""): usd for kind, usd in (await on_demand_prices(api, on_demand)).items()}
        spot = sorted({machine.type for machine in machines if machine.market == "spot"})
        if spot:
            found |= await spot_prices(api, spot)
    return found


def _machine(seen: MachineSeen, prices: Mapping[tuple[str, str], float]) -> FoundMachine:
    return FoundMachine(
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
