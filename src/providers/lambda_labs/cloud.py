"""Lambda with one key, as far as machines are found and ended: the port of `providers.cloud`."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ..base import MachineId
from ..cloud import labels, teardown
from ..cloud.account import AccountCloud
from ..cloud.http import HttpApi, Key
from ..cloud.instance_inventory import InstanceView, State
from ..cloud.port import Leftover, Removed
from ..errors import ProviderError
from ..resource_ownership import Claim, Others, Thing
from .service import KEYS, data_of, service
from .vendor import PREEMPTED, UNKNOWN, VENDOR

MARK = 8  # hexadecimal digits that end the name of an SSH key: of its hash
SSH_KEY = "ssh-key"  # the kind of what a pool makes besides machines
NAME_AT_MOST = 64  # characters: InstanceLaunchRequest, Lambda Cloud API 1.10.0
_STATES: Mapping[str, State] = {
    "booting": "pending",
    "active": "running",
    "unhealthy": "running",  # it may be of use all the same: the pool finds out
    PREEMPTED: "stopped",  # and ended, as nothing says that its cost ends by itself
    "terminating": "shutting-down",
    "terminated": "terminated",
}


@asynccontextmanager
async def reach(place: Mapping[str, str]) -> AsyncIterator[LambdaCloud]:
    """Open Lambda in a place: of a pool's, with an ``account``, or as a provider's options say it.

    Raises:
        NotAuthorized: there is no key, or it is another than the one that the place was made with.
        BadRequest: ``outrider[lambda]`` is not installed, or the endpoint is no URL.
    """
    key, account = await KEYS.of(place)
    async with HttpApi.open(service(place.get("endpoint_url")), Key(key)) as api:
        yield LambdaCloud(api, {"account": account, **place})


class LambdaCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 50

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self._ending: set[str] = set()  # machines whose end Lambda has confirmed to begin

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> list[InstanceView]:
        listed = await self.instances()
        found = [each for each in listed if labels_in(each).get(labels.POOL) == pool or each["id"] in also]
        views = [view(each) for each in found if of is None or of.has(thing(each))]
        shown = {each["id"] for each in listed}
        for name in sorted({*also} & self._ending - shown):
            ended = await self._ended(name)
            views += [] if ended is None else [ended]
        return views

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        body = {"instance_ids": list(machines)}
        answer = await self.api.call("POST", "/instance-operations/terminate", body=body, idempotent=True)
        said = [view(each) for each in data_of(answer, dict).get("terminated_instances", ())]
        self._ending |= {each.id for each in said}
        # Its state is from before or after the call; the call itself says that it ends.
        return [each if each.ends else InstanceView(each.id, "shutting-down") for each in said]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code == UNKNOWN

    @property
    def leftovers(self) -> Sequence[Leftover]:
        return (Leftover(SSH_KEY, self._remove_keys),)

    # --- lists --------------------------------------------------------------------------------------------------------

    async def instances(self) -> list[dict[str, Any]]:
        """All machines of the account.

        Raises:
            ProviderError: Lambda does not answer.
        """
        listed: list[dict[str, Any]] = data_of(await self.api.call("GET", "/instances"), list)
        return listed

    async def keys(self) -> list[dict[str, Any]]:
        """All SSH keys of the account, each with its ``id``, ``name`` and ``public_key``.

        Raises:
            ProviderError: Lambda does not answer.
        """
        listed: list[dict[str, Any]] = data_of(await self.api.call("GET", "/ssh-keys"), list)
        return listed

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _ended(self, name: str) -> InstanceView | None:
        """Look for a machine that Lambda has begun to end, and lists no more; None: it exists."""
        try:
            answer = await self.api.call("GET", f"/instances/{name}")
        except ProviderError as error:
            if error.code != UNKNOWN:
                raise
            return InstanceView(MachineId(name), "terminated")
        return view(data_of(answer, dict))

    async def _remove_keys(self, what: Claim | Others, known: Sequence[str]) -> Removed:
        return await teardown.remove_each(what, known, shown=self._keys_of, delete=partial(_deleted, self.api))

    async def _keys_of(self, pool: str) -> list[Thing]:
        things = key_things(await self.keys())
        return [replace(each, pool=pool) for each in things if each.launch == key_name(pool, each.launch[-MARK:])]


async def _deleted(api: HttpApi, key: str) -> bool:
    try:
        await api.call("DELETE", f"/ssh-keys/{key}")
    except ProviderError as error:
        if error.code != UNKNOWN:
            raise
        return False
    return True


# --- what Lambda says of machines -------------------------------------------------------------------------------------


def labels_in(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["key"]: tag["value"] for tag in instance.get("tags") or ()}


def thing(instance: Mapping[str, Any]) -> Thing:
    return labels.thing(instance["id"], labels_in(instance))


def view(instance: Mapping[str, Any]) -> InstanceView:
    """The sighting of a machine. A state that Lambda has added since is that of one that runs."""
    status = instance["status"]
    return InstanceView(
        MachineId(instance["id"]),
        _STATES.get(status, "running"),
        public=instance.get("ip") or "",
        private=instance.get("private_ip") or "",
        reason=status if status in VENDOR.causes else "",
        launch=labels_in(instance).get(labels.LAUNCH, ""),
    )


# --- keys -------------------------------------------------------------------------------------------------------------


def key_name(pool: str, mark: str) -> str:
    """The name of a pool's SSH key. It is the token of the call that creates it too. ``mark``: `MARK` digits."""
    return f"{labels.name_of(pool)[: NAME_AT_MOST - MARK - 1]}-{mark}"


def key_things(keys: Iterable[Mapping[str, Any]]) -> list[Thing]:
    """The keys of any pools. Keys have no tags: their names say whose they are, the longest of them cut."""
    named = [(each, re.fullmatch(rf"outrider-(.+)-[0-9a-f]{{{MARK}}}", each["name"])) for each in keys]
    return [Thing(each["id"], pool=found[1], launch=each["name"]) for each, found in named if found]
