"""Plan a launch: network, image, catalogue and costs are found at the same time before the first call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest
from ..cloud import offers
from ..cloud.cooldowns import Cooldowns
from ..cloud.port import Plan
from ..cloud.single_flight import OncePerKey
from ..errors import BadRequest
from ..side_by_side import all_of, each_of
from . import catalogue, images, launch, network
from .api import Api

if TYPE_CHECKING:
    from .images import Ami
    from .network import Network
    from .provider import AWS

ImageKey = tuple[Architecture | None, bool]  # the architecture, and whether there is an accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class EC2Plan(Plan):
    """A plan for one region. ``together``: in one placement group."""

    network: Network
    together: bool


async def make_plan(
    provider: AWS,
    api: Api,
    request: LaunchRequest,
    cooldowns: Cooldowns,
    living: Collection[tuple[str, str]],
    *,
    find_network: Callable[[], Awaitable[Network]],
    find_image: Callable[[ImageKey], Awaitable[Ami]],
) -> EC2Plan:
    """Make a plan. ``living``: (type, zone) of the pool's machines.

    Raises:
        ProviderError: there are no offers, or the network or image cannot be had.
    """
    if provider.ami is not None and request.architecture is None:
        image = await find_image(image_key(provider, request, None))
        request = replace(request, architecture=image.architecture)
    architectures: tuple[Architecture, ...] = (request.architecture,) if request.architecture else ("x86_64", "arm64")

    async def extras_usd(architecture: Architecture) -> float | None:
        try:
            ami = await find_image(image_key(provider, request, architecture))
        except BadRequest:  # there is no such image; an offer that needs it raises that
            return None
        return launch.extras_usd(ami, request.disk_gb, public=provider.public)

    place, stock, costs = await all_of(
        find_network,
        partial(catalogue.load, api, request, instance_types=provider.instance_types),
        partial(each_of, architectures, extras_usd),
    )
    found = zip(architectures, costs, strict=True)
    extras: dict[Architecture, float] = {each: usd for each, usd in found if usd is not None}
    together = launch.is_together(request)
    rounds = offers.choose(
        request,
        stock,
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=place.subnets.keys(),
        together=together,
        extras_usd=extras,
    )
    chosen = offers.in_one_place(rounds, living) if together else rounds
    return EC2Plan(request, chosen, extras, api.region, network=place, together=together)


async def first_plan(provider: AWS, api: Api, request: LaunchRequest, cooldowns: Cooldowns) -> EC2Plan:
    """The plan of a new pool. Nothing is created.

    Raises:
        ProviderError: there are no offers, or EC2 does not answer.
    """
    look = partial(network.look, api, provider.vpc, provider.subnets, zones=provider.zones, public=provider.public)
    find_image = images_of(provider, api).get
    return await make_plan(provider, api, request, cooldowns, (), find_network=look, find_image=find_image)


def images_of(provider: AWS, api: Api) -> OncePerKey[ImageKey, Ami]:
    """The images of a pool, each found when it is first needed."""

    async def find(key: ImageKey) -> Ami:
        architecture, accelerator = key
        return await images.find(
            api, architecture=architecture, accelerator=accelerator, ami=provider.ami, user=provider.user
        )

    return OncePerKey(find)


def image_key(provider: AWS, request: LaunchRequest, architecture: Architecture | None) -> ImageKey:
    """The key of the image for an architecture. The user's own image is of whatever architecture it is."""
    return None if provider.ami is not None else architecture, request.accelerator is not None
