"""Hyperstack with one API key: finds, launches and ends machines and key pairs.

`HyperstackCloud` and `HyperstackLauncher` implement the two interfaces of `providers.cloud.port`. `HyperstackSurveyor`
lists machines for `outrider ps` and `outrider gc`, and ends them for `gc`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.addresses import let_in
from ..cloud.caching import OncePerKey
from ..cloud.calls import AGAIN_S, CallRefused, unless_unknown
from ..cloud.http import HttpApi
from ..cloud.inventory import InstanceView, ListedMachine, State, time_of
from ..cloud.machine_start import host_key, new_machine, user_data_for
from ..cloud.offers import Cooldowns, Offer, choose, in_one_place
from ..cloud.port import Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..cloud.surveyor import AccountSurveyor
from ..cloud.teardown import leftover
from ..errors import BadRequest, ProviderError
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Thing
from ..survey import FoundMachine
from .api import ADDRESS_USD, KEYS, SERVICE, SPOT, UNKNOWN, VENDOR, book_of, listed, market, usd_of

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
    """Open Hyperstack with the account, key file and address in ``place``; see `account.reached`."""
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


# --- launches ---------------------------------------------------------------------------------------------------------


USER = "ubuntu"
CREATE_S = 60.0
EXTRAS_USD: Mapping[Architecture, float] = {"x86_64": ADDRESS_USD}
PRIVATE = "10.0.0.0/8"  # a range that contains the private networks of all environments


class HyperstackOptions(Protocol):
    """The options of `Hyperstack` that a launch reads."""

    @property
    def environments(self) -> Collection[str] | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def image(self) -> str | None: ...

    @property
    def ssh_from(self) -> str | Sequence[str]: ...

    @property
    def endpoint_url(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HyperstackPlan(Plan):
    regions: Mapping[str, str]  # environment -> its region


@dataclass(slots=True, kw_only=True)
class HyperstackOrder(SingleOrder):
    """One launch of one machine. ``client_key``: the client's public key, of which Hyperstack has a key pair."""

    client_key: str


async def planned(
    api: HttpApi,
    provider: HyperstackOptions,
    request: LaunchRequest,
    cooldowns: Cooldowns,
    living: Collection[tuple[str, str]],
) -> HyperstackPlan:
    """Return a plan, whose offers are tried in rounds. Each round has one offer, because one call takes one offer. All
    offers are in one environment, so that the machines reach each other at private addresses.
    """
    there, regions = await market(api, provider.environments, request.disk_gb)
    now, types = anyio.current_time(), provider.instance_types
    rounds = choose(request, there, cooldowns, now, instance_types=types, extras_usd=EXTRAS_USD)
    return HyperstackPlan(request, in_one_place(rounds, living), EXTRAS_USD, regions=regions)


