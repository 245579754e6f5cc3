"""Containers on some hosts: `ContainerCloud` finds and removes them, `ContainerLauncher` creates a pool's containers.

They implement the two interfaces of `providers.cloud.port`. The launcher chooses how many containers run on which host,
with which image, limits and devices. Containers are found by their labels.

Docker and Podman list every change at once, so a container that is not listed has ended. It is unknown what runs on a
host that does not respond; the containers there end by their lease.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import AcceleratorRequest, Address, LaunchRequest, Machine, MachineId
from ..cloud import labels
from ..cloud.caching import OncePerKey
from ..cloud.calls import is_lost, most_telling
from ..cloud.inventory import LEASE_MORE_S, InstanceView, ListedMachine, State
from ..cloud.offers import Cooldowns, InstanceType, Offer, willing
from ..cloud.port import Answer, Created, Leftover, Order, PlainLauncher, Plan
from ..cloud.recorder import FLEET
from ..cloud.vendor import Vendor
from ..errors import BadRequest, NoCapacity, ProviderError
from ..shared.login_host import opened_commands
from ..shared.resource_ownership import Claim, Others
from ..shared.side_by_side import answers_of
from .runtime import DEVICES, HERE, Container, Runtime, image_of, lease_file

if TYPE_CHECKING:
    from ..cloud.recorder import Recorder
    from .runtime import ContainersOptions


VENDOR = Vendor(name="Containers", service="the container runtime")
# All other states of a container count as running: "running", "paused", "restarting".
_STATES: Mapping[State, tuple[str, ...]] = {
    "pending": ("created", "configured", "initialized"),
    "stopping": ("stopping",),
    "stopped": ("stopped", "exited", "dead"),
    "shutting-down": ("removing",),
}


@asynccontextmanager
async def reach(provider: ContainersOptions) -> AsyncIterator[ContainerCloud]:
    """Open a provider's hosts. The connection to each host is made at its first command."""
    hosts, places, argv = provider.hosts or ("",), provider.places or (None,), tuple(provider.runtime)
    async with opened_commands(provider.places) as argvs:
        runtimes = [Runtime(*each, argv) for each in zip(hosts, places, argvs, strict=True)]
        yield ContainerCloud(runtimes, provider.journal_place)


class ContainerCloud:
    """Implements `port.Cloud`. A host may have both Docker and Podman; a pool uses only one of them on each host."""

    def __init__(self, runtimes: Sequence[Runtime], place: Mapping[str, str]) -> None:
        self.runtimes, self.place = tuple(runtimes), place
        # The longest lease (seconds) that this process has given a container; None: unknown.
        self.lease_s: float | None = None
        self.used: set[str] | None = None  # hosts on which this pool may have containers; None: any host

    vendor = VENDOR
    end_at_most = 100
    leftovers: Sequence[Leftover] = ()

    def where(self, place: Mapping[str, str]) -> str:
        return place.get("hosts") or place.get("on", "")

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        """See `port.Cloud.describe`. Containers of hosts that do not respond are left out.

        When a pool ends, a host that does not respond is an error, until the lease of its containers is surely over.
        When machines are adopted (``of`` is None), it is an error only if no host responds.
        """
        containers, failed = await self.listed(f"{labels.POOL}={pool}")
        quiet = {each.host: error for each, error in failed.items() if self._may_have_some(each)}
        errors = list((failed if of is None else quiet).values())
        if errors and (of is not None or len(failed) == len(self.runtimes)):
            raise errors[0]
        if self.used is not None:
            self.used.update(map(host_of, also))
        views = [each.view for each in map(read, containers) if of is None or of.has(each.whose)]
        shown = {view.id for view in views}
        return views + [_ended(each) for each in also if each not in shown and host_of(each) not in quiet]

    async def listed(self, label: str) -> tuple[list[Container], dict[Runtime, ProviderError]]:
        """Return the containers with a label, and, for each host that failed to list its containers, the error."""
        answers = await answers_of(self.runtimes, lambda each: each.containers(label))
        failed = {each: error for each, error in answers.items() if isinstance(error, ProviderError)}
        return [
            one for containers in answers.values() if not isinstance(containers, ProviderError) for one in containers
        ], failed

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        """Remove containers, and return when they are gone. If a host does not respond, the other hosts still remove
        theirs; then its error is raised.
        """
        names = {each: [one.split("/")[-1] for one in machines if host_of(one) == each.host] for each in self.runtimes}
        runtimes = [each for each in self.runtimes if names[each]]
        answers = await answers_of(runtimes, lambda each: each.remove(names[each]))
        for error in filter(None, answers.values()):
            raise error
        return [_ended(one) for one in machines if host_of(one) in {each.host for each in runtimes}]

    def is_unknown_machine(self, error: ProviderError) -> bool:  # noqa: ARG002 (a missing container is not an error)
        return False

    def _may_have_some(self, runtime: Runtime) -> bool:
        """Return whether a host that does not respond may still have containers of the pool whose lease is not over."""
        if self.used is not None and runtime.host not in self.used:
            return False
        return self.lease_s is None or anyio.current_time() - runtime.heard_at <= self.lease_s + LEASE_MORE_S


