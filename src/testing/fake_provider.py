"""A provider of machines that exist only in memory. A script defines what happens to them, and when.

Its clock is anyio's: under a mock clock, an hour of boots, failures and interruptions takes no real time. It passes
the checks of `provider_contract`, as every provider must. To simulate the programs on a machine, a test passes a pool
its own ``Connect`` (the interface by which a pool connects to its nodes).
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import field, replace
from itertools import count
from typing import TYPE_CHECKING, TypeVar

import anyio

from ..lazy_dataclass import dataclass
from ..providers.base import (
    Address,
    EntryPoints,
    LaunchRequest,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineQueued,
    MachineReachable,
    MachineStarted,
    PreemptionNotice,
)
from ..providers.errors import NoCapacity, ProviderError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """The behaviour of the fake cloud. Each call or machine uses a sequence's next entry; the last one repeats."""

    capacity: int = 10_000  # most machines that exist at the same time
    # Seconds that a launch call takes; its machines exist from the beginning of the call.
    launch_s: Sequence[float] = (0.0,)
    # Seconds from a machine's launch until it has an address; 0: the launch call returns the address.
    boot_s: Sequence[float] = (0.0,)
    # Seconds that a machine waits in the queue after its launch, before it boots; 0: no queue.
    queue_s: Sequence[float] = (0.0,)
    failures: Sequence[ProviderError | None] = (None,)  # the error that a launch call raises; None: it succeeds
    terminate_s: float = 0.0


class Fake:
    """The provider. Several pools may use it; ``alive`` counts the existing machines of all pools."""

    name = "fake"
    local = False

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or Script()
        self.alive: dict[MachineId, Machine] = {}
        self.launched: list[MachineId] = []  # all machines that were ever launched
        self.terminated: list[MachineId] = []  # all ids that terminate calls have named, also repeatedly
        self.fleets: list[FakeFleet] = []
        self._ids = count(1)

    @asynccontextmanager
    async def open(self, pool: str, entry_points: EntryPoints) -> AsyncIterator[FakeFleet]:  # noqa: ARG002
        async with anyio.create_task_group() as tasks:
            fleet = FakeFleet(self, pool, tasks)
            self.fleets.append(fleet)
            try:
                yield fleet
            finally:
                with anyio.CancelScope(shield=True):
                    await fleet.terminate(list(fleet.machines))
                tasks.cancel_scope.cancel()

    def make(self, pool: str) -> Machine:
        if len(self.alive) >= self.script.capacity:
            raise NoCapacity(f"all {self.script.capacity} machines are taken", retry_after_s=0.0)
        number = next(self._ids)
        machine = Machine(MachineId(f"{pool}-{number}"), None, f"ssh-ed25519 FAKE{number}", "/run/executor")
        machine = replace(machine, private_address=f"10.0.{number // 250}.{number % 250 + 1}")
        self.alive[machine.id] = machine
        self.launched.append(machine.id)
        return machine


@dataclass(slots=True, eq=False)
class FakeFleet:
    """One pool's machines. A test causes events by `lose`, `queue`, `refuse`, `give_notice` and `withdraw_notice`."""

    provider: Fake
    pool: str
    tasks: TaskGroup
    machines: dict[MachineId, Machine] = field(default_factory=dict)
    requests: list[tuple[LaunchRequest, int]] = field(default_factory=list)
    _launch_s: deque[float] = field(init=False)
    _boot_s: deque[float] = field(init=False)
    _queue_s: deque[float] = field(init=False)
    _failures: deque[ProviderError | None] = field(init=False)
    _events: deque[MachineEvent] = field(default_factory=deque)
    _news: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self) -> None:
        script = self.provider.script
        self._launch_s, self._boot_s = deque(script.launch_s), deque(script.boot_s)
        self._queue_s, self._failures = deque(script.queue_s), deque(script.failures)

    # --- the protocol ---------------------------------------------------------------------------------------------

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        self.requests.append((request, count))
        failure, launch_s = _next(self._failures), _next(self._launch_s)
        if failure is not None:
            await anyio.sleep(launch_s)
            raise failure
        launched: list[MachineId] = []
        for _ in range(count):
            try:
                machine = self.provider.make(self.pool)
            except NoCapacity:
                if launched:
                    break
                await anyio.sleep(launch_s)
                raise
            self.machines[machine.id] = machine
            launched.append(machine.id)
            boot_s, queue_s = _next(self._boot_s), _next(self._queue_s)
            if queue_s:
                self.queue(machine.id)
            if boot_s or queue_s:
                self.tasks.start_soon(self._boot, machine.id, boot_s, queue_s)
            else:
                self._address(machine.id)
        await anyio.sleep(launch_s)
        return [self.machines[machine] for machine in launched if machine in self.machines]

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        self.provider.terminated.extend(ids)
        await anyio.sleep(self.provider.script.terminate_s)
        for machine in ids:
            if self.machines.pop(machine, None) is not None:
                self.provider.alive.pop(machine, None)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        pass  # nothing to do: the next machine is a new one

    def events(self) -> AsyncIterator[MachineEvent]:
        return self

    def __aiter__(self) -> AsyncIterator[MachineEvent]:
        return self

    async def __anext__(self) -> MachineEvent:
        while not self._events:
            self._news = anyio.Event()
            await self._news.wait()
        return self._events.popleft()

    # --- controls for tests ---------------------------------------------------------------------------------------

    def lose(self, machine: MachineId, cause: str = "spot interruption", *, is_reported: bool = True) -> None:
        """End the machine, as a failure would. ``is_reported``: whether the fleet sends an event for it."""
        self.machines.pop(machine, None)
        self.provider.alive.pop(machine, None)
        if is_reported:
            self._say(MachineGone(machine, cause))

    def queue(self, machine: MachineId, reason: str = "pending: Priority", starts_at: float | None = None) -> None:
        """Put the machine into the queue, or change the reason for which it waits there."""
        self._say(MachineQueued(machine, reason, starts_at))

    def refuse(self, machine: MachineId, error: ProviderError) -> None:
        """Report, after the launch, that the machine will never exist."""
        self.machines.pop(machine, None)
        self.provider.alive.pop(machine, None)
        self._say(MachineGone(machine, str(error), error))

    def give_notice(self, machine: MachineId, seconds: float = 120.0, source: str = "spot") -> None:
        self._say(PreemptionNotice(machine, source, seconds))

    def withdraw_notice(self, machine: MachineId, source: str = "spot") -> None:
        self._say(PreemptionNotice(machine, source, None))

    # --- inside ---------------------------------------------------------------------------------------------------

    async def _boot(self, machine: MachineId, boot_s: float, queue_s: float) -> None:
        if queue_s:
            await anyio.sleep(queue_s)
            if machine in self.machines:
                self._say(MachineStarted(machine))
        await anyio.sleep(boot_s)
        if machine in self.machines:
            self._address(machine)
            self._say(MachineReachable(self.machines[machine]))

    def _address(self, machine: MachineId) -> None:
        known = self.machines[machine]
        known = replace(known, address=Address(host=known.private_address))
        self.machines[machine] = self.provider.alive[machine] = known

    def _say(self, event: MachineEvent) -> None:
        self._events.append(event)
        self._news.set()


def _next(entries: deque[T]) -> T:
    return entries.popleft() if len(entries) > 1 else entries[0]