class HyperstackLauncher(SingleLauncher[HyperstackCloud, HyperstackOrder]):
    """Implements `port.Launcher`."""

    def __init__(self, cloud: HyperstackCloud, provider: HyperstackOptions, recorder: Recorder) -> None:
        super().__init__(cloud, recorder)
        self._api, self._provider = cloud.api, provider
        self._key_pairs = OncePerKey(self._key_pair)  # (environment, client key) -> name of the key pair
        self._images = OncePerKey(self._image)  # region -> name of the image
        self._sources: OncePerKey[str, tuple[str, ...]] = OncePerKey(
            lambda owner: let_in(owner, provider.ssh_from, provider.endpoint_url)
        )

    async def plan(
        self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]
    ) -> HyperstackPlan:
        return await planned(self._api, self._provider, request, cooldowns, living)

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> HyperstackOrder:  # noqa: ARG002
        assert isinstance(plan, HyperstackPlan)
        (offer,), token, key = chosen, uuid4().hex[:TOKEN_LENGTH], host_key()
        client_key = plan.request.client_key
        body = {
            "name": name_of(self._recorder.pool, token),
            "environment_name": offer.zone,
            "image_name": self._provider.image or await self._images.get(plan.regions[offer.zone]),
            "flavor_name": offer.type.name,
            "key_name": await self._key_pairs.get((offer.zone, client_key)),
            "count": 1,
            "assign_floating_ip": True,
            "enable_port_randomization": False,  # with randomization, the SSH server would have another port than 22
            "user_data": user_data_for(VENDOR, plan.request, host_key=key, user=USER),
            "labels": label_list(self._recorder.pool, token, plan.request.max_lifetime_s),
            "security_rules": rules(await self._sources.get("Hyperstack")),
        }
        await self._api.turn("POST", MACHINES)
        usd, now = offer.hourly_usd + ADDRESS_USD, anyio.current_time()
        return HyperstackOrder(
            token=token,
            offers=chosen,
            count=1,
            hourly_usd=usd,
            at=now,
            body=body,
            host_key=key.public,
            client_key=client_key,
        )

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return error.code == UNKNOWN and "key" in str(error).lower()

    def forget(self, order: HyperstackOrder) -> None:
        self._key_pairs.forget((order.offers[0].zone, order.client_key), order.body["key_name"])

    # --- one call -----------------------------------------------------------------------------------------------------

    async def _launch(self, order: HyperstackOrder) -> list[str]:
        answer = await self._api.call("POST", MACHINES, body=order.body, timeout_s=CREATE_S, turn=True)
        ids = [str(each["id"]) for each in answer.get("instances") or ()]
        if not ids:
            raise CallRefused("Hyperstack did not say which machine it made", retry_after_s=AGAIN_S)
        return ids

    def _created(self, order: HyperstackOrder, machine: MachineId) -> Created:
        (offer,), image = order.offers, order.body["image_name"]
        created = new_machine(machine, offer, host_key=order.host_key, image=image, extras_usd=ADDRESS_USD)
        return Created(created, offer, USER)

    # --- resources for a call -----------------------------------------------------------------------------------------

    async def _key_pair(self, which: tuple[str, str]) -> str:
        """Create a key pair in an environment, from the public key of the pool's client. Return its name."""
        (environment, client_key), token = which, uuid4().hex[:TOKEN_LENGTH]
        name = name_of(self._recorder.pool, token)
        body = {"name": name, "environment_name": environment, "public_key": client_key}
        await self._recorder.create(
            KEY_PAIR,
            token,
            {"environment": environment},
            lambda: self._api.call("POST", KEY_PAIRS, body=body),
            lambda answer: [str(answer["keypair"]["id"])],
        )
        return name

    async def _image(self, region: str) -> str:
        """Return the name of the default image in a region, which is used if the user names no image."""
        answer = await self._api.call("GET", "/core/images", params={"region": region})
        return newest([str(image["name"]) for each in answer["images"] for image in each["images"]], region)


def newest(names: Collection[str], region: str) -> str:
    """Return the newest of Hyperstack's Ubuntu images with NVIDIA's driver, such as ``Ubuntu Server 24.04 LTS R570 CUDA
    12.8``.

    Raises:
        BadRequest: There is no such image.
    """
    pattern = r"Ubuntu Server (\d+)\.(\d+) LTS.* R(\d+) CUDA (\d+)\.(\d+)"
    versions = {
        name: [int(each) for each in match.groups()] for name in names if (match := re.fullmatch(pattern, name))
    }
    if not versions:
        raise BadRequest(f"Hyperstack has no image of Ubuntu with CUDA in {region}: give Hyperstack(image=...)")
    return max(versions, key=lambda name: (versions[name], name))


def rules(ssh_from: Sequence[str]) -> list[dict[str, Any]]:
    """Return a machine's firewall rules: they allow SSH from ``ssh_from``, and TCP and UDP from private addresses."""
    ssh = [_rule("tcp", cidr, 22, 22) for cidr in ssh_from]
    return [*ssh, _rule("tcp", PRIVATE, 1, 65535), _rule("udp", PRIVATE, 1, 65535)]


def _rule(protocol: str, source: str, first: int, last: int) -> dict[str, Any]:
    return {
        "direction": "ingress",
        "ethertype": "IPv6" if ":" in source else "IPv4",
        "protocol": protocol,
        "remote_ip_prefix": source,
        "port_range_min": first,
        "port_range_max": last,
    }


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class HyperstackSurveyor(AccountSurveyor[HyperstackCloud]):
    """Implements `survey.Surveyor` for Hyperstack."""

    provider = "hyperstack"

    def reach(self, place: Place) -> AbstractAsyncContextManager[HyperstackCloud]:
        return reach(place)

    async def find(
        self, cloud: HyperstackCloud, known: Sequence[str]
    ) -> tuple[Sequence[FoundMachine], Sequence[Thing]]:
        cloud.book = book_of(await cloud.api.call("GET", "/pricebook"))
        return await super().find(cloud, known)
