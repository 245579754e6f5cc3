"""Starts the containers of one pool: which host gets how many, with which image, limits and devices."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from dataclasses import field
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio

from ...lazy_dataclass import dataclass
from ..base import AcceleratorRequest, Address, LaunchRequest, Machine, MachineId
from ..cloud import labels
from ..cloud.cooldowns import Cooldowns
from ..cloud.failures import is_lost, most_telling
from ..cloud.offers import InstanceType, Offer, willing
from ..cloud.port import Answer, Made, Order, PlainLauncher, Plan
from ..cloud.written import FLEET
from ..errors import BadRequest, NoCapacity, ProviderError
from ..side_by_side import answers_of
from .cloud import ContainerCloud, found_in, machine_id
from .runtime import DEVICES, HERE, Container, Runtime, image_of, lease_file, run_words

if TYPE_CHECKING:
    from ..cloud.recorder import Recorder
    from .provider import Containers

AT_ONCE = 4  # containers that are started on a host at a time


@dataclass(frozen=True)
class Spot:
    """A place for one container."""

    name: str
    runtime: Runtime
    devices: tuple[int, ...] = ()

    @property
    def machine(self) -> MachineId:
        return machine_id(self.runtime.host, self.name)


@dataclass
class Room:
    """The room that a host has left. ``containers``: those of the pool; ``devices``: free ones that fit."""

    runtime: Runtime
    containers: int
    devices: list[int]


@dataclass(kw_only=True)
class ContainerOrder(Order):
    request: LaunchRequest
    spots: Sequence[Spot] = ()
    refusals: dict[Runtime, ProviderError] = field(default_factory=dict)


def plan(provider: Containers, request: LaunchRequest, cooldowns: Cooldowns) -> Plan:
    """Offer the hosts, each of which is a zone. What they have shows when they are reached.

    Raises:
        BadRequest: containers cannot be asked for this, or could never be as many.
        ProviderError: all hosts have failed a moment ago.
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

    def __init__(self, provider: Containers, cloud: ContainerCloud, recorder: Recorder) -> None:
        self._provider, self._cloud, self._recorder = provider, cloud, recorder
        self._runtimes = {each.zone: each for each in cloud.runtimes}
        self._with_image: set[tuple[Runtime, str]] = set()
        self._pulling = {each: anyio.Lock() for each in cloud.runtimes}
        self._under_way: list[ContainerOrder] = []  # whose containers may not be listed yet
        self._ordering = anyio.Lock()
        self._used: set[str] = set()
        cloud.used = self._used

    async def plan(
        self,
        request: LaunchRequest,
        cooldowns: Cooldowns,
        living: Collection[tuple[str, str]],  # noqa: ARG002 (hosts are asked how many they have)
    ) -> Plan:
        self._cloud.lease_s = max(self._cloud.lease_s or 0.0, request.lease_s)
        return plan(self._provider, request, cooldowns)

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> ContainerOrder:
        """See that each host has the image, and choose hosts. A host that fails gets none, if another does not.

        Raises:
            ProviderError: none can be used.
        """
        request, accelerator, per_host = plan.request, plan.request.accelerator, self._provider.per_host
        hosts = [self._runtimes[offer.zone] for offer in chosen]
        pulled = await answers_of(hosts, lambda each: self._pulled(each, image_of(self._provider, request)))
        order = ContainerOrder(
            token=uuid4().hex, offers=chosen, count=count, hourly_usd=0.0, at=anyio.current_time(), request=request
        )
        async with self._ordering:
            rooms = await self._rooms([each for each, error in pulled.items() if error is None], accelerator)
            for runtime, answer in (*pulled.items(), *rooms.items()):
                if isinstance(answer, ProviderError):
                    order.refusals[runtime] = answer
            usable = [each for each in rooms.values() if isinstance(each, Room)]
            order.spots = spread(usable, count, order.token, per_host, accelerator.count if accelerator else 0)
            order.count = len(order.spots)
            if not order.spots and order.refusals:
                raise _refusal(order.refusals.values())
            if not order.spots:
                full = f"{accelerator} is in use, by this pool or another" if accelerator else f"{per_host=}"
                raise NoCapacity(f"no host of {len(hosts)} has room for a container more: {full}", retry_after_s=5.0)
            self._under_way.append(order)
        return order

    async def create(self, order: ContainerOrder) -> Answer:
        facts = {"count": str(order.count), "image": image_of(self._provider, order.request)}
        try:
            made, refusals = await self._recorder.create(
                FLEET,
                order.token,
                facts,
                lambda: self._started(order),
                lambda found: [spot.machine for spot in found[0]],
            )
            own = self._provider.network not in (False, "host", "none")  # containers have addresses of their own
            listed = await self._cloud.listed(f"{labels.LAUNCH}={order.token}") if own else {}
        finally:
            self.forget(order)
        addresses = {name: each.address for name, each in found_in(listed)}  # one that is not told is found out there
        offers = {offer.zone: offer for offer in order.offers}
        return Answer(
            [
                Made(await self._machine(spot, order, addresses.get(spot.machine, "")), offers[spot.runtime.zone], "")
                for spot in made
            ],
            [([offers[runtime.zone]], error) for runtime, error in refusals.items()],
        )

    def forget(self, order: ContainerOrder) -> None:
        self._under_way[:] = [each for each in self._under_way if each is not order]

    # --- choosing hosts -----------------------------------------------------------------------------------------------

    async def _pulled(self, runtime: Runtime, image: str) -> None:
        """See that a host has the image."""
        pull = self._provider.pull
        async with self._pulling[runtime]:
            if (runtime, image) in self._with_image:
                return
            if pull == "always" or not await runtime.has_image(image):
                if pull == "never":
                    raise BadRequest(
                        f"{runtime.zone} has no image {image}, and pull='never' lets nobody fetch it",
                        advice="Pull or build it there, or leave pull= out.",
                    )
                await runtime.pull(image)
            self._with_image.add((runtime, image))

    async def _rooms(
        self, hosts: Sequence[Runtime], wanted: AcceleratorRequest | None
    ) -> dict[Runtime, Room | ProviderError]:
        listed = await self._cloud.listed(labels.POOL)

        async def room(runtime: Runtime) -> Room:
            found = listed[runtime]
            if isinstance(found, ProviderError):
                raise found
            coming = [spot for order in self._under_way for spot in order.spots if spot.runtime is runtime]
            ours = {each.name for each in found if each.labels.get(labels.POOL) == self._recorder.pool}
            devices = [] if wanted is None else await _fitting(runtime, wanted)
            taken = {*_devices_of(found), *(each for spot in coming for each in spot.devices)}
            names = ours | {spot.name for spot in coming}
            return Room(runtime, len(names), [each for each in devices if each not in taken])

        return await answers_of(hosts, room)

    # --- starting them ------------------------------------------------------------------------------------------------

    async def _started(self, order: ContainerOrder) -> tuple[list[Spot], dict[Runtime, ProviderError]]:
        """Start the containers; return those that run, and why hosts have refused others.

        Raises:
            ProviderError: one may have been started that nobody knows of, or none was.
        """
        self._used.update(spot.runtime.host for spot in order.spots)
        turns = {each: anyio.Semaphore(AT_ONCE) for each in self._cloud.runtimes}

        async def start(spot: Spot) -> None:
            async with turns[spot.runtime]:
                podman = bool(spot.devices) and await spot.runtime.is_podman()
                told = {**labels.labels_of(self._recorder.pool, {}), labels.LAUNCH: order.token}
                await spot.runtime.run(
                    run_words(
                        self._provider, order.request, name=spot.name, labels=told, devices=spot.devices, podman=podman
                    )
                )

        answers = await answers_of(order.spots, start)
        errors = {spot.runtime: error for spot, error in answers.items() if error is not None}
        for error in filter(is_lost, errors.values()):
            raise error
        made = [spot for spot in order.spots if answers[spot] is None]
        if not made:
            raise _refusal([*order.refusals.values(), *errors.values()])
        return made, {**errors, **order.refusals}

    async def _machine(self, spot: Spot, order: ContainerOrder, private_address: str) -> Machine:
        place, program = spot.runtime.place, await spot.runtime.program()
        devices = {"devices": ",".join(map(str, spot.devices))} if spot.devices else {}
        return Machine(
            id=spot.machine,
            address=Address() if place is None else Address(place.host, place.port, user=place.user),
            host_key="",
            ssh=False,
            inside=(*program, "exec", "-i", spot.name),
            login=None if place is None else place.login,
            private_address=private_address,
            lease=lease_file(spot.name),
            ordered=True,
            facts={"image": image_of(self._provider, order.request), "runtime": shlex.join(program), **devices},
        )


