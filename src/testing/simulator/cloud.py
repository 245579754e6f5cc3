"""A provider with simulated machines: its capacity, its errors and its events come from the scenario.

The provider counts the cost of its machines; ``alive`` holds the machines that still cost money. A crashed machine
costs money until it is terminated, or its end is reported. If the answer to a launch call was lost, the next launch
call repeats the lost call and gets the same machines, as with the client token of an AWS launch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from ...lazy_dataclass import dataclass
from ...providers.base import (
    Address,
    EntryPoints,
    LaunchRequest,
    LaunchSettled,
    LaunchUnsure,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineQueued,
    MachineReachable,
    MachineStarted,
    PreemptionNotice,
)
from ...providers.errors import NoCapacity, ProviderError
from .faults import Bad
from .machines import Host

if TYPE_CHECKING:
    from .machines import Sim

UNREACHABLE_S = 5.0  # seconds until a call to the provider fails while the client has no network
TRY_AGAIN_S = 1.0
REPORTED_S = 1.0  # seconds until the end of a queued machine is reported; only this report lets the pool notice the end
# seconds after which the machines of an unanswered launch are ended if no launch call repeats it; the same constant
# is in `providers.cloud.fleet`
REPEAT_S = 120.0
HOURLY_USD = 3600.0  # price of a machine per hour: one dollar per second


@dataclass(slots=True)
class Unanswered:
    """A launch call whose answer was lost, with the machines that it started."""

    id: MachineId  # the token that identifies the launch call
    machines: list[Machine]


class ScriptedCloud:
    """A simulated `providers.base.Provider`: counts the costs of machines, and holds the faults of the whole cloud."""

    name = "scripted"
    local = False

    def __init__(self, sim: Sim) -> None:
        self.alive: dict[MachineId, Host] = {}
        self.answering: set[MachineId] = set()  # machines of launch calls that have not returned yet
        self.queued: set[MachineId] = set()  # machines for which the pool has received no report that they run
        self.running: set[MachineId] = set()  # machines of which the pool knows that they cost money
        self.unsure = 0  # number of launch calls without an answer, whose machines the pool does not know
        self.changed = False  # whether the set of paid machines changed since the last check of the costs
        self.spent = 0.0  # cost of all ended machines in USD, without machines that no launch call ever returned
        self._since: dict[MachineId, float] = {}
        self.launched = 0  # number of machines launched so far
        self.reachable = True
        self.droughts = 0
        # each entry lets one future launch call fail; its value is the `retry_after_s` of the error
        self.launch_errors: deque[float | None] = deque()
        self.lost_answers = 0  # number of future launch calls whose answers will be lost
        self.bad: deque[Bad] = deque()
        self.terminate_errors = 0
        self._sim = sim
        self._fleets: list[ScriptedFleet] = []
        self._fleet_of: dict[MachineId, ScriptedFleet] = {}

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[ScriptedFleet]:  # noqa: ARG002
        fleet = ScriptedFleet(self, self._sim)
        self._fleets.append(fleet)
        try:
            yield fleet
        finally:
            with anyio.CancelScope(shield=True):
                while left := [machine for machine in self.alive if self.is_of(fleet, machine)]:
                    try:
                        await fleet.terminate(left)
                    except ProviderError:
                        await anyio.sleep(TRY_AGAIN_S)

    # --- events of machines -------------------------------------------------------------------------------------------

    def lose(self, machine: MachineId, cause: str, *, silent: bool = True, reported_s: float | None = 1.0) -> None:
        """Switch off a machine that crashed or that the cloud took back.

        ``reported_s`` seconds later, the provider reports the end, and the machine costs nothing more. None: no report.
        """
        host = self.alive.get(machine)
        if host is None:
            return
        self._sim.trace("machine_lost", machine=machine, cause=cause)
        if machine in self.queued and reported_s is None:
            reported_s = REPORTED_S
        host.power_off(silent=silent)
        if reported_s is not None:
            self._sim.loop.call_later(reported_s, self._report_gone, machine, cause)

    def give_notice(self, machine: MachineId, seconds: float | None) -> None:
        if machine in self.alive:
            self._fleet_of[machine].emit(PreemptionNotice(machine, "cloud", seconds))

    def break_events(self) -> None:
        for fleet in self._fleets:
            fleet.emit(ProviderError("the stream of events broke"))

    def reach(self, reachable: bool) -> None:
        self.reachable = reachable
        for fleet in self._fleets:
            fleet.wake()

    def make(self, fleet: ScriptedFleet) -> Machine:
        """Add a machine to ``fleet`` and let it boot.

        If a `BadMachines` fault is due, the machine never becomes usable.
        """
        self.launched += 1
        number, sim = self.launched, self._sim
        id_ = MachineId(f"m{number}")
        self.alive[id_] = sim.hosts[id_] = host = Host(sim, number, id_)
        self._since[id_], self.changed = sim.loop.now, True
        self.answering.add(id_)  # until the launch call returns, the machine does not count as running
        self._fleet_of[id_] = fleet
        key = f"ssh-ed25519 HOST{number}"
        machine = Machine(id_, None, key, "/run/executor", private_address=host.address, hourly_cost=HOURLY_USD)
        how = self.bad.popleft() if self.bad else None
        if how is not None and how != "dark":
            host.refuses = how
        boot_s = sim.dice.within(sim.scenario.cloud.boot_s, "boot", number)
        queue_s = sim.dice.within(sim.scenario.cloud.queue_s, "queue", number)
        if queue_s:
            self.queued.add(id_)
            fleet.emit(MachineQueued(id_, "other jobs come before it", sim.loop.now + queue_s))
            sim.loop.call_later(queue_s, self._runs, id_)
        if how == "dark":
            return machine
        if not boot_s + queue_s:
            return self._boot(machine)
        sim.loop.call_later(queue_s + boot_s, self._booted, machine)
        return machine

    def is_of(self, fleet: ScriptedFleet, machine: MachineId) -> bool:
        return self._fleet_of.get(machine) is fleet

    def off_the_bill(self, machine: MachineId) -> None:
        if self.alive.pop(machine, None) is not None:
            self._sim.trace("machine_ended", machine=machine)
            self.changed = True
            self._sim.referee.nodes.machine_ended(machine)
            self.running.discard(machine)
            if machine not in self.answering and machine not in self.queued:
                self.spent += self._sim.loop.now - self._since[machine]
            self.queued.discard(machine)

    def bill(self) -> float:
        """Return the cost in USD of all machines until now."""
        running = self.alive.keys() - self.queued
        return self.spent + sum(self._sim.loop.now - self._since[machine] for machine in running)

    def started(self, machine: MachineId) -> None:
        """Count the costs of a queued machine from now on: the pool has received the report that the machine runs."""
        if machine in self.queued:
            self.queued.discard(machine)
            self._since[machine], self.changed = self._sim.loop.now, True
            self._recount(machine)

    def answered(self, machines: Sequence[Machine]) -> None:
        """Note that the launch call for these machines has ended, with or without an error."""
        self.answering.difference_update(machine.id for machine in machines)
        for machine in machines:
            self._recount(machine.id)

    def _recount(self, machine: MachineId) -> None:
        if machine in self.alive and machine not in self.answering and machine not in self.queued:
            self.running.add(machine)

    def _runs(self, machine: MachineId) -> None:
        host = self.alive.get(machine)
        if host is not None and not host.dead:
            self._fleet_of[machine].emit(MachineStarted(machine))

    def _boot(self, machine: Machine) -> Machine:
        host = self.alive[machine.id]
        host.boot()
        return replace(machine, address=Address(host=host.address))

    def _booted(self, machine: Machine) -> None:
        host = self.alive.get(machine.id)
        if host is not None and not host.dead:
            self._fleet_of[machine.id].emit(MachineReachable(self._boot(machine)))

    def _report_gone(self, machine: MachineId, cause: str) -> None:
        self.off_the_bill(machine)
        self._fleet_of[machine].emit(MachineGone(machine, cause))


class ScriptedFleet:
    def __init__(self, cloud: ScriptedCloud, sim: Sim) -> None:
        self._cloud, self._sim = cloud, sim
        self._events: deque[MachineEvent | ProviderError] = deque()
        # events that the provider creates itself, and delivers even while the client has no network
        self._own: deque[MachineEvent] = deque()
        self._unanswered: list[Unanswered] = []
        self._repeating = anyio.Lock()
        self._news = anyio.Event()

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:  # noqa: ARG002
        cloud, sim = self._cloud, self._sim
        launch_s = sim.dice.within(sim.scenario.cloud.launch_s, "launch")
        sim.referee.launching(count)
        sim.trace("launch", count=count)
        machines: list[Machine] = []
        began = sim.loop.now
        try:
            await self._answers()
            machines = await self._repeated(count, launch_s)
            if machines:
                return machines
            if cloud.launch_errors:
                again = cloud.launch_errors.popleft()
                await anyio.sleep(launch_s)
                raise ProviderError("the launch call failed", retry_after_s=again)
            room = 0 if cloud.droughts else sim.scenario.cloud.capacity - len(cloud.alive)
            if room <= 0:
                await anyio.sleep(launch_s)
                raise NoCapacity("there is no machine to be had", retry_after_s=0.0)
            new = [cloud.make(self) for _ in range(min(room, count))]
            try:
                await anyio.sleep(launch_s)
                if cloud.lost_answers:
                    self._lose(new, count, began)
                machines = [machine for machine in new if machine.id in cloud.alive]
            finally:
                cloud.answered(new)
        finally:
            sim.referee.launch_ended(count, machines)
        return machines

    def _lose(self, new: list[Machine], count: int, began: float) -> None:
        """Simulate that the answer to a launch call was lost, although the ``new`` machines were started.

        Raises:
            ProviderError: Always: the launch call fails for its caller.
        """
        cloud, sim = self._cloud, self._sim
        cloud.lost_answers -= 1
        cloud.unsure += 1
        lost = Unanswered(MachineId(f"launch{new[0].id}"), new)
        self._unanswered.append(lost)
        sim.loop.call_later(REPEAT_S, self._end_unanswered, lost)
        text = f"up to {count} machines may exist of a launch that has no answer"
        self._own.append(LaunchUnsure(lost.id, count, count * HOURLY_USD, began, text))
        self._news.set()
        raise ProviderError("the answer to the launch was lost", retry_after_s=TRY_AGAIN_S)

    async def _repeated(self, count: int, launch_s: float) -> list[Machine]:
        """Repeat the unanswered launch calls, oldest first, until one returns machines.

        Return at most ``count`` machines.
        """
        cloud = self._cloud
        async with self._repeating:
            while self._unanswered:  # during the loop, another launch call may lose its answer
                lost = self._unanswered[0]
                await anyio.sleep(launch_s)
                if cloud.lost_answers:
                    cloud.lost_answers -= 1
                    raise ProviderError("the answer to a repeated launch was lost", retry_after_s=TRY_AGAIN_S)
                # False if `_end_unanswered` has ended the launch's machines during the sleep
                if lost in self._unanswered:
                    self._settle(lost)
                    machines = [machine for machine in lost.machines if machine.id in cloud.alive]
                    for machine in machines[count:]:
                        self._end(machine.id)
                    if machines:
                        return machines[:count]
        return []

    def _end_unanswered(self, lost: Unanswered) -> None:
        if lost not in self._unanswered:
            return
        if not self._cloud.reachable or self._cloud.terminate_errors:
            self._sim.loop.call_later(TRY_AGAIN_S, self._end_unanswered, lost)
            return
        for machine in lost.machines:
            self._end(machine.id)
        self._settle(lost)

    def _settle(self, lost: Unanswered) -> None:
        self._unanswered.remove(lost)
        self._cloud.unsure -= 1
        self._own.append(LaunchSettled(lost.id))
        self._news.set()

    def _end(self, machine: MachineId) -> None:
        host = self._cloud.alive.get(machine)
        if host is not None:
            host.power_off(silent=False)
            self._cloud.off_the_bill(machine)

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        cloud, sim = self._cloud, self._sim
        sim.trace("terminate", machines=tuple(ids))
        await self._answers()
        if cloud.terminate_errors:
            await anyio.sleep(TRY_AGAIN_S)
            raise ProviderError("the terminate call failed", retry_after_s=TRY_AGAIN_S)
        terminate_s = sim.dice.within(sim.scenario.cloud.terminate_s, "terminate")
        mine = [machine for machine in ids if cloud.is_of(self, machine)]
        await anyio.sleep(terminate_s / 2)
        for machine in mine:
            host = cloud.alive.get(machine)
            if host is not None:
                host.power_off(silent=False)
        await anyio.sleep(terminate_s / 2)
        for machine in mine:
            cloud.off_the_bill(machine)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # nothing to do: each launch gets a new machine, never this one again

    def events(self) -> AsyncIterator[MachineEvent]:
        return self

    def __aiter__(self) -> AsyncIterator[MachineEvent]:
        return self

    async def __anext__(self) -> MachineEvent:
        while not self._own and (not self._events or not self._cloud.reachable):
            self._news = anyio.Event()
            await self._news.wait()
        if self._own:
            return self._own.popleft()
        event = self._events.popleft()
        if isinstance(event, ProviderError):
            raise event
        if isinstance(event, PreemptionNotice):
            self._sim.referee.notice_sent(event)
        if isinstance(event, MachineStarted):
            self._cloud.started(event.id)
        return event

    def emit(self, event: MachineEvent | ProviderError) -> None:
        self._events.append(event)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    async def _answers(self) -> None:
        """Check that the client can reach the provider.

        Raises:
            ProviderError: After some seconds: the client has no network.
        """
        if not self._cloud.reachable:
            await anyio.sleep(UNREACHABLE_S)
            raise ProviderError("the provider cannot be reached", retry_after_s=TRY_AGAIN_S)
