"""Launches of a pool at RunPod: the implementation of `providers.cloud.port.Launcher`, which creates pods.

A launch whose response was lost is never sent again, because RunPod has no idempotency token: see
`cloud.single_launch`.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud.cooldowns import Cooldowns
from ..cloud.failures import ELSEWHERE
from ..cloud.keys import HostKey, host_key
from ..cloud.machine import new_machine
from ..cloud.offers import Offer, choose, in_one_place, of_one_type
from ..cloud.port import Answer, Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.rented_container import USER, first_process
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..errors import BadRequest, NoCapacity, NotAuthorized, QuotaExceeded
from . import catalogue
from .catalogue import ANYWHERE, networked
from .cloud import RunPodCloud
from .names import UNTIL, name_of, thing
from .service import CAPACITY_AGAIN_S, PODS, VERSION, base
from .vendor import APART, NO_ACCESS, NOT_TAKEN, VENDOR

if TYPE_CHECKING:
    from ..cloud.http import HttpApi

LAUNCH_S = 60.0  # seconds after which one launch times out
# The default image: one of RunPod's own, named in an example of its documentation.
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
IMAGE_CUDA = "12.8"  # the CUDA version of the default image, which the driver of the pod's host must support
DISK_GB = {"gpu": 50, "cpu": 20}  # GB of disk if the pool requests none
PORT = 22  # the SSH server's port inside the pod; RunPod maps a public port to it


class RunPodOptions(Protocol):
    """The options of `RunPod` that a launch reads."""

    @property
    def cloud(self) -> str: ...

    @property
    def data_centers(self) -> Collection[str] | None: ...

    @property
    def instance_types(self) -> Collection[str] | None: ...

    @property
    def image(self) -> str | None: ...

    @property
    def registry(self) -> str | None: ...

    @property
    def min_cuda(self) -> str | None: ...

    @property
    def network_volume(self) -> str | None: ...

    @property
    def endpoint_url(self) -> str | None: ...


@dataclass(slots=True, kw_only=True)
class PodOrder(SingleOrder):
    """One launch of one pod. ``pod``: RunPod's response to the create call."""

    pod: Mapping[str, Any] = field(default_factory=dict)


async def plan(
    api: HttpApi,
    provider: RunPodOptions,
    request: LaunchRequest,
    cooldowns: Cooldowns,
    living: Collection[tuple[str, str]],
) -> Plan:
    """Choose offers in rounds of one type, because a create call names one type and several data centers.

    All nodes of a pool of several nodes are in one data center, because they use RunPod's private network.

    Raises:
        ProviderError: There are no offers.
    """
    there = await catalogue.load(
        api,
        request,
        cloud=provider.cloud.upper(),
        data_centers=provider.data_centers,
        instance_types=provider.instance_types,
    )
    rounds = choose(
        request,
        there,
        cooldowns,
        anyio.current_time(),
        instance_types=provider.instance_types,
        zones=provider.data_centers,
    )
    if request.nodes > 1:
        return Plan(request, in_one_place(rounds, living), {})
    by_price = [sorted(each, key=lambda offer: offer.hourly_usd) for each in rounds]
    return Plan(request, of_one_type(by_price), {})


