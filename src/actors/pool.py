"""The pool's actor: handles all messages, lets the pure modules decide, and carries out their decisions.

The actor makes no decisions itself. `ledger` decides on tasks, `generations` (through `broadcasts`) on broadcasts,
`fleet_controller` (through `machines`) on machines, `stragglers` and `failure_detector` (through `node_lives`) on late
nodes and lost connections. If this actor fails, the pool ends visibly: all jobs end as CLOSED, and `supervise` raises
the error.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import assert_never

import anyio

from ..providers.base import PreemptionNotice
from . import events as ev
from .amounts import NOTHING, describe
from .broadcasts import Broadcasts
from .interfaces import (
    Dependencies,
    Ending,
    Finished,
    GaveUp,
    JobId,
    Joined,
    NodeId,
    PortsFree,
    Reason,
    Report,
    Settled,
    Started,
    StopChecks,
    Task,
    Unfit,
)
from .kernel import ActorStopped, Context, Ref, Reply, running
from .ledger import Ledger
from .machines import Machines
from .membership import Membership, Waits
from .messages import (
    Broadcast,
    Cancel,
    Close,
    Happened,
    LeaveRank,
    NodeState,
    PoolMessage,
    PoolState,
    RarePoolMessage,
    Received,
    Resize,
    Snapshot,
    Submit,
    WhenReady,
)
from .placement import Lane
from .stalls import StalledJobs, StallWatch

MAILBOX = 1 << 20  # largest number of unread messages; the public calls limit the number of jobs that wait
CLOSE_S = 10.0  # seconds for closing all connections together


@asynccontextmanager
async def supervise(dependencies: Dependencies) -> AsyncIterator[Ref[PoolMessage]]:
    """Run a pool on an opened provider. When the block is left, open jobs end as CLOSED and connections close, in
    bounded time.

    Machines that are lost or no longer wanted are terminated while the pool runs; closing the provider terminates the
    other machines. So open the provider before the pool, and close it after the pool.

    Raises:
        ActorFailed: the pool's actor failed (its own error is the cause). The body of the block was cancelled.
    """

    def pool_actor(context: Context[PoolMessage]) -> PoolActor:
        return PoolActor(context, dependencies)

    failure: Exception | None = None
    try:
        async with running("pool", pool_actor, capacity=MAILBOX) as pool:
            try:
                yield pool
            finally:
                with anyio.CancelScope(shield=True), suppress(ActorStopped, TimeoutError):
                    await pool.ask(Close(), within_s=CLOSE_S)
    except ExceptionGroup as group:
        failure = group.exceptions[0] if len(group.exceptions) == 1 else group
    if failure is not None:
        raise failure  # raised outside of the except clause, which would change the error's ``__context__``


class PoolActor:
    def __init__(self, context: Context[PoolMessage], dependencies: Dependencies) -> None:
        attempts = count(1)
        spec = dependencies.spec
        self._context = context
        self._observe = dependencies.observe
        self._nodes = nodes = Membership()
        self._ledger = ledger = Ledger(
            nodes.roster, slots=spec.slots, attempts=attempts, quarantine_after=spec.quarantine_after
        )
        self._stall_watch = stalls = StallWatch()
        self._broadcasts = broadcasts = Broadcasts(spec, ledger, nodes, dependencies.observe, attempts, stalls=stalls)
        self._stalled = StalledJobs(stalls, nodes, ledger, dependencies.observe, restart_broadcast=broadcasts.stalled)
        self._machines = Machines(context, dependencies, nodes=nodes, ledger=ledger, broadcasts=broadcasts)
        self._waiters: list[Reply[None]] = []
        self._closers: list[Reply[None]] = []
        self._closing = False
        self._was_ready = False
        self._waited_ranks = Waits[int](spec.replace_timeout_s)
        self._waited_amounts = Waits[Lane](spec.replace_timeout_s)
        # version of the roster (the ready nodes in the order of ranks) about which broadcasts were last informed
        self._ranked = 0
        self._views_due = False
        self._alarm_at: float | None = None
        self._alarm_due_at = 0.0
        self._alarm = anyio.CancelScope()
        self._rare_wake_at: float | None = None  # when any component except the ledger must be called next
        self._clock = dependencies.clock
        now = self._clock()
        self._machines.start(now)
        self._settle_down(now, rare=True)

    # --- messages to the pool -------------------------------------------------------------------------------------

    def receive(self, message: PoolMessage) -> None:
        now = self._clock()
        if isinstance(message, Received):
            rare = self._received(message.node, message.reports, now)
        elif isinstance(message, Submit):
            rare = self._submit(message, now)
        elif isinstance(message, Cancel):
            rare = self._cancel(message, now)
        else:
            rare = True
            self._rarely(message, now)
        self._settle_down(now, rare=rare)

    def stopped(self, error: Exception | None) -> None:
        """End every job and answer every request, so that no caller waits for ever, however the actor ends."""
        with suppress(Exception):  # the ledger may be what failed; waiting requests are answered nevertheless
            self._close_books(self._clock())
        for reply in (*self._waiters, *self._closers):
            reply.fail(error or ActorStopped(self._context.ref.name))

    def _rarely(self, message: RarePoolMessage, now: float) -> None:
        match message:
            case LeaveRank(job, rank):
                self._broadcasts.leave_rank(job, rank, now)
            case Broadcast():
                self._broadcast(message, now)
            case Happened(handle):
                handle(now)
            case Resize(wanted):
                self._machines.resize(wanted, now)
            case WhenReady(reply=reply):
                self._waiters.append(reply)
            case Snapshot(reply=answer):
                answer.send(self._state())
            case Close(reply=reply):
                self._closers.append(reply)
                self._close(now)
            case _:
                assert_never(message)

    # --- tasks and broadcasts -------------------------------------------------------------------------------------

    def _submit(self, message: Submit, now: float) -> bool:
        task, settle = message
        if self._closing:
            settle(GaveUp(Reason.CLOSED))
            return False
        self._ledger.announce = tasks = self._observe.tasks and self._observe.wants(task.job)
        if tasks:
            self._observe(ev.TaskSubmitted(task.job, task.id))
        self._ledger.submit(task, settle, now)
        if task.needs is not None and self._ledger.line and self._ledger.line.too_large():
            return True
        return (task.on or 0) >= len(self._nodes.roster) or self._machines.controller.final_error is not None

    def _broadcast(self, message: Broadcast, now: float) -> None:
        spec, settle_all = message
        if self._closing:
            settle_all((GaveUp(Reason.CLOSED),), 0)
            return
        machines = self._machines
        self._broadcasts.start(spec, settle_all, now, minimum=machines.minimum, wanted=machines.controller.wanted)

    def _cancel(self, message: Cancel, now: float) -> bool:
        job, reason, limit_s = message
        ending = GaveUp(reason, why=self._place_of(job) if reason is Reason.DEADLINE else "", limit_s=limit_s)
        if self._ledger.cancel(job, now, ending):
            return self._machines.busy
        self._broadcasts.cancel(job, now, ending)
        return True

    def _place_of(self, job: JobId) -> str:
        """Return, as a clause for people, where a job is: for example "it was queued"."""
        entry = self._ledger.of_job(job)
        if entry is None:
            return self._broadcasts.place_of(job)
        if entry.host is None or entry.attempt is None:
            return "it was queued"
        node = entry.host.id
        if not self._nodes.is_sent(node, entry.attempt):
            return f"it was being sent to node {node}"
        return f"it was running on node {node}" if entry.began else f"it was queued on node {node}"

    def _received(self, node: NodeId, reports: Sequence[Report], now: float) -> bool:
        if self._observe.tasks:
            self._observe_started(node, reports)
        rare = bool(self._stall_watch.jobs) and self._stalled.received(node, reports, now)
        for report in self._ledger.received(node, reports, now):
            match report:
                case Finished():
                    rare = self._broadcasts.finished(node, report, now) or rare
                case PortsFree():
                    self._nodes.ports_free(node, report)
                    self._broadcasts.ports_free(node, now)
                    rare = True
                case PreemptionNotice():
                    self._machines.lives.noticed(node, report, now)
                    rare = True
                case Unfit():
                    self._machines.lives.unfit(node, report, now)
                    rare = True
                case Joined():
                    rare = self._broadcasts.joined(report, now) or rare
                case StopChecks():
                    self._broadcasts.stop_checks(node, report)
                case _:
                    pass  # nothing to do for other reports: about an attempt that is over, or about the start of a rank
        return rare or self._machines.busy

    def _observe_started(self, node: NodeId, reports: Sequence[Report]) -> None:
        for report in reports:
            if isinstance(report, Started):
                entry = self._ledger.entry(node, report.attempt)
                if entry is not None:
                    task = entry.task
                    self._observe(ev.TaskStarted(task.job, task.id, node, entry.number))

    # --- carrying out decisions -----------------------------------------------------------------------------------

    def _settle_down(self, now: float, *, rare: bool) -> None:
        """Carry out decisions until none is left. ``rare``: something other than the state of tasks may have changed
        too.
        """
        if rare:
            self._machines.scale(now)
            self._machines.carry_out(now)
            self._end_hopeless_waits(now)
            self._send_views()
        self._carry_out(now)
        if rare:
            if self._machines.busy:
                self._machines.carry_out(now)
                self._carry_out(now)
            self._announce_readiness()
            self._answer_closers()
            waits = self._waited_ranks.wake_at(), self._waited_amounts.wake_at()
            times = (self._broadcasts.wake_at(), self._machines.wake_at(now), *waits)
            self._rare_wake_at = min((at for at in times if at is not None), default=None)
        wake_at = _earliest(self._ledger.wake_at(), self._rare_wake_at)
        if self._stall_watch.jobs:
            wake_at = _earliest(wake_at, self._stall_watch.wake_at())
        if wake_at is not None and (self._alarm_at is None or wake_at < self._alarm_at):
            self._set_alarm(wake_at, now)

    def _carry_out(self, now: float) -> None:
        decisions, links = self._ledger.decisions, self._nodes.links
        while True:
            if decisions.runs:
                self._send_orders(now)
            if decisions.endings:
                self._settle()
            if decisions.kills:
                kills, decisions.kills = decisions.kills, []
                for node, attempt in kills:
                    links[node].kill(attempt)
            if decisions.recalls:
                recalls, decisions.recalls = decisions.recalls, []
                for node, attempts in recalls:
                    links[node].recall(attempts)
            if decisions.retries:
                self._observe_retries()
            if not decisions.seats:
                return
            seats, decisions.seats = decisions.seats, []
            for job, granted in seats:
                self._broadcasts.seated(job, granted, now)

    def _send_orders(self, now: float) -> None:
        links, untold = self._nodes.links, self._nodes.untold
        runs, self._ledger.decisions.runs = self._ledger.decisions.runs, []
        for node, order in runs:
            if untold:
                self._nodes.tell(node)
            links[node].run(order)
            if order.task.stall is not None:
                self._stall_watch.began(node, order, now)

    def _settle(self) -> None:
        endings, tasks = self._ledger.decisions.endings, self._observe.tasks
        while endings:
            task, settle, ending, busy_s = endings.popleft()
            if tasks and self._observe.wants(task.job):
                self._observe_ending(task, ending, busy_s)
            settle(ending)

    def _observe_ending(self, task: Task, ending: Ending, busy_s: float) -> None:
        if isinstance(ending, Settled):
            node, number, verdict = ending.node, ending.number, ending.verdict.value
            self._observe(ev.TaskFinished(task.job, task.id, node, number, verdict, busy_s))
        else:
            self._observe(ev.TaskGaveUp(task.job, task.id, ending.reason.value))

    def _observe_retries(self) -> None:
        retries, self._ledger.decisions.retries = self._ledger.decisions.retries, []
        if self._observe.tasks:
            for task, node, number, cause in retries:
                self._observe(ev.TaskRetried(task.job, task.id, node, number, cause))

    def _end_hopeless_waits(self, now: float) -> None:
        """End the waits of tasks, broadcasts and callers for nodes that will never be ready, or were not ready in
        time.
        """
        ledger, machines, roster = self._ledger, self._machines, self._nodes.roster
        if roster.version != self._ranked:
            self._ranked = roster.version
            self._broadcasts.ready(now)
        if queued := machines.lives.queue.holds(now):
            self._broadcasts.queued(now)
        self._waited_ranks.missed(ledger.missed(len(roster)) if self._was_ready else (), now, queued=queued)
        for rank in self._waited_ranks.overdue(now):
            ledger.strand(rank, failure=self._broadcasts.failure)
        error = machines.failures.hopeless
        self._refuse_too_large(now, whole=error is not None or 0 < machines.controller.wanted <= len(roster))
        if error is None:
            return
        self._broadcasts.unreplaceable(now)
        for rank in ledger.missed(machines.remaining):
            ledger.strand(rank, failure=self._broadcasts.failure)
        if len(roster) < machines.minimum:
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.fail(error)

    def _refuse_too_large(self, now: float, *, whole: bool) -> None:
        """End the tasks and broadcasts that need more processors, memory or accelerators than the nodes have.

        ``whole``: no more nodes come, so end them at once; otherwise end them after a time limit.
        """
        line, placement = self._ledger.line, self._ledger.placement
        lanes, claim = line.too_large() if line else [], placement.too_large()
        missed = lanes if claim is None else [*lanes, (claim.needs or NOTHING, None)]
        self._waited_amounts.missed(missed, now, queued=self._machines.lives.queue.holds(now))
        overdue = self._waited_amounts.overdue(now)
        for lane in lanes:
            if whole or lane in overdue:
                self._ledger.refuse(lane, now)
        if claim is not None and (whole or (claim.needs, None) in overdue):
            has = describe(host.has for host in placement.hosts.values())
            self._broadcasts.refuse(claim.job, f"{claim.needs} on each node, and the nodes have {has}", now)

    def _announce_readiness(self) -> None:
        ready = len(self._nodes.roster)
        if ready < self._machines.minimum or self._closing:
            return
        if not self._was_ready:
            self._was_ready = True
            self._observe(ev.PoolReady(ready, self._machines.controller.wanted))
        if self._waiters:
            self._nodes.send_views()
            waiters, self._waiters = self._waiters, []
            for waiter in waiters:
                waiter.send(None)

    # --- timers ---------------------------------------------------------------------------------------------------

    def _send_views(self) -> None:
        """Send the changed list of ready nodes to the nodes: at once in a small pool; in a large pool after a delay,
        which collects changes.
        """
        if not self._nodes.outdated or self._views_due:
            return
        delay_s = self._nodes.view_delay_s()
        if delay_s:
            self._views_due = True
            self._context.tasks.start_soon(self._ring, anyio.CancelScope(), self._clock() + delay_s, self._gathered)
        else:
            self._nodes.send_views()

    def _set_alarm(self, at: float, now: float) -> None:
        self._alarm.cancel()
        self._alarm = anyio.CancelScope()
        self._alarm_at = at
        # an event that was due before now counts as due now, so that its delay is not taken for a stall of this program
        self._alarm_due_at = max(at, now)
        self._context.tasks.start_soon(self._ring, self._alarm, at, self._tick)

    async def _ring(self, scope: anyio.CancelScope, at: float, handle: Callable[[float], None]) -> None:
        with scope:
            await anyio.sleep_until(at)
            self._context.ref.tell(Happened(handle))

    def _tick(self, now: float) -> None:
        late_s = 0.0 if self._alarm_at is None else max(0.0, now - self._alarm_due_at)
        self._alarm_at = None
        if self._machines.lives.queue.holds(now):
            self._broadcasts.queued(now)
        self._ledger.tick(now)
        self._broadcasts.tick(now)
        self._stalled.tick(now)
        self._machines.tick(now, late_s=late_s)

    def _gathered(self, now: float) -> None:  # noqa: ARG002
        self._views_due = False
        self._nodes.send_views()

    # --- end of the pool ------------------------------------------------------------------------------------------

    def _close(self, now: float) -> None:
        if not self._closing:
            self._observe(ev.PoolClosing())
            self._close_books(now)
            self._machines.close()
            for waiter in self._waiters:
                waiter.fail(ActorStopped(self._context.ref.name))

    def _answer_closers(self) -> None:
        if self._closing and self._machines.lives.all_closed:
            closers, self._closers = self._closers, []
            for closer in closers:
                closer.send(None)

    def _close_books(self, now: float) -> None:
        self._closing = True
        self._ledger.close()
        self._broadcasts.close(now)
        endings = self._ledger.decisions.endings
        while endings:
            try:
                self._settle()
            except Exception as error:  # noqa: BLE001 (one bad caller must not leave the others waiting)
                self._observe(ev.SettleFailed(repr(error)))

    # --- queries of the state -------------------------------------------------------------------------------------

    def _state(self) -> PoolState:
        ledger, machines, rank = self._ledger, self._machines, self._nodes.roster.rank
        phase = machines.controller.nodes.get
        return PoolState(
            nodes=tuple(
                NodeState(
                    m.id,
                    m.machine,
                    phase(m.id),
                    m.away_since is not None,
                    rank(m.id),
                    ledger.load(m.id),
                    m.ports.taken,
                    len(m.ports),
                )
                for m in self._nodes.members.values()
            ),
            queued=ledger.queued,
            leased=ledger.leased,
            broadcasts=len(self._broadcasts),
            error=machines.controller.final_error,
            failed=machines.failures.last,
            queued_ago_s=machines.lives.queue.without_s(self._clock()),
        )


def _earliest(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return one if other is None else other
    return min(one, other)
