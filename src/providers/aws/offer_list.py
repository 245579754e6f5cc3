"""List what EC2 would be asked for, in that order, for `outrider offers`: read alone, nothing is created."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from ..base import Architecture, LaunchRequest, MachineOffer
from ..cloud import offers
from ..cloud.cooldowns import Cooldowns
from . import catalogue, images, launch, network
from .api import Api
from .plan import extras_usd
from .vendor import VENDOR

if TYPE_CHECKING:
    from .images import Ami
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
        gpu = request.accelerator is not None

        async def image_for(architecture: Architecture | None) -> Ami:
            return await images.find(
                api, architecture=architecture, accelerator=gpu, ami=provider.ami, user=provider.user
            )

        extras = await extras_usd(provider, request, image_for)
        rounds = offers.choose(
            request,
            there,
            Cooldowns(VENDOR),
            anyio.current_time(),
            instance_types=provider.instance_types,
            zones=zones,
            together=launch.is_together(request),
            extras_usd=extras,
        )
    return offers.as_machine_offers(rounds, there.region, extras)