class RunPodLauncher(SingleLauncher[RunPodCloud, PodOrder]):
    """Implements `providers.cloud.port.Launcher`."""

    def __init__(self, provider: RunPodOptions, cloud: RunPodCloud, recorder: Recorder) -> None:
        super().__init__(cloud, recorder)
        self._provider = provider

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        apart = request.nodes > 1 and not networked(request, self._provider.cloud.upper())
        self._cloud.vendor = APART if apart else VENDOR
        return await plan(self._cloud.api, self._provider, request, cooldowns, living)

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> PodOrder:  # noqa: ARG002
        """Prepare the launch of one pod. Wait for RunPod's rate limit here, because a cancellation before the create
        call has no effect to undo.
        """
        token, key = uuid4().hex, host_key()
        await self._cloud.api.turn("POST", PODS)
        return PodOrder(
            token=token,
            offers=chosen,
            count=1,
            hourly_usd=max(offer.hourly_usd for offer in chosen),
            at=anyio.current_time(),
            body=self._body(plan.request, chosen, token, key),
            host_key=key.public,
        )

    async def create(self, order: PodOrder) -> Answer:
        """See `port.Launcher.create`. If RunPod refuses this offer, or refuses it to this account, other offers may
        still succeed.
        """
        try:
            answer = await super().create(order)
        except BadRequest as error:
            if error.code != NOT_TAKEN:
                raise
            return Answer([], [(order.offers, error)])
        except NotAuthorized as error:
            if error.code != NO_ACCESS or order.lost:
                raise
            raise QuotaExceeded(
                f"{error}: the account has no access to {order.offers[0].type.name}, or the key may not create pods",
                code=error.code,
            ) from error
        wanted, landed = self._provider.data_centers, order.pod.get("dataCenterId")
        # RunPod's documentation calls the requested data centers "preferred", so a pod may be in another.
        if wanted is not None and landed is not None and landed not in wanted:
            await self._cloud.end([each.machine.id for each in answer.created])
            reason = f"RunPod has placed a pod in {landed}, and not in {' or '.join(wanted)}: it is ended"
            return Answer([], [(order.offers, NoCapacity(reason, retry_after_s=CAPACITY_AGAIN_S, advice=ELSEWHERE))])
        return answer

    # --- inside -------------------------------------------------------------------------------------------------------

    async def _launch(self, order: PodOrder) -> list[str]:
        api = self._cloud.api
        order.pod = await api.call("POST", PODS, body=order.body, timeout_s=LAUNCH_S, turn=True)
        return [api.part(order.pod, str, "id")]

    async def _launched(self, order: PodOrder) -> list[str]:
        pods = [each for each in await self._cloud.pods() if thing(each).launch == order.token]
        order.pod = pods[0] if pods else {}
        return [each["id"] for each in pods]

    def _created(self, order: PodOrder, machine: MachineId) -> Created:
        pod, zone = order.pod, order.pod.get("dataCenterId")
        offer = next((each for each in order.offers if each.zone == zone), order.offers[0])
        what = pod.get("gpu") or pod.get("cpu") or {}
        created = new_machine(
            machine,
            offer,
            host_key=order.host_key,
            image=order.body["image"],
            facts={name: f"{what[key]:g}" for name, key in _FACTS.items() if key in what},
        )
        # The price that RunPod bills, which may differ from the price in the catalogue.
        cost = float(pod.get("cost") or 0.0)
        return Created(replace(created, hourly_cost=cost) if cost else created, offer, USER)

    def _body(self, request: LaunchRequest, chosen: Sequence[Offer], token: str, key: HostKey) -> dict[str, Any]:
        provider, kind = self._provider, chosen[0].type
        image = request.container or provider.image or IMAGE
        body: dict[str, Any] = {
            "name": name_of(self._recorder.pool, token),
            "image": image,
            "entrypoint": ["sh", "-c"],
            "cmd": [self._command(request, key)],
            "env": {},
            "ports": [f"{PORT}/tcp"],
            "disk": request.disk_gb or DISK_GB["gpu" if kind.accelerators else "cpu"],
            "cloud": provider.cloud.upper(),
            "dataCenterIds": [offer.zone for offer in chosen if offer.zone != ANYWHERE],
        }
        if request.max_lifetime_s is not None:
            body["env"][UNTIL] = f"{time.time() + request.max_lifetime_s:.0f}"
        if kind.accelerators:
            gpu: dict[str, Any] = {"id": kind.name, "count": kind.accelerators}
            if request.vcpus:
                gpu["minVcpuCountPerGpu"] = ceil(request.vcpus / kind.accelerators)
            if request.memory_gb:
                gpu["minRamPerGpu"] = ceil(request.memory_gb / kind.accelerators)
            cuda = provider.min_cuda or (IMAGE_CUDA if image == IMAGE else None)
            body["gpu"] = gpu | ({"minCudaVersion": cuda} if cuda else {})
        else:
            body["cpu"] = {"id": kind.name, "vcpuCount": kind.vcpus}
        if networked(request, body["cloud"]):
            body["globalNetworking"] = True
        if provider.network_volume:
            body["mounts"] = {"network": [{"volumeId": provider.network_volume, "path": "/workspace"}]}
        return body | ({"registry": provider.registry} if provider.registry else {})

    def _command(self, request: LaunchRequest, key: HostKey) -> str:
        address = f"{base(self._provider.endpoint_url)}{VERSION}{PODS}/$RUNPOD_POD_ID"
        return first_process(
            host_key=key,
            client_key=request.client_key,
            lease_s=request.lease_s,
            max_lifetime_s=request.max_lifetime_s,
            port=PORT,
            end_itself=f'call DELETE "{address}" "Authorization: Bearer $RUNPOD_API_KEY" || '
            'runpodctl remove pod "$RUNPOD_POD_ID"',
        )


_FACTS = {"vcpus": "vcpuCount", "memory": "memory"}
