"""The cost of a pool and its limits: `Budget` computes the cost and decides (no I/O), `Metered` wraps a fleet and
reports its machines to a `Budget`, and `BudgetWatch` raises an error when a limit is reached.

A machine costs its hourly price from its launch request until its provider confirms its end, and at least for the
provider's minimum billing time. A machine in a provider's queue costs nothing until it starts; its price and its
minimum billing time count from that start. A launch request without a reply costs as if all its machines existed, until
the provider reports which of them do. Machines of a launch that was cancelled before it returned are not counted,
because the pool is ending.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import field
from typing import Literal, Never

import anyio

from ...actors.events import BudgetMostlySpent, Observe
from ...lazy_dataclass import dataclass
from ...providers.base import (
    Fleet,
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
)
from ..api.errors import BudgetExceeded
from ..api.quantities import cents
from ..api.sink import Spending
from .limits import Watch

MOSTLY = 0.8  # the user is warned when this fraction of ``max_cost`` is spent
HOUR_S = 3600.0
Limit = Literal["max_cost", "max_lifetime"]  # `max_cost` is in USD, `max_lifetime` in seconds
# sleep at most this long before checking the limits again: timers pause while this computer is suspended
LOOK_AGAIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """A cost in USD: ``spent`` so far, and ``hourly``, the current cost per hour."""

    spent: float
    hourly: float

    def __str__(self) -> str:
        return f"{cents(self.spent)} USD, {cents(self.hourly)} USD/h"


@dataclass(frozen=True, slots=True)
class _Account:
    """The state of an account at time ``at``: the USD ``spent`` until then, and the USD per hour from then on."""

    at: float
    spent: float = 0.0
    hourly: float = 0.0

    def until(self, now: float) -> _Account:
        """Return the account as of time ``now``. If the clock has gone back, nothing is added."""
        if now <= self.at:
            return self
        return _Account(now, self.spent + self.hourly * (now - self.at) / HOUR_S, self.hourly)


@dataclass(slots=True)
class Budget:
    """A pool's cost and its limits. All times are in seconds of the same clock; any clock will do.

    Only one thread may add and remove machines. Queries change no state, so any thread may call them.

    BUDGET-1: the amount spent never decreases. BUDGET-2: a machine that has ended costs nothing more.
    """

    max_cost: float | None = None  # in USD
    max_lifetime_s: float | None = None
    since: float = 0.0
    # always replaced as a whole, so that another thread never sees a half-made change
    _account: _Account = field(init=False)
    _hourly: dict[MachineId, float] = field(init=False, default_factory=dict)
    # for each machine, the time until which it is billed even if it ends earlier
    _least: dict[MachineId, float] = field(init=False, default_factory=dict)
    _ended: set[MachineId] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._account = _Account(self.since)

    def launched(
        self, machine: MachineId, hourly_cost: float, now: float, *, since: float | None = None, least_s: float = 0.0
    ) -> None:
        """Count a machine that exists since ``since`` and is billed for at least ``least_s`` seconds.

        For a machine that is counted already, change the hourly cost.
        """
        if machine in self._ended:
            return  # the machine's end was reported before the reply to its launch
        account = self._account.until(now)
        spent = account.spent
        if machine not in self._hourly and since is not None:
            spent += max(0.0, account.at - since) * hourly_cost / HOUR_S
            self._least[machine] = since + least_s
        more = hourly_cost - self._hourly.get(machine, 0.0)
        self._hourly[machine] = hourly_cost
        self._account = _Account(account.at, spent, max(0.0, account.hourly + more))

    def started(self, machine: MachineId, hourly_cost: float, now: float, *, least_s: float) -> None:
        """Start to count a machine that has left its provider's queue.

        The machine is billed for at least ``least_s`` seconds.
        """
        self.launched(machine, hourly_cost, now)
        if machine in self._hourly:
            self._least[machine] = self._account.at + least_s

    def ended(self, machine: MachineId, now: float) -> None:
        account = self._account.until(now)
        hourly, least = self._hourly.pop(machine, 0.0), self._least.pop(machine, account.at)
        spent = account.spent + max(0.0, least - account.at) * hourly / HOUR_S
        # exactly 0 without machines, so that no rounding error remains
        left = max(0.0, account.hourly - hourly) if self._hourly else 0.0
        self._ended.add(machine)
        self._account = _Account(account.at, spent, left)

    def counts(self, machine: MachineId) -> bool:
        return machine in self._hourly

    def close(self, now: float) -> None:
        for machine in list(self._hourly):
            self.ended(machine, now)

    def cost(self, now: float) -> Cost:
        account = self._account.until(now)
        return Cost(account.spent, account.hourly)

    def exceeded(self, now: float) -> Limit | None:
        account = self._account.until(now)
        if self.max_lifetime_s is not None and account.at >= self.since + self.max_lifetime_s:
            return "max_lifetime"
        return "max_cost" if self.max_cost is not None and account.spent >= self.max_cost else None

    def mostly_spent(self, now: float) -> bool:
        return self.max_cost is not None and self.cost(now).spent >= MOSTLY * self.max_cost

    def next_s(self, now: float) -> float | None:
        """Return the seconds until a limit or a warning is due, if no machine starts or ends before; None: never."""
        account = self._account.until(now)
        times = []
        if self.max_lifetime_s is not None:
            times.append(self.since + self.max_lifetime_s - account.at)
        if self.max_cost is not None and account.hourly > 0:
            until = (mark - account.spent for mark in (MOSTLY * self.max_cost, self.max_cost) if mark > account.spent)
            times.append(min(until, default=0.0) / account.hourly * HOUR_S)
        return max(0.0, min(times)) if times else None


def clock() -> float:
    """Return the time in seconds, including the time in which this computer is suspended: machines cost money then,
    too.
    """
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class Metered:
    """Implements `providers.base.Fleet`: wraps a fleet and counts its machines.

    ``changed`` is called when a machine starts or ends.
    """

    fleet: Fleet
    budget: Budget
    changed: Callable[[], object]
    clock: Callable[[], float] = clock
    # the machines as the provider returned them from the launch, with their prices
    _machines: dict[MachineId, Machine] = field(init=False, default_factory=dict)
    # machines in the provider's queue, which cost nothing yet
    _queued: set[MachineId] = field(init=False, default_factory=set)

    async def launch(self, request: LaunchRequest, count: int) -> Sequence[Machine]:
        since = self.clock()
        machines = await self.fleet.launch(request, count)
        for machine in machines:
            cost, least_s = machine.hourly_cost, machine.billed_at_least_s
            self._machines[machine.id] = machine
            if machine.id in self._queued:
                self.budget.launched(machine.id, 0.0, self.clock())
            else:
                self.budget.launched(machine.id, cost, self.clock(), since=since, least_s=least_s)
        self.changed()
        return machines

    async def terminate(self, ids: Sequence[MachineId]) -> None:
        await self.fleet.terminate(ids)
        self._ended(ids)

    def unusable(self, machine: MachineId, cause: str, *, for_good: bool = True) -> None:
        self.fleet.unusable(machine, cause, for_good=for_good)

    async def events(self) -> AsyncGenerator[MachineEvent, None]:
        async for event in self.fleet.events():
            match event:
                case MachineGone(gone):
                    self._ended([gone])
                case MachineQueued(queued):
                    self._queued.add(queued)
                    if self.budget.counts(queued):
                        self._launched(queued, 0.0)
                case MachineStarted(started):
                    if (launched := self._machines.get(started)) is not None:
                        self._runs(launched)
                    self._queued.discard(started)
                case MachineReachable(machine):
                    self._runs(machine)
                    self._queued.discard(machine.id)
                case LaunchUnsure():
                    self._launched(event.id, event.hourly_cost, self.clock() - (anyio.current_time() - event.asked_at))
                case LaunchSettled(launch):
                    self._ended([launch])
                case _:
                    pass
            yield event

    def _runs(self, machine: Machine) -> None:
        """Handle that a machine runs: start to count it if it was in the provider's queue, else update its price."""
        if not self.budget.counts(machine.id):
            return  # the launch of this machine has not returned yet: its reply will count the machine
        if machine.id in self._queued:
            least_s = self._machines.get(machine.id, machine).billed_at_least_s
            self.budget.started(machine.id, machine.hourly_cost, self.clock(), least_s=least_s)
            self.changed()
        else:
            self._launched(machine.id, machine.hourly_cost)

    def _launched(self, machine: MachineId, hourly_cost: float, since: float | None = None) -> None:
        self.budget.launched(machine, hourly_cost, self.clock(), since=since)
        self.changed()

    def _ended(self, ids: Sequence[MachineId]) -> None:
        for machine in ids:
            self.budget.ended(machine, self.clock())
            self._machines.pop(machine, None)
            self._queued.discard(machine)
        self.changed()


