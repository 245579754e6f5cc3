"""Launches of a pool at Lambda: the implementation of `providers.cloud.port.Launcher`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.cooldowns import Cooldowns
from ..cloud.keys import host_key
from ..cloud.machine import new_machine
from ..cloud.offers import Offer, choose, in_one_place
from ..cloud.port import Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.single_flight import OncePerKey
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..cloud.userdata import user_data_for
from ..errors import ProviderError
from . import catalogue
from .cloud import MARK, NAME_AT_MOST, SSH_KEY, LambdaCloud, key_name
from .service import LAUNCH
from .vendor import UNKNOWN, USER, VENDOR

if TYPE_CHECKING:
    from ..cloud.http import HttpApi

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
        await catalogue.load(api, request, provider.regions),
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
