"""Launches of a pool at Hyperstack: the implementation of `providers.cloud.port.Launcher`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import Architecture, LaunchRequest, MachineId
from ..cloud.cooldowns import Cooldowns
from ..cloud.failures import AGAIN_S, CallRefused
from ..cloud.http import HttpApi
from ..cloud.keys import host_key
from ..cloud.machine import new_machine
from ..cloud.offers import Offer, choose, in_one_place
from ..cloud.own_address import let_in
from ..cloud.port import Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.single_flight import OncePerKey
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..cloud.userdata import user_data_for
from ..errors import BadRequest, ProviderError
from .catalogue import ADDRESS_USD, market
from .cloud import KEY_PAIR, KEY_PAIRS, MACHINES, TOKEN_LENGTH, HyperstackCloud, label_list, name_of
from .vendor import UNKNOWN, VENDOR

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
    """Return a plan. Each round has one offer, because one call takes one offer. All offers are in one environment, so
    that the machines reach each other at private addresses.
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
