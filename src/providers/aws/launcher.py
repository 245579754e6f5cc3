"""A pool's launches on EC2: the half of the port of `providers.cloud` that creates machines."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest
from ..cloud import written
from ..cloud.cooldowns import Cooldowns
from ..cloud.failures import AGAIN_S, CallRefused
from ..cloud.labels import labels_of
from ..cloud.offers import Offer
from ..cloud.port import Answer, Made, Order
from ..cloud.single_flight import Shared
from ..cloud.userdata import LEASE
from ..errors import ProviderError
from . import launch, network
from .errors import Failure, translate
from .launch import LaunchTemplate, Refusal, Shape
from .plan import EC2Plan, image_key, images_of, make_plan
from .recorded import RecordedApi, machines_in
from .templates import Templates

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .network import Network
    from .provider import AWS

LAG_S = 15.0  # after so long, a new resource is known everywhere in EC2


@dataclass(slots=True, kw_only=True)
class FleetOrder(Order):
    """One CreateFleet call."""

    said: dict[str, Any]
    of: dict[Offer, LaunchTemplate]
    subnets: Mapping[str, str]


class EC2Launcher:
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: AWS, pool: str, api: RecordedApi, tasks: TaskGroup) -> None:
        self._provider, self._api = provider, api
        self._notices = ("aws", "aws-rebalance") if provider.rebalance else ("aws",)
        self._labels = labels_of(pool, dict(provider.tags or ()))
        self._network = Shared(tasks, partial(self._prepared, efa=False))
        self._efa_network = Shared(tasks, partial(self._prepared, efa=True))
        self._images = images_of(provider, api)
        self._templates = Templates(api, pool, self._labels)

    def start(self) -> None:
        self._network.start()

    async def stop(self) -> None:
        await self._network.stop()
        await self._efa_network.stop()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> EC2Plan:
        provider, network, image = self._provider, self._network.get, self._images.get
        return await make_plan(provider, self._api, request, cooldowns, living, find_network=network, find_image=image)

    async def order(self, plan: EC2Plan, chosen: Sequence[Offer], count: int) -> FleetOrder:
        cluster = await self._templates.cluster() if plan.together else ""
        shapes = {offer: await self._shape(plan, offer, cluster) for offer in chosen}
        templates = {shape: await self._templates.of(shape) for shape in dict.fromkeys(shapes.values())}
        of = {offer: templates[shape] for offer, shape in shapes.items()}
        token, subnets = uuid4().hex, plan.network.subnets
        lots = [(each, [offer for offer in chosen if of[offer] is each]) for each in templates.values()]
        said = launch.fleet(
            lots, count, token=token, subnets=subnets, labels=self._labels, max_usd=plan.request.max_hourly_cost
        )
        dearest = max(offer.hourly_usd + template.shape.hourly_usd for offer, template in of.items())
        return FleetOrder(
            token=token,
            offers=list(of),
            count=count,
            hourly_usd=dearest,
            at=anyio.current_time(),
            said=said,
            of=of,
            subnets=subnets,
        )

    async def create(self, order: FleetOrder) -> Answer:
        answer = await self._api.call("create_fleet", timeout_s=written.FLEET_S, **order.said)
        order.carried_out = True
        if machines_in(answer) is None:
            answer = await self._read_again(answer["FleetId"], order.token)
        heard = launch.read(answer, order.offers, order.subnets)
        made = [
            Made(
                launch.machine(name, offer, order.of[offer], notices=self._notices, lease=LEASE),
                offer,
                order.of[offer].shape.ami.user,
            )
            for name, offer in heard.machines
        ]
        return Answer(made, [(refusal.offers, self._refused(refusal)) for refusal in heard.refusals])

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return launch.is_unknown_yet(error)

    def forget(self, order: FleetOrder) -> None:
        self._templates.forget(order.of.values())

    async def _shape(self, plan: EC2Plan, offer: Offer, cluster: str) -> Shape:
        """The shape of machines of this offer. ``cluster``: the name of their placement group, or ""."""
        request, provider = plan.request, self._provider
        cards = launch.cards(offer, together=plan.together, public=provider.public)
        place = await self._efa_network.get() if cards else plan.network
        return Shape(
            ami=await self._images.get(image_key(provider, request, offer.type.architecture)),
            market=offer.market,
            disk_gb=request.disk_gb,
            client_key=request.client_key,
            lease_s=request.lease_s,
            max_lifetime_s=request.max_lifetime_s,
            groups=tuple(provider.security_groups or (place.group,)),
            public=provider.public,
            profile=provider.instance_profile or "",
            cluster=cluster,
            cards=cards,
        )

    async def _prepared(self, *, efa: bool) -> Network:
        """The pool's network, whose group is made if it is missing. ``efa``: for machines with EFA interfaces."""
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

    async def _read_again(self, fleet: str, token: str) -> dict[str, Any]:
        """Ask for the machines of a fleet: a repeated CreateFleet may be answered with the fleet's id alone."""
        answer = await self._api.call("describe_fleets", lag_s=LAG_S, FleetIds=[fleet])
        for found in answer.get("Fleets") or ():
            ids = machines_in(found)
            if ids is not None:
                await self._api.recorder.learnt(written.FLEET, token, ids)
                return dict(found)
        raise CallRefused(f"EC2 does not say which machines {fleet} has", retry_after_s=AGAIN_S, code="TimedOut")

    def _refused(self, refusal: Refusal) -> ProviderError:
        one = refusal.offers[0]
        return translate(
            Failure(
                code=refusal.code,
                message=refusal.message,
                operation="CreateFleet",
                region=self._api.region,
                instance_type=" or ".join(dict.fromkeys(offer.type.name for offer in refusal.offers)),
                zone=one.zone if len(refusal.offers) == 1 else "",
                spot=one.market == "spot",
            )
        )
