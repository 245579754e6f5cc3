"""Vast.ai with one account: finds, rents and ends instances (Vast.ai's containers).

`VastCloud` and `VastLauncher` implement the two interfaces of `providers.cloud.port`. `VastSurveyor` lists instances
for `outrider ps` and `outrider gc`, and ends them for `gc`.

An offer is one single machine, and the first renter gets it. So an order names several offers, and rents the first that
is still available. A launch whose response was lost is never sent again (`cloud.single_launch`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud
from ..cloud.calls import every_page
from ..cloud.http import HttpApi, Key
from ..cloud.inventory import GRACE_S, InstanceView, ListedMachine, State
from ..cloud.machine_start import USER, HostKey, first_process, host_key, new_machine
from ..cloud.offers import Cooldowns, Offer, choose
from ..cloud.port import Answer, Created, Order, PlainLauncher, Plan
from ..cloud.recorder import FLEET, Recorder
from ..cloud.single_launch import look_for
from ..cloud.surveyor import AccountSurveyor
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from ..shared.pool_lock import Place
from ..shared.threads import in_thread
from . import api
from .api import (
    ACCOUNT,
    ASK,
    BILLING_PAGE,
    END,
    KEY,
    KEYS,
    LIST,
    NO_CREDIT,
    OUTBID,
    STOPPED,
    UNKNOWN,
    URL,
    VENDOR,
    Ask,
    country,
    service,
)

if TYPE_CHECKING:
    from .api import VastOptions


PORT = 22  # port of the SSH server in each container
PAGE = 25  # most instances in one response
LABEL_AT_MOST = 256  # characters; from x-input-validation in Vast.ai's create_instance.yaml
# `actual_status` -> state, as the documentation of `vastai show instances` explains. Any other status counts as
# pending: null and "loading" (the instance is being created), "rebooting", and "offline" or "unknown" (the host does
# not respond to Vast.ai). In the last case, the pool itself detects whether the host responds to it.
_STATES: Mapping[str, State] = {
    "running": "running",
    "stopped": "stopped",  # a stopped instance still costs money for its disk, so the pool ends it
    "exited": "stopped",
    "frozen": "stopped",
}


@asynccontextmanager
async def reach(place: Mapping[str, str]) -> AsyncIterator[VastCloud]:
    """Open Vast.ai with the account, key file and address in ``place``.

    Raises:
        NotAuthorized: There is no key, or Vast.ai refuses it, or it belongs to another account than ``place`` names.
        BadRequest: ``outrider[vast]`` is not installed, or the address is not a URL.
    """
    key_file = place.get("key_file")
    key = await in_thread(KEYS.read, key_file, os.environ)
    async with HttpApi.open(service(place.get("endpoint_url")), Key(key)) as api:
        user = api.part(await api.call("GET", ACCOUNT), dict)
        if "id" not in user:
            raise BadRequest(f"{api.service.host} does not answer as Vast.ai does: check endpoint_url")
        account = str(user["id"])
        wanted = place.get("account", account)
        if wanted != account:
            raise NotAuthorized(
                f"these instances are of the Vast.ai account {wanted}, and {key_file or KEY} has a key of {account}: "
                f"use a key of that account"
            )
        yield VastCloud(api, {"account": account, **place}, credit_usd=_credit(user))


class VastCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`. ``credit_usd``: the account's credit (USD) when it was last queried."""

    vendor = VENDOR
    end_at_most = 50

    def __init__(self, api: HttpApi, place: Mapping[str, str], *, credit_usd: float) -> None:
        super().__init__(api, place)
        self._credit_usd = credit_usd
        self._ended: set[str] = set()  # instances whose deletion Vast.ai has confirmed

    async def check_credit(self) -> None:
        """Raise an error if the account has no credit. The credit is queried again only if it was used up before.

        Raises:
            QuotaExceeded: The account has no credit.
        """
        if self._credit_usd <= 0:
            self._credit_usd = _credit(self.api.part(await self.api.call("GET", ACCOUNT), dict))
        if self._credit_usd <= 0:
            raise QuotaExceeded(
                f"the Vast.ai account has {self._credit_usd:.2f} USD of credit: add some at {BILLING_PAGE}",
                code=NO_CREDIT,
                advice="Vast.ai stops what runs as soon as the credit is used up.",
            )

    async def machines(self) -> list[ListedMachine]:
        order = '[{"col":"id","dir":"asc"}]'

        async def page(token: str) -> tuple[list[dict[str, Any]], str]:
            query = {"limit": str(PAGE), "order_by": order, **({"after_token": token} if token else {})}
            answer = await self.api.call("GET", LIST, params=query)
            return self.api.part(answer, list, "instances"), answer.get("next_token") or ""

        return [read(each) for each in await every_page(page)]

    async def unlisted(self, machine: str) -> InstanceView | None:
        return InstanceView(MachineId(machine), "terminated") if machine in self._ended else None

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        body = {"instance_ids": [int(each) for each in machines]}
        await self.api.call("DELETE", END, body=body)
        self._ended |= {*machines}
        return [InstanceView(MachineId(each), "shutting-down") for each in machines]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code in UNKNOWN


