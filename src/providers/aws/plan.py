"""Plan a launch: network, image, catalogue and costs are found concurrently before the first call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest
from ..cloud import offers
from ..cloud.port import Plan
from ..cloud.single_flight import Shared
from ..errors import BadRequest
from . import catalogue, images, launch, network
from .launch import Shape

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from ..cloud.cooldowns import Cooldowns
    from ..cloud.offers import Offer
    from .images import Ami
    from .network import Network
    from .provider import AWS
    from .recorded import RecordedApi


@dataclass(frozen=True, slots=True)
class EC2Plan(Plan):
    """A plan for one region. ``together``: in one placement group."""

    network: Network
    together: bool


class Planner:
    """Makes plans. `start` it early: it prepares what needs no request; `plan` raises what fails there."""

    def __init__(self, provider: AWS, api: RecordedApi, labels: Mapping[str, str], tasks: TaskGroup) -> None:
        self._provider, self._api, self._labels, self._tasks = provider, api, labels, tasks
        self._network = Shared(tasks, self._find_network)
        self._efa_network = Shared(tasks, self._find_efa_network)
        self._images: dict[tuple[Architecture | None, bool], Shared[Ami]] = {}

    def start(self) -> None:
        self._network.start()

    async def stop(self) -> None:
        """Stop creating anything, and wait for what is under way."""
        await self._network.stop()
        await self._efa_network.stop()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> EC2Plan:
        """Make a plan. ``living``: (type, zone) of the pool's machines.

        Raises:
            ProviderError: there are no offers, or the network or image cannot be had.
        """
        provider, gpu = self._provider, request.accelerator is not None
        if provider.ami is not None:
            image = await self._image(None, gpu=gpu).get()
            if request.architecture is None:
                request = replace(request, architecture=image.architecture)
        else:
            for architecture in _architectures(request):
                self._image(architecture, gpu=gpu).start()
        types = provider.instance_types
        stock = Shared(self._tasks, lambda: catalogue.load(self._api, request, instance_types=types))
        stock.start()
        place, there, extras = await self._network.get(), await stock.get(), await self._extras_usd(request)
        together, now = launch.is_together(request), anyio.current_time()
        zones = place.subnets.keys()
        rounds = offers.choose(
            request,
            there,
            cooldowns,
            now,
            instance_types=types,
            zones=zones,
            together=together,
            extras_usd=extras,
        )
        chosen = offers.in_one_place(rounds, living) if together else rounds
        return EC2Plan(request, chosen, extras, place, together)

    async def shape(self, plan: EC2Plan, offer: Offer, *, cluster: str) -> Shape:
        """The shape of machines of this offer. ``cluster``: the name of their placement group, or "".

        Raises:
            ProviderError: the network or image cannot be had.
        """
        request, provider = plan.request, self._provider
        public = provider.address == "public"
        cards = launch.cards(offer, together=plan.together, public=public)
        place = await self._efa_network.get() if cards else plan.network
        architecture = None if provider.ami is not None else offer.type.architecture
        return Shape(
            ami=await self._image(architecture, gpu=request.accelerator is not None).get(),
            market=offer.market,
            disk_gb=request.disk_gb,
            client_key=request.client_key,
            lease_s=request.lease_s,
            max_lifetime_s=request.max_lifetime_s,
            groups=provider.security_groups or (place.group,),
            public=public,
            profile=provider.instance_profile or "",
            cluster=cluster,
            cards=cards,
        )

    async def _extras_usd(self, request: LaunchRequest) -> dict[Architecture, float]:
        gpu = request.accelerator is not None
        return await extras_usd(self._provider, request, lambda given: self._image(given, gpu=gpu).get())

    async def _find_network(self, *, efa: bool = False) -> Network:
        provider = self._provider
        return await network.prepare(
            self._api,
            await self._api.recorder.claim(),
            self._labels,
            vpc=provider.vpc,
            subnets=provider.subnets,
            zones=provider.zones,
            security_groups=provider.security_groups,
            address=provider.address,
            ssh_from=provider.ssh_from,
            efa=efa,
        )

    async def _find_efa_network(self) -> Network:
        return await self._find_network(efa=True)

    def _image(self, architecture: Architecture | None, *, gpu: bool) -> Shared[Ami]:
        """The image for an architecture; None: the one that the user gave."""

        async def find() -> Ami:
            given = self._provider
            return await images.find(
                self._api, architecture=architecture, accelerator=gpu, ami=given.ami, user=given.user
            )

        return self._images.setdefault((architecture, gpu), Shared(self._tasks, find))


def _architectures(request: LaunchRequest) -> tuple[Architecture, ...]:
    return (request.architecture,) if request.architecture else ("x86_64", "arm64")


async def extras_usd(
    provider: AWS, request: LaunchRequest, image: Callable[[Architecture | None], Awaitable[Ami]]
) -> dict[Architecture, float]:
    """Find the cost of a machine per hour besides its type's price, where there is an image for it."""
    found: dict[Architecture, float] = {}
    for architecture in _architectures(request):
        try:
            ami = await image(None if provider.ami else architecture)
        except BadRequest:  # there is no such image; an offer that needs it raises that
            continue
        found[architecture] = launch.extras_usd(ami, request.disk_gb, public=provider.address == "public")
    return found
