"""Amazon EC2, as `outrider ps` and `outrider gc` ask it which machines there are, and where `gc` ends them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import TYPE_CHECKING

from ..errors import ProviderError
from ..journal import Intent, Journal
from ..pool_lock import Place
from ..survey import FoundMachine, PlaceAnswer

if TYPE_CHECKING:
    from .api import Api
    from .listing import MachineSeen


class AWSSurveyor:
    """Implements `survey.Surveyor`. A place has a region, and optionally an endpoint_url and a profile."""

    def has(self, place: Place) -> bool:
        return "region" in place

    async def survey(self, place: Place, known: Sequence[Intent]) -> PlaceAnswer:
        """Find everything with a pool's tag in a place, and the machines of ``known`` intents, which may lack tags."""
        from .listing import survey
        from .teardown import FLEET

        machines = [machine for intent in known if intent.kind == FLEET for machine in intent.ids or ()]
        async with _api(place) as api:
            found = await survey(api, machines)
            prices = await _prices(api, found.machines)
        return PlaceAnswer("aws", place, tuple(_machine(each, prices) for each in found.machines), found.others)

    async def sweep(self, place: Place, pool: str, journal: Journal, *, lease_s: float | None = None) -> None:
        """End everything of the pool in a place, confirmed, and mark it as settled in the journal.

        ``lease_s``: the lease of its machines; None: not known.
        """
        from .teardown import sweep

        async with _api(place) as api:
            await sweep(api, pool, journal=journal, lease_s=lease_s)

    async def sweep_others(self, place: Place, pool: str, journal: Journal) -> None:
        """End everything in a place that has the pool's tag and yet is not the pool's, confirmed."""
        from .teardown import sweep_others

        async with _api(place) as api:
            await sweep_others(api, pool, journal=journal)

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places (regions) that can be reached with the credentials of this one."""
        async with _api(place) as api:
            answer = await api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


def _api(place: Place) -> AbstractAsyncContextManager[Api]:
    from .api import Api

    region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
    return Api.open(region=region, endpoint_url=endpoint_url, profile=profile)


async def _prices(api: Api, machines: Sequence[MachineSeen]) -> dict[tuple[str, str], float]:
    """USD per hour by (type, zone) for spot and (type, "") on demand. Empty where prices are not to be had."""
    from .catalogue import on_demand_prices, spot_prices

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
