"""The surveyor of Amazon EC2: lists machines for `outrider ps` and `outrider gc`, and ends them for `gc`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ..cloud.surveyor import CloudSurveyor
from ..errors import ProviderError
from ..pool_lock import Place
from ..resource_ownership import Thing
from ..survey import FoundMachine

if TYPE_CHECKING:
    from .api import Api
    from .cloud import EC2Cloud


class AWSSurveyor(CloudSurveyor["EC2Cloud"]):
    """Implements `survey.Surveyor`. A place has a region, and optionally an endpoint_url and a profile."""

    provider, mark = "aws", "region"

    @asynccontextmanager
    async def reach(self, place: Place) -> AsyncIterator[EC2Cloud]:
        from .api import Api
        from .cloud import EC2Cloud

        region, endpoint_url, profile = (place.get(key) or None for key in ("region", "endpoint_url", "profile"))
        async with Api.open(region=region, endpoint_url=endpoint_url, profile=profile) as api:
            yield EC2Cloud(api)

    async def find(self, cloud: EC2Cloud, known: Sequence[str]) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        from .listing import survey

        answer = await survey(cloud.api, known)
        prices = await _prices(cloud.api, answer.machines)
        machines = [
            replace(each, hourly_usd=prices.get((each.kind, each.zone if each.market == "spot" else "")))
            for each in answer.machines
        ]
        return machines, answer.others

    async def everywhere(self, place: Place) -> Sequence[Place]:
        """Return all places (regions) that can be reached with the credentials of this one."""
        async with self.reach(place) as cloud:
            answer = await cloud.api.call("describe_regions")
        return [{**place, "region": region["RegionName"]} for region in answer["Regions"]]


async def _prices(api: Api, machines: Sequence[FoundMachine]) -> dict[tuple[str, str], float]:
    """Return USD per hour by (type, zone) for spot and (type, "") on demand. Empty if prices are not available."""
    from .catalogue import on_demand_prices, spot_prices

    prices: dict[tuple[str, str], float] = {}
    with suppress(ProviderError):
        on_demand = sorted({machine.kind for machine in machines if machine.market != "spot"})
        prices |= {(kind, ""): usd for kind, usd in (await on_demand_prices(api, on_demand)).items()}
        prices |= await spot_prices(api, sorted({machine.kind for machine in machines if machine.market == "spot"}))
    return prices
