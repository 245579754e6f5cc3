"""Compute what a pool has cost and when it must end: `Budget` only decides, `Metered` wraps a fleet and reports to it,
`BudgetWatch` raises at its limits.

A machine costs its hourly price from the moment it is asked for until its provider confirms that it is gone, and at
least for the time for which that provider bills any. One that waits in a queue of its provider's costs nothing until it
starts, and both count from then on. A launch whose answer did not come costs as if all of its machines existed, until
it is settled. Machines of a launch that was cancelled half way are not counted: the pool is ending.
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
from ..observe.descriptions import cents
from ..runs.status import Spending
from .limits import Watch

MOSTLY = 0.8  # of ``max_cost``: the share at which the user is warned
HOUR_S = 3600.0
Limit = Literal["max_cost", "max_lifetime"]  # in USD, in seconds
LOOK_AGAIN_S = 60.0  # a timer stands still while this computer sleeps


@dataclass(frozen=True, slots=True)
class Cost:
    """USD: ``spent`` so far, and ``hourly`` at present."""

    spent: float
    hourly: float

    def __str__(self) -> str:
        return f"{cents(self.spent)} USD, {cents(self.hourly)} USD/h"


@dataclass(frozen=True, slots=True)
class _Account:
    """An account: the USD ``spent`` until ``at``, and the USD per hour from then on."""

    at: float
    spent: float = 0.0
    hourly: float = 0.0

    def until(self, now: float) -> _Account:
        """Return the same account, later. A clock that has gone back stands still."""
        if now <= self.at:
            return self
        return _Account(now, self.spent + self.hourly * (now - self.at) / HOUR_S, self.hourly)


@dataclass(slots=True)
class Budget:
    """A pool's cost and its limits. Times are in seconds of any one clock.

    Machines are counted by one thread. Queries change nothing, so any thread may call them.

    BUDGET-1: the amount spent never decreases. BUDGET-2: a machine that has ended costs nothing more.
    """

    max_cost: float | None = None  # USD
    max_lifetime_s: float | None = None
    since: float = 0.0
    _account: _Account = field(init=False)  # it is replaced as a whole: another thread never sees half of a change
    _hourly: dict[MachineId, float] = field(init=False, default_factory=dict)
    _least: dict[MachineId, float] = field(init=False, default_factory=dict)  # until when each is billed in any case
    _ended: set[MachineId] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self._account = _Account(self.since)

    def launched(
        self, machine: MachineId, hourly_cost: float, now: float, *, since: float | None = None, least_s: float = 0.0
    ) -> None:
        """Count a machine that exists since ``since`` and is billed for ``least_s`` at least; or change a machine's
        hourly cost.
        """
        if machine in self._ended:
            return  # its end was reported before the answer to its launch
        account = self._account.until(now)
        spent = account.spent
        if machine not in self._hourly and since is not None:
            spent += max(0.0, account.at - since) * hourly_cost / HOUR_S
            self._least[machine] = since + least_s
        more = hourly_cost - self._hourly.get(machine, 0.0)
        self._hourly[machine] = hourly_cost
        self._account = _Account(account.at, spent, max(0.0, account.hourly + more))

    def started(self, machine: MachineId, hourly_cost: float, now: float, *, least_s: float) -> None:
        """Count a machine that was queued from now on, for ``least_s`` at least."""
        self.launched(machine, hourly_cost, now)
        if machine in self._hourly:
            self._least[machine] = self._account.at + least_s

    def ended(self, machine: MachineId, now: float) -> None:
        account = self._account.until(now)
        hourly, least = self._hourly.pop(machine, 0.0), self._least.pop(machine, account.at)
        spent = account.spent + max(0.0, least - account.at) * hourly / HOUR_S
        left = max(0.0, account.hourly - hourly) if self._hourly else 0.0  # no error of rounding stays
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
        """Return in how many seconds a limit or warning is due if no machine comes or goes; None: never."""
        account = self._account.until(now)
        times = []
        if self.max_lifetime_s is not None:
            times.append(self.since + self.max_lifetime_s - account.at)
        if self.max_cost is not None and account.hourly > 0:
            until = (mark - account.spent for mark in (MOSTLY * self.max_cost, self.max_cost) if mark > account.spent)
            times.append(min(until, default=0.0) / account.hourly * HOUR_S)
        return max(0.0, min(times)) if times else None


def clock() -> float:
    """Seconds that go on while this computer sleeps: machines cost all the same."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(slots=True)
class Metered:
    """Implements `providers.base.Fleet`: another fleet, with its machines counted. ``changed``: one came or went."""

    fleet: Fleet
    budget: Budget
    changed: Callable[[], object]
    clock: Callable[[], float] = clock
    _machines: dict[MachineId, Machine] = field(init=False, default_factory=dict)  # as launched: with what they cost
    _queued: set[MachineId] = field(init=False, default_factory=set)  # those that do not run yet, and cost nothing

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
        """Count a machine that runs now, or that the provider reports again."""
        if not self.budget.counts(machine.id):
            return  # the answer to its launch counts it
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
    """The budget of one open pool, with a watch that ends the pool at its limits."""

    def __init__(self, max_cost: float | None, max_lifetime_s: float | None, observe: Observe) -> None:
        self._budget = Budget(max_cost, max_lifetime_s, clock())
        self._limited = max_cost is not None or max_lifetime_s is not None
        self._since = time.time()
        self._changed = asyncio.Event()
        self._observe = observe

    @property
    def cost(self) -> Cost:
        """The cost at present, for any thread."""
        return self._budget.cost(clock())

    def spending(self) -> Spending:
        """Return the cost for the record of the run."""
        cost = self.cost
        return Spending(cost.spent, cost.hourly, time.time())

    def around(self, fleet: Fleet) -> Fleet:
        return Metered(fleet, self._budget, self._changed.set)

    def close(self) -> None:
        """Note the end of the provider's context. Machines that it could not end are counted no further."""
        self._budget.close(clock())

    def watches(self) -> Sequence[Watch]:
        """Return the watches that raise `BudgetExceeded` at a limit."""
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
