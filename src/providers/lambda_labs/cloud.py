"""Lambda with one API key: finds, launches and ends machines and SSH keys.

`LambdaCloud` and `LambdaLauncher` implement the two interfaces of `providers.cloud.port`. `LambdaSurveyor` lists
machines for `outrider ps` and `outrider gc`, and ends them for `gc`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.caching import OncePerKey
from ..cloud.calls import unless_unknown
from ..cloud.http import HttpApi
from ..cloud.inventory import InstanceView, ListedMachine, State
from ..cloud.machine_start import host_key, new_machine, user_data_for
from ..cloud.offers import Cooldowns, Offer, choose, in_one_place
from ..cloud.port import Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..cloud.surveyor import AccountSurveyor
from ..cloud.teardown import leftover
from ..errors import ProviderError
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Thing
from .api import KEYS, LAUNCH, PREEMPTED, UNKNOWN, USER, VENDOR, load_catalogue, service

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
    """Open Lambda with the account, key file and address in ``place``; see `account.reached`."""
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


# --- launches ---------------------------------------------------------------------------------------------------------


LAUNCH_S = 60.0  # seconds after which one launch times out; a launch usually takes a few seconds
BILLED_AT_LEAST_S = 60.0  # seconds, because Lambda bills by the minute
VALUE_AT_MOST = 128  # most characters of a tag's value
_IMAGE_ID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}")


class LambdaOptions(Protocol):
    """The options of `Lambda` that a launch reads."""

    @property
    def regions(self) -> Collection[str] | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def image(self) -> str | None: ...

    @property
    def file_systems(self) -> Collection[str] | None: ...

    @property
    def firewall_rulesets(self) -> Collection[str] | None: ...

    @property
    def tags(self) -> Mapping[str, str] | tuple[tuple[str, str], ...] | None: ...


@dataclass(slots=True, kw_only=True)
class LaunchOrder(SingleOrder):
    """One launch of one machine. ``client_key``: the client's public key; ``key_name``: the name of the SSH key that
    Lambda has for it.
    """

    client_key: str
    key_name: str


async def plan(
    api: HttpApi,
    provider: LambdaOptions,
    request: LaunchRequest,
    cooldowns: Cooldowns,
    living: Collection[tuple[str, str]],
) -> Plan:
    """Choose offers. For several nodes, all offers are in one region, because machines reach each other only within a
    region.

    Raises:
        ProviderError: There are no offers.
    """
    rounds = choose(
        request,
        await load_catalogue(api, request, provider.regions),
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=provider.regions,
    )
    return Plan(request, in_one_place(rounds, living) if request.nodes > 1 else rounds, {})


class LambdaLauncher(SingleLauncher[LambdaCloud, LaunchOrder]):
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: LambdaOptions, cloud: LambdaCloud, recorder: Recorder) -> None:
        super().__init__(cloud, recorder)
        self._provider = provider
        self._key_names = OncePerKey(self._key_name)  # public key -> name of the SSH key at Lambda

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        return await plan(self._cloud.api, self._provider, request, cooldowns, living)

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> LaunchOrder:  # noqa: ARG002
        """Prepare the launch of one machine. Wait for Lambda's rate limit here, because a cancellation before the call
        has no effect to undo.
        """
        request, offer, token, key = plan.request, chosen[0], uuid4().hex, host_key()
        name = await self._key_names.get(request.client_key)
        await self._cloud.api.turn("POST", LAUNCH)
        config = user_data_for(VENDOR, request, host_key=key, user=USER)
        return LaunchOrder(
            token=token,
            offers=[offer],
            count=1,
            hourly_usd=offer.hourly_usd,
            at=anyio.current_time(),
            body=self._body(request, offer, token, name, config),
            host_key=key.public,
            client_key=request.client_key,
            key_name=name,
        )

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return error.code == UNKNOWN

    def forget(self, order: LaunchOrder) -> None:
        self._key_names.forget(order.client_key, order.key_name)

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _launch(self, order: LaunchOrder) -> list[str]:
        api = self._cloud.api
        answer = await api.call("POST", LAUNCH, body=order.body, timeout_s=LAUNCH_S, turn=True)
        return [str(each) for each in api.part(answer, list, "data", "instance_ids")]

    def _created(self, order: LaunchOrder, machine: MachineId) -> Created:
        (offer,), image = order.offers, self._provider.image or "Lambda Stack"
        created = new_machine(machine, offer, host_key=order.host_key, image=image, billed_at_least_s=BILLED_AT_LEAST_S)
        return Created(created, offer, USER)

    def _body(self, request: LaunchRequest, offer: Offer, token: str, key: str, config: str) -> dict[str, Any]:
        provider, pool = self._provider, self._recorder.pool
        tags = labels.of_machine(pool, dict(provider.tags or ()), token, request.max_lifetime_s)
        name = tags.pop("Name")
        body: dict[str, Any] = {
            "region_name": offer.zone,
            "instance_type_name": offer.type.name,
            "ssh_key_names": [key],
            "name": name[:NAME_AT_MOST],
            "user_data": config,
            "tags": [{"key": each, "value": value[:VALUE_AT_MOST]} for each, value in tags.items()],
        }
        if provider.image:
            body["image"] = {"id" if _IMAGE_ID.fullmatch(provider.image) else "family": provider.image}
        if provider.file_systems:
            body["file_system_names"] = list(provider.file_systems)
        if provider.firewall_rulesets:
            body["firewall_rulesets"] = [{"id": each} for each in provider.firewall_rulesets]
        return body

    async def _key_name(self, public: str) -> str:
        """Return the name of the pool's SSH key. Create the key if it is missing, because each launch must name
        a key.
        """
        name = key_name(self._recorder.pool, hashlib.sha256(public.encode()).hexdigest()[:MARK])
        if not any(each["name"] == name for each in await self._cloud.keys()):
            await self._recorder.create(SSH_KEY, name, {}, lambda: self._add(name, public), lambda ids: ids)
        return name

    async def _add(self, name: str, public: str) -> list[str]:
        api = self._cloud.api
        answer = await api.call("POST", "/ssh-keys", body={"name": name, "public_key": public})
        return [api.part(answer, str, "data", "id")]


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class LambdaSurveyor(AccountSurveyor["LambdaCloud"]):
    """Implements `survey.Surveyor` for Lambda."""

    provider = "lambda"

    def reach(self, place: Place) -> AbstractAsyncContextManager[LambdaCloud]:

        return reach(place)
