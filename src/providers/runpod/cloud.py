"""RunPod with one API key: finds, launches and ends pods (RunPod's containers with GPUs or processors).

`RunPodCloud` and `RunPodLauncher` implement the two interfaces of `providers.cloud.port`. `RunPodSurveyor` lists pods
for `outrider ps` and `outrider gc`, and ends them for `gc`.

A pod's name contains the pool and its owner, because RunPod lists no other text that a create call can set. The name
has the form ``outrider:POOL:USER@HOST:TOKEN``, with at most 187 characters: if the owner is too long, its user name is
shortened. A launch whose response was lost is never sent again, because RunPod has no idempotency token: see
`cloud.single_launch`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from math import ceil
from typing import Any, Protocol
from urllib.parse import quote
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import LaunchRequest, MachineId
from ..cloud import labels
from ..cloud.account import AccountCloud, reached
from ..cloud.calls import ELSEWHERE, every_page, unless_unknown
from ..cloud.http import HttpApi
from ..cloud.inventory import InstanceView, ListedMachine, State, time_of
from ..cloud.machine_start import USER, HostKey, first_process, host_key, new_machine
from ..cloud.offers import Cooldowns, Offer, choose, in_one_place, of_one_type
from ..cloud.port import Answer, Created, Plan
from ..cloud.recorder import Recorder
from ..cloud.single_launch import SingleLauncher, SingleOrder
from ..cloud.surveyor import AccountSurveyor
from ..errors import BadRequest, NoCapacity, NotAuthorized, ProviderError, QuotaExceeded
from ..shared.pool_lock import Place
from ..shared.resource_ownership import Thing
from ..shared.side_by_side import each_of
from .api import (
    ANYWHERE,
    APART,
    CAPACITY_AGAIN_S,
    ERROR,
    EXITED,
    KEYS,
    NO_ACCESS,
    NOT_TAKEN,
    PODS,
    UNKNOWN,
    VENDOR,
    VERSION,
    base,
    load_catalogue,
    networked,
    service,
)

UNTIL = "OUTRIDER_UNTIL"  # environment variable of a pod: the unix time at which the pod's max_lifetime ends
_OWNER_AT_MOST = 80  # most characters of the owner in a pod's name
_NAME = re.compile(r"outrider:(?P<pool>[\w.-]+):(?P<owner>[^:]*):(?P<launch>[0-9a-f]{32})", re.ASCII)


def name_of(pool: str, token: str) -> str:
    """Return the name of the pod that a launch creates. ``token``: the launch's token, 32 hexadecimal digits."""
    user, _, host = labels.labels_of(pool, {})[labels.OWNER].replace(":", "-").rpartition("@")
    user = user[: max(1, _OWNER_AT_MOST - len(host))]
    return f"outrider:{pool}:{user}@{host}:{token}"


def thing(pod: Mapping[str, Any]) -> Thing:
    """Convert a pod to a `Thing` (a resource with its tags). The pod's name says which pool owns the pod. A renamed pod
    belongs to no pool, unless the journal has its id.
    """
    match = _NAME.fullmatch(pod["name"])
    return Thing(pod["id"]) if match is None else Thing(pod["id"], **match.groupdict())


# --- finding and ending pods ------------------------------------------------------------------------------------------


_STATES: Mapping[str, State] = {
    "PROVISIONING": "pending",
    "STARTING": "pending",
    "RUNNING": "running",
    EXITED: "stopped",  # the pool ends such a pod, because nothing uses it again
    ERROR: "stopped",
    "TERMINATED": "terminated",
}


def reach(place: Mapping[str, str]) -> AbstractAsyncContextManager[RunPodCloud]:
    """Open RunPod with the account, key file and address in ``place``; see `account.reached`."""
    return reached(RunPodCloud, KEYS, service(place.get("endpoint_url")), place)


class RunPodCloud(AccountCloud):
    """Implements `providers.cloud.port.Cloud`."""

    vendor = VENDOR
    end_at_most = 8  # each call ends one pod, so this is the number of concurrent calls

    def __init__(self, api: HttpApi, place: Mapping[str, str]) -> None:
        super().__init__(api, place)
        self._ending: set[str] = set()  # pods that this process has asked RunPod to end

    async def machines(self) -> list[ListedMachine]:
        return [read(each) for each in await self.pods()]

    async def unlisted(self, machine: str) -> InstanceView | None:
        if machine not in self._ending:
            return None
        pod = await unless_unknown(self.api.call("GET", _path(machine)), UNKNOWN)
        return InstanceView(MachineId(machine), "terminated") if pod is None else read(pod).view

    async def end(self, machines: Sequence[str]) -> list[InstanceView]:
        """End pods, and query each pod to confirm its end. A pod that RunPod does not know has no result."""
        return [each for each in await each_of(machines, self._delete) if each is not None]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (a missing pod is not an error)
        return False

    async def pods(self) -> list[dict[str, Any]]:
        """Return all pods of the account, except those of clusters.

        Raises:
            ProviderError: RunPod does not respond.
        """

        async def page(cursor: str) -> tuple[list[dict[str, Any]], str]:
            answer = await self.api.call("GET", PODS, params={"cursor": cursor} if cursor else None)
            where = answer.get("pagination") or {}
            following = where.get("nextCursor") if where.get("hasNextPage") else None
            return self.api.part(answer, list, "pods"), following or ""

        return await every_page(page)

    async def _delete(self, name: str) -> InstanceView | None:
        try:
            await self.api.call("DELETE", _path(name))
        except ProviderError as error:
            if error.code != UNKNOWN:
                raise
            return None
        self._ending.add(name)
        return InstanceView(MachineId(name), "shutting-down")


def _path(pod: str) -> str:
    return f"{PODS}/{quote(pod, safe='')}"


def read(pod: Mapping[str, Any]) -> ListedMachine:
    """Convert a pod in a response to a `ListedMachine`. An unknown state counts as running.

    A pod has no public address until RunPod has mapped a public port to its SSH server.
    """
    status, direct = pod["status"], (pod.get("ssh") or {}).get("direct")
    kind = pod.get("gpu") or pod.get("cpu") or {"id": "?"}
    return ListedMachine(
        thing(pod),
        _STATES.get(status, "running"),
        status=status,
        kind=kind["id"] if kind.get("count", 1) == 1 else f"{kind['count']} x {kind['id']}",
        zone=pod.get("dataCenterId") or "",
        launched_at=time_of(pod.get("createdAt")),
        hourly_usd=pod.get("cost"),
        until=labels.number((pod.get("env") or {}).get(UNTIL, "")),
        public=direct["host"] if direct else "",
        private=(pod.get("globalNetworking") or {}).get("ip", ""),
        port=direct["port"] if direct else 0,
        reason=status if status in VENDOR.causes else "",
    )


# --- launches ---------------------------------------------------------------------------------------------------------


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
    """Choose offers, and the rounds in which to try them. The offers of a round have the same type, because a create
    call names one type and several data centers.

    All nodes of a pool of several nodes are in one data center, because they use RunPod's private network.

    Raises:
        ProviderError: There are no offers.
    """
    there = await load_catalogue(
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


# --- the surveyor, for outrider ps and gc -----------------------------------------------------------------------------


class RunPodSurveyor(AccountSurveyor["RunPodCloud"]):
    """Implements `survey.Surveyor` for RunPod."""

    provider = "runpod"

    def reach(self, place: Place) -> AbstractAsyncContextManager[RunPodCloud]:

        return reach(place)
