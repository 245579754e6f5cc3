"""Launches of a pool at Vast.ai: the implementation of `providers.cloud.port.Launcher`, which rents machines.

An offer is one single machine, and the first renter gets it. So an order names several offers, and rents the first that
is still available. A launch whose response was lost is never sent again (`lost_launch`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.cooldowns import Cooldowns
from ..cloud.instance_inventory import GRACE_S
from ..cloud.keys import HostKey, host_key
from ..cloud.lost_launch import look_for
from ..cloud.machine import new_machine
from ..cloud.offers import Offer, choose
from ..cloud.port import Answer, Created, Order, PlainLauncher, Plan
from ..cloud.recorder import Recorder
from ..cloud.rented_container import USER, first_process
from ..cloud.written import FLEET
from ..errors import NoCapacity, ProviderError
from . import catalogue
from .catalogue import Ask
from .cloud import LABEL_AT_MOST, PORT, VastCloud
from .service import ASK, URL

if TYPE_CHECKING:
    from .catalogue import VastOptions

RENT_S = 60.0  # seconds after which one launch times out; a launch usually takes a few seconds
TRIES = 3  # most offers that one order tries; each try waits for Vast.ai's rate limit (`service.LIMITS`)
# Vast.ai's own default image. Many hosts already have it.
IMAGE = "vastai/base-image:@vastai-automatic-tag"


@dataclass(frozen=True, slots=True, kw_only=True)
class RentPlan(Plan):
    """A plan of offers to rent. ``asks``: name of a type in the plan -> Vast.ai's offer."""

    asks: Mapping[str, Ask]


@dataclass(slots=True, kw_only=True)
class RentOrder(Order):
    """An order for one machine, from any of its offers. ``tried``: the last offer that was tried; ``sent_at``: time at
    which that try ended.
    """

    asks: Mapping[str, Ask]
    body: Mapping[str, Any]
    host_key: HostKey
    tried: Offer
    sent_at: float = 0.0


class VastLauncher(PlainLauncher):
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: VastOptions, cloud: VastCloud, recorder: Recorder) -> None:
        self._provider, self._cloud, self._recorder = provider, cloud, recorder
        # Offer -> time until which to skip it: it is rented, or no longer available, or another order is about to rent
        # it.
        self._taken: dict[str, float] = {}

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> RentPlan:  # noqa: ARG002
        await self._cloud.check_credit()
        return plan(await catalogue.load(self._cloud.api, self._provider, request), request, cooldowns)

    async def order(self, plan: RentPlan, chosen: Sequence[Offer], count: int) -> RentOrder:  # noqa: ARG002
        """Prepare the rental of one machine. Wait for Vast.ai's rate limit here, because a cancellation before the call
        has no effect to undo.
        """
        request, token, now = plan.request, uuid4().hex, anyio.current_time()
        offers = [each for each in chosen if self._taken.get(each.type.name, -inf) < now][:TRIES]
        if not offers:
            raise NoCapacity("all of these offers of Vast.ai's are taken", retry_after_s=catalogue.AGAIN_S)
        key, body = host_key(), self._body(request, token)
        end = f'call DELETE "{(self._provider.endpoint_url or URL).rstrip("/")}/api/v0/instances/$CONTAINER_ID/"'
        script = first_process(
            host_key=key,
            client_key=request.client_key,
            lease_s=request.lease_s,
            max_lifetime_s=request.max_lifetime_s,
            end_itself=f'{end} "Authorization: Bearer $CONTAINER_API_KEY"',
            port=PORT,
        )
        self._taken |= {each.type.name: inf for each in offers}
        try:
            await self._cloud.api.turn("PUT", ASK)
        except BaseException:  # also if cancelled: no request was sent, so other orders may have these offers
            self._release(offers)
            raise
        return RentOrder(
            token=token,
            offers=offers,
            count=1,
            hourly_usd=max(each.hourly_usd for each in offers),
            at=anyio.current_time(),
            asks=plan.asks,
            body=body | {"args": ["-c", script]},
            host_key=key,
            tried=offers[0],
        )

    async def create(self, order: RentOrder) -> Answer:
        refusals: list[tuple[Sequence[Offer], ProviderError]] = []

        async def ask() -> Sequence[str]:
            if order.lost:
                return await look_for("Vast.ai", order.sent_at, lambda: self._cloud.launched(order.token))
            return await self._rent(order, refusals)

        machine_ids: Sequence[str] = ()
        try:
            machine_ids = await self._recorder.create(FLEET, order.token, {"count": "1"}, ask, lambda ids: ids)
        finally:
            self._release(order.offers)
            now = anyio.current_time()
            gone = [offer for offers, _ in refusals for offer in offers]
            self._taken |= {each.type.name: now + GRACE_S for each in ([*gone, order.tried])}
        return Answer([self._created(order, each) for each in machine_ids], refusals)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _rent(self, order: RentOrder, refusals: list[tuple[Sequence[Offer], ProviderError]]) -> list[str]:
        for number, offer in enumerate(order.offers):
            ask = order.asks[offer.type.name]
            body = order.body if offer.market == "on-demand" else {**order.body, "price": ask.bid}
            order.tried = offer
            try:
                answer = await self._cloud.api.call(
                    "PUT", ASK.format(ask.id), body=body, timeout_s=RENT_S, idempotent=False, turn=number == 0
                )
            except NoCapacity as error:
                refusals.append(([offer], error))
                continue
            finally:
                order.sent_at = anyio.current_time()
            order.carried_out = True
            return [str(self._cloud.api.part(answer, int, "new_contract"))]
        return []

    def _created(self, order: RentOrder, name: str) -> Created:
        offer = order.tried
        facts = {"offer": str(order.asks[offer.type.name].id), "kind": order.asks[offer.type.name].kind}
        machine = new_machine(
            MachineId(name), offer, host_key=order.host_key.public, image=order.body["image"], facts=facts
        )
        return Created(machine, offer, USER)

    def _release(self, offers: Sequence[Offer]) -> None:
        for each in offers:
            self._taken.pop(each.type.name, None)

    def _body(self, request: LaunchRequest, token: str) -> dict[str, Any]:
        tags = labels.of_machine(self._recorder.pool, {}, token, request.max_lifetime_s)
        return {
            "image": request.container or self._provider.image or IMAGE,
            "label": labels.as_text(tags, LABEL_AT_MOST),
            "disk": catalogue.disk_gb(request),
            # With "args", Vast.ai does not call the image's own entry point, but `onstart`, as in the example of
            # `vastai create instance`. Vast.ai's own SSH server is not used, because its host key is unknown.
            "runtype": "args",
            "onstart": "/bin/sh",
            "env": {f"-p {PORT}:{PORT}": "1"},
            "cancel_unavail": True,
        }


def plan(asks: Sequence[Ask], request: LaunchRequest, cooldowns: Cooldowns) -> RentPlan:
    """Return a plan with the offers in the order in which to try them."""
    rounds = choose(request, catalogue.catalogue(asks), cooldowns, anyio.current_time())
    return RentPlan(request, rounds, {}, asks={each.type.name: each for each in asks})
