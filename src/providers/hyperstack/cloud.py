"""Hyperstack behind the port of `providers.cloud`: finding machines and key pairs, and ending them."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud
from ..cloud.http import HttpApi, Key
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.port import Leftover, Removed
from ..cloud.teardown import remove_each
from ..errors import ProviderError
from ..resource_ownership import Claim, Others, Thing
from .service import KEYS, SERVICE, listed
from .vendor import VENDOR

MACHINES = "/core/virtual-machines"
KEY_PAIRS = "/core/keypairs"
KEY_PAIR = "key-pair"  # their kind in the journal
LAG_S = 15.0  # after so long a new machine is known everywhere
NAME_LENGTH = 50
TOKEN_LENGTH = 12

# One that is not here, such as CREATING, BUILD or REBOOTING, is on its way to ACTIVE.
_STATES: Mapping[str, State] = {
    "ACTIVE": "running",
    "STOPPING": "stopping",
    "SHUTOFF": "stopped",
    "HIBERNATING": "stopped",
    "HIBERNATED": "stopped",
    "ERROR": "stopped",  # it costs nothing, and is there until it is deleted
    "DELETING": "shutting-down",
    "DELETED": "terminated",
}


@asynccontextmanager
async def reach(place: Mapping[str, str]) -> AsyncIterator[HyperstackCloud]:
    """Open Hyperstack in a place: a pool's, with an ``account``, or as a provider's options say it.

    Raises:
        NotAuthorized: there is no key, or it is another than the one that the place was made with.
        BadRequest: httpx is not installed, or the address is no URL.
    """
    key, account = await KEYS.of(place)
    service = replace(SERVICE, base_url=place.get("endpoint_url", SERVICE.base_url))
    async with HttpApi.open(service, Key(key, scheme="")) as api:
        yield HyperstackCloud(api, {"account": account, **place})


class HyperstackCloud(AccountCloud):
    """Implements `port.Cloud`."""

    vendor = VENDOR
    end_at_most = 1

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self.leftovers = (Leftover(KEY_PAIR, self._remove_key_pairs, has_machines=True),)
        self._known_from: dict[str, float] = {}  # by machine: when Hyperstack knows it, if it exists

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        there = {str(each["id"]): each for each in await listed(self.api, MACHINES, "instances")}
        mine = [
            view_of(each)
            for name, each in there.items()
            if (labels_in(each).get(labels.POOL) == pool or name in also) and (of is None or of.has(thing_of(each)))
        ]
        self._known_from.update({each.id: 0.0 for each in mine})
        gone = [each for each in sorted(set(also) - there.keys()) if await self._is_gone(each)]
        return [*mine, *(InstanceView(MachineId(each), "terminated") for each in gone)]

    async def _is_gone(self, machine: str) -> bool:
        """Return whether there is no such machine any more. One that was deleted is in no list.

        One that no list has shown may have been made just now, so for a while nothing is said of it.
        """
        now = anyio.current_time()
        if now < self._known_from.setdefault(machine, now + LAG_S):
            return False
        try:
            await self.api.call("GET", f"{MACHINES}/{machine}")
        except ProviderError as error:
            if error.code == "not_found":
                return True
            raise
        return False

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        for each in machines:
            await self.api.call("DELETE", f"{MACHINES}/{each}")
        self._known_from.update(dict.fromkeys(machines, 0.0))
        return [InstanceView(MachineId(each), "shutting-down") for each in machines]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code == "not_found"

    async def _remove_key_pairs(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        return await remove_each(what, known, shown=self._key_pairs, delete=self._delete_key_pair)

    async def _key_pairs(self, pool: str) -> list[Thing]:
        begin = name_of(pool, "")
        pairs = await listed(self.api, KEY_PAIRS, "keypairs")
        return [key_pair_thing(each, pool) for each in pairs if str(each["name"])[:-TOKEN_LENGTH] == begin]

    async def _delete_key_pair(self, name: str) -> bool:
        try:
            await self.api.call("DELETE", f"/core/keypair/{name}")
        except ProviderError as error:
            if error.code != "not_found":
                raise
            return False
        return True


# --- what Hyperstack's answers say ------------------------------------------------------------------------------------


def name_of(pool: str, token: str) -> str:
    """The name of what a call with this token makes: it ends with it."""
    return f"{labels.name_of(pool)[: NAME_LENGTH - TOKEN_LENGTH - 1]}-{token}"


def labels_said(pool: str, token: str, max_lifetime_s: float | None) -> list[str]:
    """A machine's labels as Hyperstack has them: texts without spaces, which would divide them."""
    given = labels.labels_of(pool, {}) | {labels.LAUNCH: token}
    if max_lifetime_s is not None:
        given[labels.UNTIL] = f"{time.time() + max_lifetime_s:.0f}"
    return [f"{key}={value}".replace(" ", "_") for key, value in given.items()]


def labels_in(machine: Mapping[str, Any]) -> dict[str, str]:
    pairs = [str(each).partition("=") for each in machine.get("labels") or ()]
    return {key: value for key, _, value in pairs}


def view_of(machine: Mapping[str, Any]) -> InstanceView:
    status = str(machine["status"])
    return InstanceView(
        MachineId(str(machine["id"])),
        _STATES.get(status, "pending"),
        public=str(machine.get("floating_ip") or ""),
        private=str(machine.get("fixed_ip") or ""),
        reason=status,
        launch=labels_in(machine).get(labels.LAUNCH, ""),
    )


def thing_of(machine: Mapping[str, Any]) -> Thing:
    return labels.thing(str(machine["id"]), labels_in(machine))


def key_pair_thing(pair: Mapping[str, Any], pool: str) -> Thing:
    """A key pair, which has no labels: its name says which call made it."""
    return Thing(str(pair["id"]), pool=pool, launch=str(pair["name"])[-TOKEN_LENGTH:])