class BudgetWatch:
    """The budget of one open pool, and a watch that ends the pool at its limits."""

    def __init__(self, max_cost: float | None, max_lifetime_s: float | None, observe: Observe) -> None:
        self._budget = Budget(max_cost, max_lifetime_s, clock())
        self._limited = max_cost is not None or max_lifetime_s is not None
        self._since = time.time()
        self._changed = asyncio.Event()
        self._observe = observe

    @property
    def cost(self) -> Cost:
        """The current cost. Any thread may read it."""
        return self._budget.cost(clock())

    def spending(self) -> Spending:
        """Return the current cost as it is written to the run's record."""
        cost = self.cost
        return Spending(cost.spent, cost.hourly, time.time())

    def around(self, fleet: Fleet) -> Fleet:
        return Metered(fleet, self._budget, self._changed.set)

    def close(self) -> None:
        """Stop counting all machines, also those that the provider could not end: the provider's context is closed."""
        self._budget.close(clock())

    def watches(self) -> Sequence[Watch]:
        """Return the watches, which raise `BudgetExceeded` when a limit is reached."""
        return (self._watch,) if self._limited else ()

    async def _watch(self) -> Never:
        warned = False
        while (limit := self._budget.exceeded(clock())) is None:
            if not warned and self._budget.mostly_spent(clock()):
                warned, cost = True, self.cost
                self._observe(BudgetMostlySpent(cost.spent, self._budget.max_cost or 0.0, cost.hourly))
            next_s = self._budget.next_s(clock())
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_AGAIN_S if next_s is None else min(next_s + 0.01, LOOK_AGAIN_S)):
                    await self._changed.wait()
        raise self._error(limit)

    def _error(self, limit: Limit) -> BudgetExceeded:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(self._since))
        spent, most = self.cost.spent, self._budget.max_cost or 0.0
        if limit == "max_cost":
            reached = f"has cost {cents(spent)} USD since {began}, and may cost {cents(most)} (max_cost)"
        else:
            most = self._budget.max_lifetime_s or 0.0
            reached = f"has been open since {began}, {most:g} s, which is its max_lifetime"
        message = f"The pool {reached}: it was ended. Allow it more, or find out what took so long."
        return BudgetExceeded(message, what=limit, limit=most, spent=spent, since=self._since)
