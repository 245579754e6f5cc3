"""List what EC2 would be asked for, in that order, for `outrider offers`: read alone, nothing is created."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from ..base import Architecture, LaunchRequest, MachineOffer
from ..cloud import offers
from ..errors import BadRequest
from . import catalogue, images, launch, network
from .api import Api
from .vendor import VENDOR

if TYPE_CHECKING:
    from .provider import AWS


async def offer_list(provider: AWS, request: LaunchRequest) -> list[MachineOffer]:
    """Return the offers as `plan.Planner` would have them for a new pool.

    Raises:
        ProviderError: there are none, or EC2 does not answer.
    """
    async with Api.open(region=provider.region, endpoint_url=provider.endpoint_url, profile=provider.profile) as api:
        if provider.ami is not None and request.architecture is None:
            image = await images.find(
                api, architecture=None, accelerator=request.accelerator is not None, ami=provider.ami
            )
            request = replace(request, architecture=image.architecture)
        there = await catalogue.load(api, request, instance_types=provider.instance_types)
        public = provider.address == "public"
        zones = await network.zones(
            api, vpc=provider.vpc, subnets=provider.subnets, zones=provider.zones, public=public
        )
        extras_usd = await _extras_usd(api, provider, request)
        rounds = offers.choose(
            request,
            there,
            offers.Cooldowns(VENDOR),
            anyio.current_time(),
            instance_types=provider.instance_types,
            zones=zones,
            together=launch.is_together(request),
            extras_usd=extras_usd,
        )
    return [
        MachineOffer(
            kind=offer.type.name,
            place=offer.zone,
            region=there.region,
            market=offer.market,
            hourly_usd=offer.hourly_usd + extras_usd.get(offer.type.architecture, 0.0),
            vcpus=offer.type.vcpus,
            memory_gb=offer.type.memory_gb,
            architecture=offer.type.architecture,
            accelerator=offer.type.accelerator,
            accelerators=offer.type.accelerators,
            attempt=attempt,
        )
        for attempt, chosen in enumerate(rounds, 1)
        for offer in chosen
    ]


async def _extras_usd(api: Api, provider: AWS, request: LaunchRequest) -> dict[Architecture, float]:
    """Return the cost of a machine per hour besides its type's price, where there is an image for it."""
    found: dict[Architecture, float] = {}
    gpu, public = request.accelerator is not None, provider.address == "public"
    wanted: Sequence[Architecture] = (request.architecture,) if request.architecture else ("x86_64", "arm64")
    for architecture in wanted:
        try:
            given = None if provider.ami else architecture
            image = await images.find(api, architecture=given, accelerator=gpu, ami=provider.ami, user=provider.user)
        except BadRequest:
            continue
        found[architecture] = launch.extras_usd(image, request.disk_gb, public=public)
    return found