def _credit(user: Mapping[str, Any]) -> float:
    return sum(float(user.get(name) or 0.0) for name in ("balance", "credit"))


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert an instance in a response to a `ListedMachine`. Its port is the one that its host has mapped to the
    container's SSH port.
    """
    state = _STATES.get(instance.get("actual_status") or "", "pending")
    tags, is_bid = labels.of_text(instance.get("label") or ""), bool(instance.get("is_bid"))
    mapped = (instance.get("ports") or {}).get(f"{PORT}/tcp") or ()
    port = next((int(each["HostPort"]) for each in mapped if each.get("HostPort")), 0)
    return ListedMachine(
        labels.thing(str(instance["id"]), tags),
        state,
        status=instance.get("actual_status") or "being made",
        kind=f"{instance.get('num_gpus') or 1}x {instance.get('gpu_name') or 'GPU'}",
        zone=country(instance.get("geolocation")),
        market="spot" if is_bid else "on-demand",
        launched_at=labels.number(tags.get(labels.AT, "")) or instance.get("start_date"),
        hourly_usd=instance.get("dph_total"),
        until=labels.number(tags.get(labels.UNTIL, "")),
        public=(instance.get("public_ipaddr") or "").strip() if port else "",
        port=port or PORT,
        reason="" if state != "stopped" else OUTBID if is_bid else STOPPED,
        message=instance.get("status_msg") or "",
    )


# --- launches ---------------------------------------------------------------------------------------------------------


RENT_S = 60.0  # seconds after which one launch times out; a launch usually takes a few seconds
TRIES = 3  # most offers that one order tries; each try waits for Vast.ai's rate limit (`api.LIMITS`)
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
        return plan(await api.load_offers(self._cloud.api, self._provider, request), request, cooldowns)

    async def order(self, plan: RentPlan, chosen: Sequence[Offer], count: int) -> RentOrder:  # noqa: ARG002
        """Prepare the rental of one machine. Wait for Vast.ai's rate limit here, because a cancellation before the call
        has no effect to undo.
        """
        request, token, now = plan.request, uuid4().hex, anyio.current_time()
        offers = [each for each in chosen if self._taken.get(each.type.name, -inf) < now][:TRIES]
        if not offers:
            raise NoCapacity("all of these offers of Vast.ai's are taken", retry_after_s=api.AGAIN_S)
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
            "disk": api.disk_gb(request),
            # With "args", Vast.ai does not call the image's own entry point, but `onstart`, as in the example of
            # `vastai create instance`. Vast.ai's own SSH server is not used, because its host key is unknown.
            "runtype": "args",
            "onstart": "/bin/sh",
            "env": {f"-p {PORT}:{PORT}": "1"},
            "cancel_unavail": True,
        }


def plan(asks: Sequence[Ask], request: LaunchRequest, cooldowns: Cooldowns) -> RentPlan:
    """Return a plan with the offers in the order in which to try them."""
    rounds = choose(request, api.catalogue(asks), cooldowns, anyio.current_time())
    return RentPlan(request, rounds, {}, asks={each.type.name: each for each in asks})


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class VastSurveyor(AccountSurveyor["VastCloud"]):
    """Implements `survey.Surveyor` for Vast.ai."""

    provider = "vast"

    def reach(self, place: Place) -> AbstractAsyncContextManager[VastCloud]:

        return reach(place)