def machine_id(host: str, name: str) -> MachineId:
    return MachineId(f"{host}/{name}" if host else name)


def host_of(machine: str) -> str:
    return machine.rpartition("/")[0]


def read(container: Container) -> ListedMachine:
    """Convert a container to a `ListedMachine`."""
    states: list[State] = [state for state, words in _STATES.items() if container.state in words]
    state = states[0] if states else "running"
    ended = f"its first process has ended with status {container.exit_status}"
    why = "it ran out of memory and was killed by the kernel" if container.oom else ended
    return ListedMachine(
        labels.thing(machine_id(container.host, container.name), container.labels),
        state,
        status=container.state,
        kind=container.image,
        zone=container.host,
        market="",
        launched_at=container.created_at,
        hourly_usd=0.0,
        private=container.address,
        message=why if state == "stopped" else "",
    )


def _ended(name: str) -> InstanceView:
    return InstanceView(MachineId(name), "terminated", message="the container has ended, or somebody has removed it")


# --- launches ---------------------------------------------------------------------------------------------------------


AT_ONCE = 4  # most containers that start at the same time on one host


@dataclass(frozen=True)
class Spot:
    """One container to be started: its name, its host, and its GPUs."""

    name: str
    runtime: Runtime
    devices: tuple[int, ...] = ()

    @property
    def machine(self) -> MachineId:
        return machine_id(self.runtime.host, self.name)


@dataclass
class Room:
    """The room that a host has left. ``containers``: the number of this pool's containers there; ``devices``: the free
    devices that fit the request.
    """

    runtime: Runtime
    containers: int
    devices: list[int]


@dataclass(kw_only=True)
class ContainerOrder(Order):
    request: LaunchRequest
    spots: Sequence[Spot] = ()
    refusals: Mapping[Runtime, ProviderError] = field(default_factory=dict)


