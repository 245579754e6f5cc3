"""The smallest cloud behind the port of `providers.cloud`: a service in memory, and what its own modules must be.

A real one has an HTTP client where `Sky` is, and asks for its list of types and prices. All the rest of a provider is
here: `SkyCloud` finds and ends machines, `SkyLauncher` creates them, `Clouded` is what users configure.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

import anyio
from anyio.lowlevel import checkpoint

from outrider.providers.base import EntryPoints, LaunchRequest, MachineId
from outrider.providers.cloud import labels
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.fleet import CloudFleet, open_fleet
from outrider.providers.cloud.inventory import InstanceView, State
from outrider.providers.cloud.machine_start import host_key, new_machine, user_data
from outrider.providers.cloud.offers import Catalogue, Cooldowns, InstanceType, Offer, choose
from outrider.providers.cloud.port import Answer, Created, Leftover, Order, Plan
from outrider.providers.cloud.recorder import FLEET, Recorder
from outrider.providers.cloud.vendor import Vendor
from outrider.providers.errors import NoCapacity, ProviderError
from outrider.providers.shared.resource_ownership import Claim, Others

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

SMALL = InstanceType("small", 4, 16.0, "x86_64", on_demand=True)
VENDOR = Vendor(name="Clouded", service="the sky")


@dataclass
class Sky:
    """The service. It makes machines once for each token, and may lose the answers of its creates."""

    room: int = 100
    lost_answers: int = 0
    hourly_usd: float = 0.5
    machines: dict[MachineId, tuple[State, dict[str, str]]] = field(default_factory=dict)
    creates: int = 0

    async def create(self, count: int, tags: dict[str, str], cloud_config: str) -> list[MachineId]:
        await checkpoint()
        self.creates += 1
        assert cloud_config.startswith("#cloud-config")
        token = tags[labels.LAUNCH]
        mine = [each for each, (_, its) in self.machines.items() if its[labels.LAUNCH] == token]
        if not mine:
            if len(self.alive) >= self.room:
                raise NoCapacity("the sky is full", retry_after_s=0.1, code="full")
            mine = [MachineId(f"m-{len(self.machines) + number}") for number in range(min(count, self.room))]
            self.machines |= dict.fromkeys(mine, ("pending", tags))
        if self.lost_answers:
            self.lost_answers -= 1
            raise CallRefused("the sky did not answer", retry_after_s=0.1, code="lost")
        return mine

    async def listed(self) -> dict[MachineId, tuple[State, dict[str, str]]]:
        await checkpoint()
        shown = dict(self.machines)
        booted: dict[State, State] = {"pending": "running", "shutting-down": "terminated"}
        self.machines = {each: (booted.get(state, state), its) for each, (state, its) in shown.items()}
        return shown

    async def end(self, machine: MachineId) -> None:
        await checkpoint()
        self.set(machine, "shutting-down")

    def set(self, machine: MachineId, state: State) -> None:
        if machine in self.machines and self.machines[machine][0] != "terminated":
            self.machines[machine] = state, self.machines[machine][1]

    @property
    def alive(self) -> list[MachineId]:
        return [each for each, (state, _) in self.machines.items() if state != "terminated"]


@dataclass
class SkyCloud:
    """Implements `port.Cloud`."""

    sky: Sky
    vendor: Vendor = VENDOR
    end_at_most: int = 10
    leftovers: Sequence[Leftover] = ()

    @property
    def place(self) -> Mapping[str, str]:
        return {"account": "one"}

    def where(self, place: Mapping[str, str]) -> str:
        return place.get("account", "")

    async def describe(
        self, pool: str, *, also: Collection[str] = (), of: Claim | Others | None = None
    ) -> Sequence[InstanceView]:
        return [
            InstanceView(each, state, public="198.51.100.7", launch=its[labels.LAUNCH])
            for each, (state, its) in (await self.sky.listed()).items()
            if (its[labels.POOL] == pool or each in also) and (of is None or of.has(labels.thing(each, its)))
        ]

    async def end(self, machines: Sequence[str]) -> Sequence[InstanceView]:
        for each in machines:
            await self.sky.end(MachineId(each))
        return [InstanceView(MachineId(each), "shutting-down") for each in machines]

    def is_unknown_machine(self, error: ProviderError) -> bool:
        return error.code == "unknown"


@dataclass
class SkyLauncher:
    """Implements `port.Launcher`."""

    sky: Sky
    recorder: Recorder

    def start(self) -> None:
        pass

    async def stop(self) -> None:
        await checkpoint()

    async def plan(self, request: LaunchRequest, cooldowns: Cooldowns, living: Collection[tuple[str, str]]) -> Plan:
        await checkpoint()
        prices, zones = {"small": self.sky.hourly_usd}, {"small": frozenset({"here"})}
        stock = Catalogue(VENDOR, "here", {"small": SMALL}, zones, on_demand=prices)
        return Plan(request, choose(request, stock, cooldowns, anyio.current_time()), {})

    async def order(self, plan: Plan, chosen: Sequence[Offer], count: int) -> SkyOrder:
        await checkpoint()
        key, request = host_key(), plan.request
        config = user_data(VENDOR, host_key=key, client_key=request.client_key, user="ubuntu", lease_s=request.lease_s)
        return SkyOrder(
            token=uuid4().hex,
            offers=chosen,
            count=count,
            hourly_usd=chosen[0].hourly_usd,
            at=anyio.current_time(),
            host_key=key.public,
            config=config,
        )

    async def create(self, order: SkyOrder) -> Answer:
        tags = labels.labels_of(self.recorder.pool, {}) | {labels.LAUNCH: order.token}
        made = await self.recorder.create(
            FLEET,
            order.token,
            {"count": str(order.count)},
            lambda: self.sky.create(order.count, tags, order.config),
            lambda ids: ids,
        )
        (offer, *_) = order.offers
        return Answer(
            [Created(new_machine(each, offer, host_key=order.host_key, image="ours"), offer, "ubuntu") for each in made]
        )

    def is_unknown_yet(self, error: ProviderError) -> bool:
        return False

    def forget(self, order: SkyOrder) -> None:
        pass


@dataclass(kw_only=True)
class SkyOrder(Order):
    host_key: str
    config: str


@dataclass(frozen=True)
class Clouded:
    """The provider."""

    sky: Sky
    name: str = "clouded"
    local: bool = False

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints, /) -> AsyncIterator[CloudFleet[Plan, SkyOrder]]:
        cloud = SkyCloud(self.sky)

        def make(recorder: Recorder, tasks: TaskGroup) -> CloudFleet[Plan, SkyOrder]:
            return CloudFleet(cloud, SkyLauncher(self.sky, recorder), recorder, tasks)

        async with open_fleet(pool, self.name, cloud.place, make) as fleet:
            yield fleet
