"""The plan of a launch, needed before it can ask: network, image, what there is, its cost. All are found at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from ..base import Architecture, LaunchRequest
from ..errors import BadRequest
from . import catalogue, images, launch, network, offers
from .launch import Shape
from .shared import Shared

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .images import Ami
    from .network import Network
    from .offers import Avoid, Offer
    from .provider import AWS
    from .recorded import RecordedApi


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of where machines of one request can be had now. The next round is for when one gives nothing."""

    request: LaunchRequest
    network: Network
    rounds: Sequence[Sequence[Offer]]
    together: bool  # side by side, in a placement group
    extras_usd: Mapping[Architecture, float]  # an hour, besides a type's price


class Planner:
    """`start` it early: what needs no request is found meanwhile, and what goes wrong there is told by `plan`."""

    def __init__(self, provider: AWS, api: RecordedApi, labels: Mapping[str, str], tasks: TaskGroup) -> None:
        self._provider, self._api, self._labels, self._tasks = provider, api, labels, tasks
        self._network = Shared(tasks, self._find_network)
        self._efa_network = Shared(tasks, self._find_efa_network)
        self._images: dict[tuple[Architecture | None, bool], Shared[Ami]] = {}

    def start(self) -> None:
        self._network.start()

    async def stop(self) -> None:
        """Nothing is being created any more."""
        await self._network.stop()
        await self._efa_network.stop()

    async def plan(self, request: LaunchRequest, avoid: Avoid, living: Collection[tuple[str, str]]) -> Plan:
        """``living``: types and zones of the pool's machines.

        Raises:
            ProviderError
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
        place, there, extras_usd = await self._network.get(), await stock.get(), await self._extras_usd(request)
        together, now = launch.is_together(request), anyio.current_time()
        zones = place.subnets.keys()
        rounds = offers.choose(
            request,
            there,
            avoid,
            now,
            instance_types=types,
            zones=zones,
            together=together,
            extras_usd=extras_usd,
        )
        return Plan(request, place, launch.in_one_place(rounds, living) if together else rounds, together, extras_usd)

    async def shape(self, plan: Plan, offer: Offer, *, cluster: str) -> Shape:
        """Return the shape of machines of this offer; ``cluster``: their placement group, if they have one.

        Raises:
            ProviderError
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
        public, gpu = self._provider.address == "public", request.accelerator is not None
        found: dict[Architecture, float] = {}
        for architecture in _architectures(request):
            try:
                image = await self._image(None if self._provider.ami else architecture, gpu=gpu).get()
            except BadRequest:  # there is none: who comes to need it is told
                continue
            found[architecture] = launch.extras_usd(image, request.disk_gb, public=public)
        return found

    async def _find_network(self, *, efa: bool = False) -> Network:
        provider = self._provider
        return await network.prepare(
            self._api,
            await self._api.claim(),
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
        """``architecture`` None: the one image that the user gave."""

        async def find() -> Ami:
            given = self._provider
            return await images.find(
                self._api, architecture=architecture, accelerator=gpu, ami=given.ami, user=given.user
            )

        return self._images.setdefault((architecture, gpu), Shared(self._tasks, find))


def _architectures(request: LaunchRequest) -> tuple[Architecture, ...]:
    return (request.architecture,) if request.architecture else ("x86_64", "arm64")
