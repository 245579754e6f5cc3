"""The limits that end a pool (``max_cost``, ``max_lifetime``, ``max_idle``), its cost, and its figures of use.

`ended_by` runs a block under watches: a watch is a coroutine that raises an error when its limit is reached. `Budget`
computes the cost and decides (no I/O), `Metered` wraps a fleet and reports its machines to a `Budget`, and
`BudgetWatch` raises the error. `Idleness` decides from the nodes' samples (regular reports of use) whether a pool is
idle (no I/O; times are seconds of any one clock), and `IdleWatch` passes it the pool's events and ends the pool.
`UsageIntake` collects figures of how much of the nodes was used, which the provider reports when the pool ends.

A machine costs its hourly price from its launch request until its provider confirms its end, and at least for the
provider's minimum billing time. A machine in a provider's queue costs nothing until it starts; its price and its
minimum billing time count from that start. A launch request without a reply costs as if all its machines existed, until
the provider reports which of them do. Machines of a launch that was cancelled before it returned are not counted,
because the pool is ending.

IDLE-1: a pool with a node in an unknown state is not idle. The state is unknown of a node that boots, that has sent no
    sample yet or none for a while, or that reports no figures for one of its GPUs.
IDLE-2: only idle time without a break counts. It starts from zero when a node has worked or was in an unknown state,
    when a node joins or leaves, and when a call begins or ends.
IDLE-3: a pool without nodes is never idle: it costs nothing.
IDLE-4: a pool whose nodes have all been idle for ``max_idle_s`` is reported, with the next sample at the latest.
IDLE-5: a machine in its provider's queue is not a node yet: it costs nothing, and the pool may be idle during its wait.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import field
from typing import Any, Literal, Never

import anyio

from ...actors import events as ev
from ...actors.events import BudgetMostlySpent, NodeSampled, Observe
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
    MachineUsage,
    UsageUnknown,
)
from ..api.errors import BudgetExceeded, PoolIdle
from ..api.quantities import cents, count, seconds
from ..api.sink import Spending

Watch = Callable[[], Coroutine[Any, Any, Never]]


@asynccontextmanager
async def ended_by(*watches: Watch) -> AsyncIterator[Callable[[], object]]:
    """Run the block with these watches, and cancel it when a watch raises. Yield a function that stops the watches.

    Raises:
        BudgetExceeded, PoolIdle: the error of the watch, raised at the end of the block; other errors are its cause.
    """
    if not watches:
        yield lambda: None
        return
    try:
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(watch(), name="outrider-limit") for watch in watches]

            def stop() -> None:
                for task in running:
                    task.cancel()

            try:
                yield stop
            finally:
                stop()
    except BaseExceptionGroup as group:
        reached, rest = group.split((BudgetExceeded, PoolIdle))
        if reached is None:
            raise
        raise reached.exceptions[0] from rest


class UsageIntake:
    """Collects the provider's figures of how much of each machine was used; `close` reports them by node.

    ``node_of`` returns a machine's node, or None.
    """

    def __init__(self, observe: ev.Observe, node_of: Callable[[str], int | None]) -> None:
        self._observe, self._node_of = observe, node_of
        self._used: list[MachineUsage] = []
        self._unknown: list[str] = []

    def add(self, figures: MachineUsage | UsageUnknown) -> None:
        if isinstance(figures, UsageUnknown):
            self._unknown.append(figures.why)
        else:
            self._used.append(figures)

    def close(self) -> None:
        """Report how much of each node, and of all nodes together, was used.

        Nothing is reported if the provider has no figures.
        """
        known = [(node, each) for each in self._used if (node := self._node_of(each.id)) is not None]
        for node, each in sorted(known, key=lambda one: one[0]):
            amounts = (each.seconds, each.cpus, each.cpu_s, each.memory_bytes, each.memory_total_bytes)
            self._observe(ev.NodeUsed(node, each.id, *amounts))
        if known or self._unknown:
            self._observe(pool_used([each for _, each in known], self._unknown))


def pool_used(used: list[MachineUsage], unknown: list[str]) -> ev.PoolUsed:
    """Return the figures of all nodes together, weighted by their processor time and their memory."""
    core_s = sum(each.seconds * each.cpus for each in used)
    memory = [
        (each.memory_bytes, each.memory_total_bytes)
        for each in used
        if each.memory_bytes is not None and each.memory_total_bytes
    ]
    cpu = sum(each.cpu_s for each in used) / core_s if core_s else None
    peak = sum(most for most, _ in memory) / sum(total for _, total in memory) if memory else None
    return ev.PoolUsed(len(used), cpu, peak, "; ".join(dict.fromkeys(unknown)))


GPU_BUSY = 0.05  # fraction of a GPU's time from which on the GPU is busy; a desktop or a monitoring program uses less
# number of processors in use from which on a node is busy; system services and the executor use less, one busy thread
# uses 1
CPUS_BUSY = 0.25
SAMPLES_MISSED = 3  # number of missed samples in a row after which a node's state is unknown


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle state of a pool since the time ``since``.

    ``nodes``: the number of nodes. ``gpus``: the number of GPUs in all nodes together. ``most``: the highest use in any
    sample since ``since``: of a GPU, from 0 to 1; without GPUs, the number of processors in use.
    """

    since: float
    nodes: int
    gpus: int
    most: float