def spread(rooms: Sequence[Room], count: int, token: str, per_host: int | None, devices: int) -> list[Spot]:
    """Choose up to ``count`` spots, each on the host that has the fewest containers then, with so many ``devices``."""
    spots: list[Spot] = []
    while len(spots) < count:
        fitting = [
            each for each in rooms if (per_host is None or each.containers < per_host) and len(each.devices) >= devices
        ]
        if not fitting:
            break
        room = min(fitting, key=lambda each: each.containers)
        spots.append(Spot(f"outrider-{token[:12]}-{len(spots)}", room.runtime, tuple(room.devices[:devices])))
        room.containers += 1
        del room.devices[:devices]
    return spots


async def _fitting(runtime: Runtime, wanted: AcceleratorRequest) -> list[int]:
    """Return the numbers of a host's GPUs that fit.

    Raises:
        BadRequest: they are too few.
    """
    gpus = await runtime.gpus()
    fitting = [each.index for each in gpus if wanted.fits(each.name, each.memory_gb)]
    if len(fitting) < wanted.count:
        has = ", ".join(sorted({each.name for each in gpus})) or "no GPU that its driver tells of"
        raise BadRequest(f"{runtime.zone} has not {wanted}: it has {has}", advice="`nvidia-smi -L` there lists them.")
    return fitting


def _devices_of(containers: Sequence[Container]) -> list[int]:
    """Return the GPUs that containers of any pool have, as their labels say."""
    said = [each for one in containers for each in one.labels.get(DEVICES, "").split(",")]
    return [int(each) for each in said if each.isdigit()]


def _refusal(errors: Collection[ProviderError]) -> ProviderError:
    """Return the most telling error of hosts on which nothing was started. What a host has refused comes before that
    another one does not answer, and neither is a launch without an answer.
    """
    error = most_telling(sorted(errors, key=is_lost))
    if not is_lost(error):
        return error
    return NoCapacity(str(error), retry_after_s=error.retry_after_s, code=error.code, advice=error.advice)
