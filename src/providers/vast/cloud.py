"""Vast.ai with one account: the implementation of `providers.cloud.port.Cloud`, which finds and ends instances."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud
from ..cloud.http import HttpApi, Key
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine
from ..cloud.pages import every_page
from ..errors import BadRequest, NotAuthorized, ProviderError, QuotaExceeded
from ..threads import in_thread
from .catalogue import country
from .service import ACCOUNT, BILLING_PAGE, END, KEY, KEYS, LIST, service
from .vendor import NO_CREDIT, OUTBID, STOPPED, UNKNOWN, VENDOR

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
    """Open Vast.ai in a place, with the account of the user's API key.

    Raises:
        NotAuthorized: There is no key, or Vast.ai refuses it, or it belongs to another account than the place names.
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