def plan(provider: ContainersOptions, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
    """Return a plan that offers each host as a zone. The offers say nothing about a host's hardware, which is unknown
    until the first connection.
    """
    for option in ("disk_gb", "architecture", "interconnect"):
        if getattr(request, option):
            raise BadRequest(f"Containers cannot be asked for {option}: leave it out, and name hosts that have it")
    if not image_of(provider, request):
        raise BadRequest("Containers() has no image: write Containers('python:3.12-slim'), or Image(container=...)")
    most = provider.per_host and provider.per_host * max(1, len(provider.hosts or ()))
    if most and request.least > most:
        raise BadRequest(f"the pool needs {request.least} nodes, and per_host={provider.per_host} allows {most}")
    kind = InstanceType(image_of(provider, request), request.vcpus, request.memory_gb, "x86_64", on_demand=True)
    offers = [Offer(kind, host, "on-demand", 0.0) for host in provider.hosts or (HERE,)]
    return Plan(request, [willing(offers, cooldowns, anyio.current_time())], {})


class ContainerLauncher(PlainLauncher):
    """Implements `port.Launcher`."""

    def __init__(self, provider: ContainersOptions, cloud: ContainerCloud, recorder: Recorder) -> None:
        self._provider, self._cloud, self._recorder = provider, cloud, recorder
        self._runtimes = {each.zone: each for each in cloud.runtimes}
        self._images = OncePerKey[tuple[Runtime, str], None](lambda each: each[0].fetch(each[1], provider.pull))
        # Orders that are being carried out: the runtimes may not list their containers yet.
        self._under_way: list[ContainerOrder] = []
        self._ordering = anyio.Lock()
        cloud.used = set()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:  # noqa: ARG002 (the hosts are queried)
        self._cloud.lease_s = max(self._cloud.lease_s or 0.0, request.lease_s)
        return plan(self._provider, request, cooldowns)

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> ContainerOrder:
        """Make sure that each host has the image, and choose the hosts. A host that fails is skipped, unless all hosts
        fail.
        """
        request, accelerator, per_host = plan.request, plan.request.accelerator, self._provider.per_host
        hosts = [self._runtimes[offer.zone] for offer in chosen]
        pulled = await answers_of(hosts, lambda each: self._images.get((each, image_of(self._provider, request))))
        order = ContainerOrder(
            token=uuid4().hex, offers=chosen, count=count, hourly_usd=0.0, at=anyio.current_time(), request=request
        )
        async with self._ordering:
            ready = [each for each, error in pulled.items() if error is None]
            rooms = await answers_of(ready, lambda each: self._room(each, accelerator))
            order.refusals = {one: error for one, error in (pulled | rooms).items() if isinstance(error, ProviderError)}
            usable = [each for each in rooms.values() if isinstance(each, Room)]
            order.spots = spread(usable, count, order.token, per_host or inf, accelerator.count if accelerator else 0)
            order.count = len(order.spots)
            if not order.spots:
                full = f"{accelerator} is in use, by this pool or another" if accelerator else f"{per_host=}"
                reason = f"no host of {len(hosts)} has room for a container more: {full}"
                raise _refusal(order.refusals.values() or [NoCapacity(reason, retry_after_s=5.0)])
            self._under_way.append(order)
        return order

    async def create(self, order: ContainerOrder) -> Answer:
        facts = {"count": str(order.count), "image": image_of(self._provider, order.request)}
        errors: dict[Runtime, ProviderError] = {}  # the errors of hosts that failed to start their containers
        # The known addresses of containers; a missing address is determined on the container's host.
        addresses: dict[MachineId, str] = {}
        try:
            spots = await self._recorder.create(FLEET, order.token, facts, lambda: self._started(order, errors), list)
            # Only in these networks, containers have addresses of their own.
            if self._provider.network not in (False, "host", "none"):
                listed, _ = await self._cloud.listed(f"{labels.LAUNCH}={order.token}")
                addresses = {each.id: each.private for each in map(read, listed)}
        finally:
            self.forget(order)
        offers = {offer.zone: offer for offer in order.offers}
        return Answer(
            [Created(self._machine(each, order, addresses), offers[each.runtime.zone], "") for each in spots.values()],
            [([offers[runtime.zone]], error) for runtime, error in {**errors, **order.refusals}.items()],
        )

    def forget(self, order: ContainerOrder) -> None:
        self._under_way[:] = [each for each in self._under_way if each is not order]

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _room(self, runtime: Runtime, wanted: AcceleratorRequest | None) -> Room:
        there = await runtime.containers(labels.POOL)
        ours = {each.name for each in there if each.labels.get(labels.POOL) == self._recorder.pool}
        coming = [spot for order in self._under_way for spot in order.spots if spot.runtime is runtime]
        taken = {number for each in there for number in each.labels.get(DEVICES, "").split(",")}
        taken.update(str(number) for spot in coming for number in spot.devices)
        devices = [] if wanted is None else await runtime.gpus(wanted)
        free = [each for each in devices if str(each) not in taken]
        return Room(runtime, len(ours | {spot.name for spot in coming}), free)

    async def _started(self, order: ContainerOrder, errors: dict[Runtime, ProviderError]) -> dict[MachineId, Spot]:
        """Start an order's containers. Return those that were started, and add the errors of hosts to ``errors``.

        Raises:
            ProviderError: It is unknown whether a container was started, or no container was started.
        """
        self._cloud.used = {*(self._cloud.used or ()), *(spot.runtime.host for spot in order.spots)}
        turns = {each: anyio.Semaphore(AT_ONCE) for each in self._cloud.runtimes}
        tags = {**labels.labels_of(self._recorder.pool, {}), labels.LAUNCH: order.token}

        async def start(spot: Spot) -> None:
            async with turns[spot.runtime]:
                await spot.runtime.run(self._provider, order.request, name=spot.name, labels=tags, devices=spot.devices)

        answers = await answers_of(order.spots, start)
        errors |= {spot.runtime: error for spot, error in answers.items() if error is not None}
        for error in filter(is_lost, filter(None, answers.values())):
            raise error
        spots = {spot.machine: spot for spot in order.spots if answers[spot] is None}
        if not spots:
            raise _refusal([*order.refusals.values(), *errors.values()])
        return spots

    def _machine(self, spot: Spot, order: ContainerOrder, addresses: Mapping[MachineId, str]) -> Machine:
        place, program = spot.runtime.place, spot.runtime.argv
        devices = {"devices": ",".join(map(str, spot.devices))} if spot.devices else {}
        return Machine(
            id=spot.machine,
            address=Address() if place is None else Address(place.host, place.port, user=place.user),
            host_key="",
            ssh=False,
            inside=(*program, "exec", "-i", spot.name),
            login=None if place is None else place.login,
            private_address=addresses.get(spot.machine, ""),
            lease=lease_file(spot.name),
            ordered=True,
            facts={"image": image_of(self._provider, order.request), "runtime": shlex.join(program), **devices},
        )


def spread(rooms: Sequence[Room], count: int, token: str, per_host: float, devices: int) -> list[Spot]:
    """Choose up to ``count`` spots (containers to be started). Each next container gets the host with the fewest
    containers, and ``devices`` of its devices.
    """
    spots: list[Spot] = []
    while len(spots) < count:
        fitting = [each for each in rooms if each.containers < per_host and len(each.devices) >= devices]
        if not fitting:
            break
        room = min(fitting, key=lambda each: each.containers)
        spots.append(Spot(f"outrider-{token[:12]}-{len(spots)}", room.runtime, tuple(room.devices[:devices])))
        room.containers += 1
        del room.devices[:devices]
    return spots


def _refusal(errors: Collection[ProviderError]) -> ProviderError:
    """Return the most useful error of the hosts when no container was started.

    A refusal is more useful than the error of a host that does not respond. The result is never an error that leaves
    open whether a container was started.
    """
    error = most_telling(sorted(errors, key=is_lost))
    if not is_lost(error):
        return error
    # ``kind`` is the text, which is the same if the launch is repeated. So a pool that starts gives up at the second
    # failure, since the runtime itself has already retried for a while.
    text = str(error)
    return NoCapacity(text, retry_after_s=error.retry_after_s, code=error.code, advice=error.advice, kind=text)