@dataclass(slots=True)
class _Node:
    gpus: int | None = None  # number of the node's GPUs; None: the node still boots
    sampled_at: float | None = None
    # since when the node has been idle; None: the node is busy, or its state is unknown
    idle_since: float | None = None
    most: float = 0.0


@dataclass(slots=True)
class Idleness:
    """A detector of idle pools. ``max_idle_s``: the allowed idle time. ``every_s``: the time between two samples of a
    node.
    """

    max_idle_s: float
    every_s: float
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _since: float = 0.0  # the pool's idle time cannot have begun before this time

    def boots(self, node: int, now: float) -> None:
        """Handle that a node is launched, that it is being prepared, or that its queued machine begins to run."""
        if node not in self._nodes:
            self._nodes[node] = _Node()
            self._since = now

    def joined(self, node: int, gpus: int, now: float) -> None:
        """Handle that a node is ready, or stands by as a spare: a spare node costs as much."""
        self._nodes[node] = _Node(gpus)
        self._since = now

    def left(self, node: int, now: float) -> None:
        if self._nodes.pop(node, None) is not None:
            self._since = now

    def queued(self, node: int, now: float) -> None:
        """Handle that the machine of a node waits in its provider's queue; `boots` is called when that wait ends."""
        self.left(node, now)

    def called(self, now: float) -> None:
        """Handle that a call by the user has begun or ended."""
        self._since = now

    def sampled(self, sample: NodeSampled, now: float) -> None:
        node = self._nodes.get(sample.node)
        if node is None or node.gpus is None:
            return
        use = _use(sample, node.gpus)
        whole = self._is_known(node, now)
        node.sampled_at = now
        if use is None or use >= (GPU_BUSY if node.gpus else CPUS_BUSY):
            node.idle_since = None
        elif node.idle_since is None or not whole:
            node.idle_since, node.most = now, use
        else:
            node.most = max(node.most, use)

    def idle(self, now: float) -> Idle | None:
        """Return the pool's `Idle` state; None: a node is busy, or its state is unknown."""
        since = self._since
        for node in self._nodes.values():
            if node.idle_since is None or not self._is_known(node, now):
                return None
            since = max(since, node.idle_since)
        if not self._nodes:
            return None
        gpus = sum(node.gpus or 0 for node in self._nodes.values())
        most = max(node.most for node in self._nodes.values() if node.gpus or not gpus)
        return Idle(since, len(self._nodes), gpus, most)

    def over(self, now: float) -> Idle | None:
        """Return the `Idle` state if it has lasted for ``max_idle_s``, else None. Call this after each sample."""
        idle = self.idle(now)
        return idle if idle is not None and now - idle.since >= self.max_idle_s else None

    def _is_known(self, node: _Node, now: float) -> bool:
        return node.sampled_at is not None and now - node.sampled_at <= (SAMPLES_MISSED + 1) * self.every_s


