"""Hyperstack with one API key: the implementation of `port.Cloud`, which finds and ends machines and key pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

import anyio

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.failures import unless_unknown
from ..cloud.http import HttpApi
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine, time_of
from ..cloud.teardown import leftover
from ..errors import ProviderError
from ..resource_ownership import Thing
from .catalogue import ADDRESS_USD, SPOT, usd_of
from .service import KEYS, SERVICE, listed
from .vendor import UNKNOWN, VENDOR

MACHINES = "/core/virtual-machines"
KEY_PAIRS = "/core/keypairs"
KEY_PAIR = "key-pair"  # the kind of key pairs in the journal
LAG_S = 15.0  # seconds after which every list includes a new machine
NAME_LENGTH = 50
TOKEN_LENGTH = 12

# A machine in any other state, such as CREATING, BUILD or REBOOTING, will become ACTIVE, and counts as pending.
_STATES: Mapping[str, State] = {
    "ACTIVE": "running",
    "STOPPING": "stopping",
    "SHUTOFF": "stopped",
    "HIBERNATING": "stopped",
    "HIBERNATED": "stopped",
    "ERROR": "stopped",  # a machine in this state costs nothing, but exists until it is deleted
    "DELETING": "shutting-down",
    "DELETED": "terminated",
}


def reach(place: Mapping[str, str]) -> AbstractAsyncContextManager[HyperstackCloud]:
    """Open Hyperstack in a place (`account.reached`)."""
    service = replace(SERVICE, base_url=place.get("endpoint_url", SERVICE.base_url))
    return reached(HyperstackCloud, KEYS, service, place, scheme="")


class HyperstackCloud(AccountCloud):
    """Implements `port.Cloud`. ``book``: the price list; a caller sets it before it needs the prices of machines."""

    vendor = VENDOR
    end_at_most = 1

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self.leftovers = (
            leftover(
                KEY_PAIR,
                shown=self._key_pairs,
                delete=self._delete_key_pair,
                is_unknown=self.is_unknown_machine,
                has_machines=True,
            ),
        )
        self.book: Mapping[str, float] = {}
        # Machine -> time after which Hyperstack must know the machine, if it exists.
        self._known_from: dict[str, float] = {}

    async def machines(self) -> list[ListedMachine]:
        machines = [read(each, self.book) for each in await listed(self.api, MACHINES, "instances")]
        self._known_from |= {each.id: 0.0 for each in machines}
        return machines

    async def unlisted(self, machine: str) -> InstanceView | None:
        """See `AccountCloud.unlisted`. Query the machine by its id, because lists do not include deleted machines.

        A machine that no list has shown may be new, so its state counts as unknown for `LAG_S`.
        """
        now = anyio.current_time()
        if now < self._known_from.setdefault(machine, now + LAG_S):
            return None
        instance = await unless_unknown(self.api.call("GET", f"{MACHINES}/{machine}"), UNKNOWN)
        return InstanceView(MachineId(machine), "terminated") if instance is None else None

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        for each in machines:
            await self.api.call("DELETE", f"{MACHINES}/{each}")
        self._known_from.update(dict.fromkeys(machines, 0.0))
        return [InstanceView(MachineId(each), "shutting-down") for each in machines]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code == UNKNOWN

    async def others(self) -> list[Thing]:
        """Return the key pairs of all pools. A key pair has no labels, so its name has the pool and the token of the
        create call.
        """
        begin = labels.name_of("")
        pairs = [(str(each["id"]), str(each["name"])) for each in await listed(self.api, KEY_PAIRS, "keypairs")]
        return [
            Thing(each, pool=name[len(begin) : -TOKEN_LENGTH - 1], launch=name[-TOKEN_LENGTH:])
            for each, name in pairs
            if name.startswith(begin)
        ]

    async def _key_pairs(self, pool: str) -> list[Thing]:
        shortened = name_of(pool, "")[len(labels.name_of("")) : -1]
        return [replace(each, pool=pool) for each in await self.others() if each.pool == shortened]

    async def _delete_key_pair(self, name: str) -> None:
        await self.api.call("DELETE", f"/core/keypair/{name}")


# --- parsing of responses ---------------------------------------------------------------------------------------------


def name_of(pool: str, token: str) -> str:
    """Return the name of a resource of a pool. It ends with the token of the call that creates the resource."""
    return f"{labels.name_of(pool)[: NAME_LENGTH - TOKEN_LENGTH - 1]}-{token}"


def label_list(pool: str, token: str, max_lifetime_s: float | None) -> list[str]:
    """Return a machine's labels in Hyperstack's format. Spaces are replaced, because a space would end a label."""
    tags = labels.of_machine(pool, {}, token, max_lifetime_s)
    return [f"{key}={value}".replace(" ", "_") for key, value in tags.items()]


def labels_in(machine: Mapping[str, Any]) -> dict[str, str]:
    pairs = [str(each).partition("=") for each in machine.get("labels") or ()]
    return {key: value for key, _, value in pairs}


def read(machine: Mapping[str, Any], book: Mapping[str, float]) -> ListedMachine:
    """Convert a machine in a response to a `ListedMachine`, with its price from the price list."""
    status, tags = str(machine["status"]), labels_in(machine)
    flavor, environment = machine.get("flavor") or {}, machine.get("environment") or {}
    usd = usd_of(flavor, book) if flavor else None
    return ListedMachine(
        labels.thing(str(machine["id"]), tags),
        _STATES.get(status, "pending"),
        status=status.lower(),
        kind=str(flavor.get("name") or ""),
        zone=str(environment.get("name") or ""),
        market="spot" if str(flavor.get("gpu") or "").endswith(SPOT) else "on-demand",
        launched_at=time_of(machine.get("created_at")),
        hourly_usd=None if usd is None else usd + ADDRESS_USD,
        until=labels.number(tags.get(labels.UNTIL, "")),
        public=str(machine.get("floating_ip") or ""),
        private=str(machine.get("fixed_ip") or ""),
        reason=status,
    )
