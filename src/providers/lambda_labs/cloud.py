"""Lambda with one API key: the implementation of `providers.cloud.port.Cloud`, which finds and ends machines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from ..base import MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.failures import unless_unknown
from ..cloud.http import HttpApi
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.listed import ListedMachine
from ..cloud.teardown import leftover
from ..errors import ProviderError
from ..resource_ownership import Thing
from .service import KEYS, service
from .vendor import PREEMPTED, UNKNOWN, VENDOR

MARK = 8  # number of hexadecimal digits at the end of an SSH key's name, which are a hash
SSH_KEY = "ssh-key"  # the kind of SSH keys in the journal; besides machines, a pool creates only SSH keys
NAME_AT_MOST = 64  # most characters in a machine's name, from InstanceLaunchRequest in Lambda Cloud API 1.10.0
_STATES: Mapping[str, State] = {
    "booting": "pending",
    "active": "running",
    "unhealthy": "running",  # such a machine may still work; the pool itself checks whether it does
    PREEMPTED: "stopped",  # the pool ends such a machine, which may cost money until it is ended
    "terminating": "shutting-down",
    "terminated": "terminated",
}


def reach(place: Mapping[str, str]) -> AbstractAsyncContextManager[LambdaCloud]:
    """Open Lambda in a place (`account.reached`)."""
    return reached(LambdaCloud, KEYS, service(place.get("endpoint_url")), place)


class LambdaCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 50

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self.leftovers = (
            leftover(SSH_KEY, shown=self._keys_of, delete=self._delete_key, is_unknown=self.is_unknown_machine),
        )
        self._ending: set[str] = set()  # machines whose end Lambda has confirmed

    async def machines(self) -> list[ListedMachine]:
        return [read(each) for each in self.api.part(await self.api.call("GET", "/instances"), list, "data")]

    async def unlisted(self, machine: str) -> InstanceView | None:
        if machine not in self._ending:
            return None
        answer = await unless_unknown(self.api.call("GET", f"/instances/{machine}"), UNKNOWN)
        if answer is None:
            return InstanceView(MachineId(machine), "terminated")
        return read(self.api.part(answer, dict, "data")).view

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        body = {"instance_ids": list(machines)}
        answer = await self.api.call("POST", "/instance-operations/terminate", body=body, idempotent=True)
        terminated = [read(each).view for each in self.api.part(answer, dict, "data").get("terminated_instances", ())]
        self._ending |= {each.id for each in terminated}
        # Lambda has confirmed that these machines end, even if the state in the response is older.
        return [each if each.ends else InstanceView(each.id, "shutting-down") for each in terminated]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code == UNKNOWN

    # --- SSH keys -----------------------------------------------------------------------------------------------------

    async def keys(self) -> list[dict[str, Any]]:
        """Return all SSH keys of the account, each with its ``id``, ``name`` and ``public_key``.

        Raises:
            ProviderError: Lambda does not respond.
        """
        keys: list[dict[str, Any]] = self.api.part(await self.api.call("GET", "/ssh-keys"), list, "data")
        return keys

    async def others(self) -> list[Thing]:
        return key_things(await self.keys())

    async def _keys_of(self, pool: str) -> list[Thing]:
        things = await self.others()
        return [replace(each, pool=pool) for each in things if each.launch == key_name(pool, each.launch[-MARK:])]

    async def _delete_key(self, key: str) -> None:
        await self.api.call("DELETE", f"/ssh-keys/{key}")


def read(instance: Mapping[str, Any]) -> ListedMachine:
    """Convert a machine in a response to a `ListedMachine`. An unknown state counts as running."""
    status, kind = instance["status"], instance.get("instance_type") or {}
    region, cents = instance.get("region") or {}, kind.get("price_cents_per_hour")
    tags = {tag["key"]: tag["value"] for tag in instance.get("tags") or ()}
    return ListedMachine(
        labels.thing(instance["id"], tags),
        _STATES.get(status, "running"),
        status=status,
        kind=kind.get("name", ""),
        zone=region.get("name", ""),
        launched_at=labels.number(tags.get(labels.AT, "")),
        hourly_usd=None if cents is None else cents / 100,
        until=labels.number(tags.get(labels.UNTIL, "")),
        public=instance.get("ip") or "",
        private=instance.get("private_ip") or "",
        reason=status if status in VENDOR.causes else "",
    )


def key_name(pool: str, mark: str) -> str:
    """Return the name of a pool's SSH key. The name is also the token of the call that creates the key.

    ``mark``: the `MARK` hexadecimal digits that end the name.
    """
    return f"{labels.name_of(pool)[: NAME_AT_MOST - MARK - 1]}-{mark}"


def key_things(keys: Iterable[Mapping[str, Any]]) -> list[Thing]:
    """Return the SSH keys of all pools. A key has no tags, so its name contains the pool's name, shortened if it is too
    long.
    """
    named = [(each, re.fullmatch(rf"outrider-(.+)-[0-9a-f]{{{MARK}}}", each["name"])) for each in keys]
    return [Thing(each["id"], pool=match[1], launch=each["name"]) for each, match in named if match]