def _use(sample: NodeSampled, gpus: int) -> float | None:
    """Return the use of the busiest GPU, or of the processors if the node has no GPU; None: unknown."""
    if not gpus:
        return sample.cpu * sample.cpus
    uses = [gpu.utilisation for gpu in sample.gpus]
    known = [use for use in uses if use is not None]
    return max(known) if len(known) == len(uses) >= gpus else None


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
        """Return the coroutine functions that wait until a limit is reached, and then raise `BudgetExceeded`."""
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


class IdleWatch:
    """The idle watch of one open pool. It receives the pool's events; without ``max_idle_s`` it does nothing.

    ``calls`` returns how many calls have begun, and how many have ended. ``error`` returns the error that ends the
    pool.
    """

    def __init__(
        self,
        max_idle_s: float | None,
        every_s: float | None,
        *,
        observe: Callable[[ev.Event], object],
        cost: Callable[[], Cost],
        calls: Callable[[], tuple[int, int]],
    ) -> None:
        self._idleness = Idleness(max_idle_s, every_s) if max_idle_s is not None and every_s is not None else None
        self._observe, self._cost, self._calls = observe, cost, calls
        self._seen = calls()
        self._reached: asyncio.Future[PoolIdle] = asyncio.get_running_loop().create_future()
        self.error: PoolIdle | None = None

    def watches(self) -> Sequence[Watch]:
        return () if self._idleness is None else (self._watch,)

    def __call__(self, event: ev.Event) -> None:
        if self._idleness is None or self._reached.done():
            return
        match event:
            case ev.NodeLaunching() | ev.NodeStarted() | ev.NodePreparing():
                self._idleness.boots(event.node, clock())
            case ev.NodeReady() | ev.NodeStandby():
                self._idleness.joined(event.node, event.accelerators, clock())
            case ev.NodeQueued():
                self._idleness.queued(event.node, clock())
            case ev.NodeFailed() | ev.NodeLost() | ev.NodeDismissed():
                self._idleness.left(event.node, clock())
            case ev.NodeSampled():
                self._sampled(event, self._idleness)
            case _:
                pass

    def _sampled(self, event: ev.NodeSampled, idleness: Idleness) -> None:
        now = clock()
        if (calls := self._calls()) != self._seen:
            self._seen = calls
            idleness.called(now)
        idleness.sampled(event, now)
        idle = idleness.over(now)
        if idle is not None:
            self.error = self._error(idle, now - idle.since, idleness.max_idle_s)
            self._reached.set_result(self.error)
            self._observe(ev.PoolIdleTooLong(self.error.idle_s, self.error.limit, idle.gpus, idle.most))

    async def _watch(self) -> Never:
        raise await self._reached

    def _error(self, idle: Idle, idle_s: float, limit_s: float) -> PoolIdle:
        begun, ended = self._calls()
        running = begun - ended
        use = (
            f"none of its {count(idle.gpus, 'GPU')} was used for more than {idle.most:.0%} of the time"
            if idle.gpus
            else f"no more than {idle.most:.2f} processors of any of its {count(idle.nodes, 'node')} were busy"
        )
        look = f"{count(running, 'call')} did not end: look for what they wait for" if running else "No call ran"
        cost = self._cost()
        message = (
            f"The pool has done nothing for {seconds(idle_s)}, and may for {seconds(limit_s)} (max_idle): {use}. "
            f"It was ended. {look}, or allow it more; it has cost {cost}."
        )
        return PoolIdle(
            message,
            since=time.time() - idle_s,
            idle_s=idle_s,
            limit=limit_s,
            gpus=idle.gpus,
            use=idle.most,
            calls=running,
            spent=cost.spent,
            hourly=cost.hourly,
        )
