"""The nodes of a pool, each from its launch until its connection is closed, and how each step of a node changes the
pool.

A node waits for its machine, is connected or fails, loses its connection and regains it, gets a preemption notice, is
lost or dismissed. `NodeActor` supervises the connection to one node: it connects to the machine, reports losses of the
connection, and reconnects until it gets `Leave`. `NodeLives` handles what happens to each node. Pure modules decide:
`stragglers` whether a node is late or its machine has waited for too long, `failure_detector` whether it is lost,
`fleet_controller` how to react.

A `NodeActor` has a task only while it connects or ends. While it is connected it has none: the connection calls the
actor when it is lost. The actor has no mailbox either: messages of the pool take effect at once, as handling them never
waits. A task and a mailbox were half of the objects per node that Python's garbage collector had to traverse.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from math import inf
from typing import TYPE_CHECKING, assert_never

import anyio

from ..lazy_dataclass import dataclass
from ..providers.base import Machine, PreemptionNotice
from ..providers.errors import ProviderError
from . import events as ev
from .broadcasts import Broadcasts
from .failure_detector import FailureDetector
from .fleet_controller import FleetController, NodePhase
from .interfaces import (
    Connect,
    ConnectFailed,
    Connection,
    Dependencies,
    Lost,
    NodeId,
    NoWorkers,
    QueuedTooLong,
    Report,
    Unfit,
)
from .kernel import ActorFailed, ActorStopped, Context
from .late_nodes import NO_ADDRESS, NO_ANSWER, PREPARED, Preparing
from .launches import LaunchFailures, ProviderCalls
from .ledger import Ledger
from .membership import SOURCES_KEPT, Member, Membership
from .messages import Boots, Happened, Leave, NodeMessage, PoolMessage, Queued, Reachable, Received
from .stragglers import LaunchQueue, Stragglers

if TYPE_CHECKING:
    from anyio.abc import TaskGroup


TRY_AGAIN_S = 0.1  # seconds to wait after the first refused try to connect; each further pause is 1.5 times as long
TRY_AGAIN_LIMIT_S = 2.0
# fraction of a host's `patience_s` for which a host that is up may refuse connections: its sshd starts within seconds
REFUSED_PART = 0.3
STEADY_S = 10.0  # seconds; after two connections in a row that were lost sooner, reconnecting begins with a pause
CLOSE_S = 9.0
# number of tries to connect at the same time, over all nodes; 1,000 connections are opened in 2.2 s this way
TRIES_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class Dialer:
    """The things that all actors of a pool's nodes use to connect to their nodes."""

    connect: Connect
    boot_timeout_s: float
    tries: anyio.Semaphore  # limits first connections; a try holds a place until its machine has answered
    # limits reconnections separately, as they must not wait for first connections: a node without a connection is lost
    # within seconds
    returns: anyio.Semaphore
    preparing: Callable[[NodeId], Preparing | None]
    tell: Callable[[PoolMessage], None]
    tasks: TaskGroup  # runs the actors' tasks, which exist while an actor connects or ends


class NodeActor:
    """The supervisor of the connection to one node. An error that concerns this node is reported, and affects no other
    node.
    """

    def __init__(self, node: NodeId, machine: Machine, dialer: Dialer, pool: NodeLives) -> None:
        self._node = node
        self._machine = machine
        self._pool = pool
        self._dialer = dialer
        self._has_answered = self._answers = self._has_turn = False
        self._connection: Connection | None = None  # None until the node is connected
        # when the node was last connected, and the number of short connections (`STEADY_S`) in a row
        self._since, self._short = 0.0, 0
        # cancels the actor's task; None: the node is connected, and the actor has no task
        self._work: anyio.CancelScope | None = None
        # `_addressed` and `_boot` exist only until the node is connected: each takes a kilobyte, and a pool may have a
        # thousand nodes
        self._addressed: anyio.Event | None = anyio.Event()
        self._boot: anyio.CancelScope | None = anyio.CancelScope(deadline=self._boots_until())
        if machine.address is not None:
            self._addressed.set()

    def begin(self) -> None:
        """Connect to the machine. After that, the node stays connected until the actor gets `Leave`, or reconnecting
        fails for good.

        When the connection is closed, call `NodeLives.closed`.
        """
        self._begin(self._reach_first)

    def receive(self, message: NodeMessage) -> None:
        match message:
            case Queued():
                if self._boot is not None:
                    self._boot.deadline = math.inf
            case Boots():
                if self._boot is not None:
                    self._boot.deadline = self._boots_until()
            case Reachable(machine):
                self._machine = machine
                if self._addressed is not None:
                    self._addressed.set()
            case Leave():
                if self._work is None:
                    self._begin(_nothing_more)
                else:
                    self._work.cancel()
            case _:
                assert_never(message)

    def _begin(self, work: Callable[[], Awaitable[bool]]) -> None:
        self._work = scope = anyio.CancelScope()
        self._dialer.tasks.start_soon(self._carry_out, work, scope, name=f"node {self._node}")

    async def _carry_out(self, work: Callable[[], Awaitable[bool]], scope: anyio.CancelScope) -> None:
        """Run ``work``, which connects or reconnects; if it succeeds, end this task and let the connection call when it
        is lost.

        If ``work`` fails, or the actor got `Leave`, close the connection: the node has ended.

        Raises:
            ActorFailed: the node's connection could not be closed.
        """
        connected = False
        try:
            with scope:
                connected = await work() and not scope.cancel_called
        except ConnectFailed as error:
            self._happened(partial(self._pool.connection_failed, self._node, error))
        except Exception as error:  # noqa: BLE001 (this node's defect must not be the pool's)
            defect = ConnectFailed(f"{type(error).__name__}: {error}", systematic=True)
            defect.__cause__ = error
            self._happened(partial(self._pool.connection_failed, self._node, defect))
        finally:
            if not connected:
                await self._close()
        if connected:
            self._rest()
        else:
            self._happened(partial(self._pool.closed, self._node))

    def _rest(self) -> None:
        assert self._connection is not None, "it is connected"
        self._since, self._work = anyio.current_time(), None
        self._connection.watch(self._dropped)

    def _dropped(self, lost: Lost) -> None:
        self._happened(partial(self._lost, lost))

    def _lost(self, lost: Lost, now: float) -> None:
        """Reconnect after a loss, unless the actor has got `Leave` or gets it now, as the pool's reaction to the
        loss.
        """
        if self._work is None:
            self._short = self._short + 1 if now - self._since < STEADY_S else 0
            self._begin(partial(self._return, lost.cause))
            self._pool.dropped(self._node, lost, now)

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            try:
                await connection.close()
            except Exception as error:
                raise ActorFailed(f"node {self._node}") from error

    def _boots_until(self) -> float:
        return anyio.current_time() + self._dialer.boot_timeout_s

    async def _reach_first(self) -> bool:
        self._connection = await self._reach()
        self._boot = self._addressed = None
        self._happened(partial(self._pool.reached, self._node, self._connection))
        return True

    async def _reach(self) -> Connection:
        """Connect to the machine, and retry until a try succeeds or the machine's time to boot is over.

        Raises:
            ConnectFailed: the machine was never connected; the message has the reason of the last try.
        """
        last: ConnectFailed | None = None
        boot, addressed = self._boot, self._addressed
        assert boot is not None, "it is reached once"
        assert addressed is not None, "it is reached once"
        with boot:
            await addressed.wait()
            patience_s = self._machine.patience_s or math.inf
            down_at = anyio.current_time() + patience_s
            refused_at = math.inf
            for tries in count():
                self._answers = False
                try:
                    async with self._turn():
                        return await self._dialer.connect(self._node, self._machine, self._reports, self._answered)
                except ConnectFailed as error:
                    if self._answers:  # the machine answered during this try, so it was up a moment ago
                        down_at = anyio.current_time() + patience_s
                    refused_at = min(refused_at, anyio.current_time()) if error.refused else math.inf
                    if error.futile or anyio.current_time() >= min(down_at, refused_at + REFUSED_PART * patience_s):
                        raise
                    last = error
                await _pause(tries)
        raise self._late(last, addressed=addressed.is_set()) from last and last.__cause__

    def _late(self, last: ConnectFailed | None, *, addressed: bool) -> ConnectFailed:
        """Return the error for a node whose time to boot is over. ``last``: the error of the last failed try, if
        any.
        """
        story, late, step = "its address is still unknown", NO_ADDRESS, ""
        if self._answers:  # in the last try, the machine answered
            at = self._dialer.preparing(self._node)
            story = f"it answered, and {at or 'was being prepared'}"
            late, step = (PREPARED, "") if at is None else (f"at the step {at.step!r}", at.step)
        elif last is not None or addressed:
            story, late = str(last or "it did not answer"), NO_ANSWER
        failed = ConnectFailed(f"not ready within {self._dialer.boot_timeout_s:g} s: {story}")
        failed.late, failed.step = late, step
        return failed

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the limited places for tries to connect. Report a wait for a place: it must not count as the
        machine's silence.
        """
        tries = self._dialer.tries
        waits = tries.value == 0
        if waits:
            self._happened(partial(self._pool.waits, self._node))
        await tries.acquire()
        self._has_turn = True
        try:
            if waits:
                self._happened(partial(self._pool.stragglers.tried, self._node))
            yield
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._dialer.tries.release()

    def _answered(self) -> None:
        # preparing the node may take long: free the place for other nodes, as leases are renewed only after connecting
        self._end_turn()
        self._answers = True
        if not self._has_answered:
            self._has_answered = True
            self._happened(partial(self._pool.stragglers.answered, self._node))

    async def _return(self, cause: str) -> bool:
        """Reconnect after the connection was lost with ``cause``.

        Raises:
            ConnectFailed: reconnecting to the node will never work.
        """
        if self._short > 1:  # if connections end again and again, reconnecting must not keep this program busy
            await _pause(self._short - 2)
        assert self._connection is not None, "it was connected"
        await self._resume(self._connection, cause)
        self._happened(partial(self._pool.resumed, self._node))
        return True

    async def _resume(self, connection: Connection, cause: str) -> None:
        """Reconnect, and retry until a try succeeds: the pool decides how long that may take, and ends it by
        `Leave`.
        """
        for tries in count():
            try:
                async with self._dialer.returns:
                    resumed = await connection.resume()
            except ConnectFailed as error:
                if error.fatal:
                    raise
            else:
                if resumed:
                    return
                raise ConnectFailed(f"{cause}; its executor started anew")
            await _pause(tries)

    def _reports(self, reports: Sequence[Report]) -> None:
        self._tell(Received(self._node, reports))

    def _happened(self, handle: Callable[[float], None]) -> None:
        self._tell(Happened(handle))

    def _tell(self, message: PoolMessage) -> None:
        try:
            self._dialer.tell(message)
        except ActorStopped:
            pass  # the pool is ending, and ends its nodes itself


async def _nothing_more() -> bool:
    """Do nothing: the work of a connected node that gets `Leave`, so that only its connection is closed."""
    return False


async def _pause(tries: int) -> None:
    await anyio.sleep(min(TRY_AGAIN_S * 1.5 ** min(tries, 16), TRY_AGAIN_LIMIT_S))


# seconds between checks while a node reconnects or is kept by a file transfer; the lateness of a check shows for how
# long this program stalled
LOOK_S = 1.0


class NodeLives:
    def __init__(
        self,
        context: Context[PoolMessage],
        dependencies: Dependencies,
        controller: FleetController,
        calls: ProviderCalls,
        failures: LaunchFailures,
        *,
        nodes: Membership,
        ledger: Ledger,
        broadcasts: Broadcasts,
        minimum: Callable[[], int],  # number of nodes that must be ready before the pool is ready
    ) -> None:
        self._spec = spec = dependencies.spec
        self.detector = FailureDetector(reconnect_s=spec.reconnect_s, lease_s=spec.lease_s)
        self.stragglers = Stragglers(spec.desired)
        self.queue = LaunchQueue(spec.start_timeout_s)
        self._controller = controller
        self._calls = calls
        self._failures = failures
        self._nodes = nodes
        self._ledger = ledger
        self._broadcasts = broadcasts
        self._context = context
        self._fleet = dependencies.fleet
        self._observe = dependencies.observe
        self._probe = dependencies.probe
        self._chance = dependencies.chance
        self._minimum = minimum
        tries, returns = anyio.Semaphore(TRIES_AT_ONCE), anyio.Semaphore(TRIES_AT_ONCE)
        self._dialer = Dialer(
            dependencies.connect,
            spec.boot_timeout_s,
            tries,
            returns,
            dependencies.preparing,
            context.ref.tell_inline,
            context.children,
        )
        context.children.start_soon(self._end_all, name="nodes")
        self._actors: dict[NodeId, NodeActor] = {}  # actors of nodes whose connections are not closed yet
        self._idle: dict[NodeId, None] = {}  # nodes that have a preemption notice and hold no tasks
        self._in_use: set[NodeId] = set()  # idle nodes that are kept because of a running file transfer
        self._closing = False

    # --- events of a node -----------------------------------------------------------------------------------------

    def launched(self, machine: Machine) -> Member:
        """Handle a launched machine: create its node, whose actor then connects to the machine."""
        member = self._nodes.add(machine)
        self._observe(ev.NodeLaunching(member.id, machine.id, machine.hourly_cost, machine.facts or {}))
        self._actors[member.id] = actor = NodeActor(member.id, machine, self._dialer, self)
        actor.begin()
        return member

    def queued(self, member: Member, reason: str, starts_at: float | None, now: float) -> None:
        """Handle that the machine of ``member`` waits in its provider's queue, or that its reason to wait changed."""
        node = member.id
        if not self._controller.booting(node) or member.machine.address is not None:
            return
        waited = node in self.queue
        if self.queue.queued(node, reason, starts_at, now):
            self._observe(ev.NodeQueued(node, reason, starts_at))
        if not waited:
            self.stragglers.queued(node)
            self._controller.queued(node)
            self._tell(node, Queued())

    def started(self, member: Member, now: float) -> None:
        """Handle that the machine of ``member`` runs; do nothing if it was not queued."""
        if (waited_s := self.queue.left(member.id, now)) is not None:
            self._observe(ev.NodeStarted(member.id, waited_s))
            self.stragglers.started(member.id, now)
            self._controller.started(member.id)
            self._tell(member.id, Boots())

    def addressed(self, member: Member, machine: Machine, now: float) -> None:
        """Handle that the machine of ``member`` has its address."""
        if member.machine.address is None and not member.ended:
            self.started(member, now)
            member.machine = machine
            self._tell(member.id, Reachable(machine))

    def gone(self, member: Member, cause: str, error: ProviderError | None, now: float) -> None:
        """Handle the provider's report that the machine no longer exists or, if ``error`` is set, that it never will
        exist.
        """
        member.terminated = True
        self.stragglers.ended(member.id)
        self.stragglers.gone(member.id)
        if self._controller.booting(member.id):
            if error is None:
                self._unreached(member, ConnectFailed(f"its machine is gone: {cause}"), now)
            else:
                self._never_comes(member, error, now, after_s=error.retry_after_s)
        else:
            self.lost(member.id, cause, now)

    def waits(self, node: NodeId, now: float) -> None:  # noqa: ARG002
        self.stragglers.tried(node, inf)

    def reached(self, node: NodeId, connection: Connection, now: float) -> None:
        if not self._controller.booting(node):
            return  # the pool is already dismissing the node
        member = self._nodes.members[node]
        member.facts = connection.facts
        member.ports.offer(0, connection.facts.ports)
        member.link = self._nodes.links[node] = connection.link
        self.detector.connected(node, now)
        self.stragglers.ready(node, now)
        self._failures.ready()
        if self._controller.node_ready(node, now):
            self._works(member, now)
        else:
            self._stands_by(member)

    def _stands_by(self, member: Member) -> None:
        self._observe(ev.NodeStandby(member.id, *member.identity))

    def _works(self, member: Member, now: float) -> None:
        """Give the node of ``member`` a rank and let the node take tasks, for the first time or again."""
        self._nodes.joined(member)
        roster, wanted = self._nodes.roster, self._controller.wanted
        rank, seat, ready = roster.rank(member.id), roster.seat(member.id), len(roster)
        assert rank is not None, "it has joined"
        self._observe(ev.NodeReady(member.id, rank, ready, wanted, *member.identity, seat=seat))
        if member.away_since is None:
            self._ledger.node_ready(member.id, now, member.amounts)
        if ready >= self._minimum():
            self._nodes.roster.opened()
            self._controller.opened(now)

    def _works_again(self, member: Member, now: float) -> None:
        self._broadcasts.staying(member.id, now)
        self._works(member, now)

    def connection_failed(self, node: NodeId, error: ConnectFailed, now: float) -> None:
        """Handle that connecting to the node, or reconnecting, will never work."""
        if self._controller.booting(node):
            self._unreached(self._nodes.members[node], error, now)
        else:
            self.lost(node, str(error), now)

    def _never_comes(self, member: Member, error: Exception, now: float, *, after_s: float | None) -> None:
        """Handle that a launched machine will never run. ``after_s``: least seconds until the next launch; None: no
        other launch.
        """
        member.ended = True
        self.queue.left(member.id, now)
        self._observe(ev.NodeFailed(member.id, str(error)))
        fatal, chance = after_s is None, self._chance()
        retry_in_s = self._controller.node_failed(member.id, error, now, chance, fatal=fatal, after_s=after_s or 0.0)
        if retry_in_s != 0.0:
            self._failures.launch(error, retry_in_s)

    def _unreached(self, member: Member, error: ConnectFailed, now: float) -> None:
        node = member.id
        member.ended = True
        self.queue.left(node, now)
        self._observe(ev.NodeFailed(node, str(error)))
        self._fleet.unusable(member.machine.id, str(error), for_good=error.fatal)
        self._failures.unreached(member, error)
        # True if the provider creates its machines, so that another machine would be like this machine
        alike = member.machine.patience_s is None
        retry_in_s = self._controller.node_failed(
            node, error, now, self._chance(), fatal=error.systematic, cause=error.kind if alike else ""
        )
        if retry_in_s != 0.0:
            self._failures.launch(error, retry_in_s)

    def dropped(self, node: NodeId, lost: Lost, now: float) -> None:
        member = self._nodes.members[node]
        if node not in self._controller.nodes or member.away_since is not None:
            return
        member.away_since = now
        member.dropped_by = lost.cause
        self._observe(ev.NodeSuspect(node, lost.cause, lost.silent))
        if self.detector.dropped(node, now + lost.early_s, silent=lost.silent):
            self._observe(ev.NetworkSilent(len(self._nodes.links)))
            if self._probe is not None:
                self._calls.ask_others(self._probe, self._unheard, self.detector.answered)
        self._controller.away(node)
        if node in self._nodes.roster:
            self._ledger.node_closed(node, now, recall=False)

    def resumed(self, node: NodeId, now: float) -> None:
        member = self._nodes.members[node]
        if node not in self._controller.nodes or member.away_since is None:
            return
        member.away_since = None
        self._nodes.compare_ports(node)
        self._observe(ev.NodeResumed(node))
        self.detector.connected(node, now)
        if node in self._nodes.roster:
            self._ledger.node_ready(node, now, member.amounts)
        elif self._controller.nodes[node] is NodePhase.SPARE:
            self._stands_by(member)
        self._controller.back(node, now)

    def noticed(self, node: NodeId, notice: PreemptionNotice, now: float) -> None:
        """Handle a preemption notice about ``node``, from its provider or from the node itself."""
        member, source, seconds = self._nodes.members.get(node), notice.source, notice.seconds
        if member is None or (len(member.notices) >= SOURCES_KEPT and source not in member.notices):
            return
        if seconds is None:
            member.notices.pop(source, None)
        else:
            member.notices[source] = None
        self._broadcasts.noticed(node, notice, now)
        phase = self._controller.nodes.get(node)
        # a node that leaves anyway needs no replacement, but the end of its machine may kill its tasks
        if phase is NodePhase.DRAINING:
            if seconds is not None:
                self._observe(ev.NodeNoticed(node, source, seconds))
            self._no_new_work(member, now, noticed=bool(member.notices))
            return
        if seconds is None:
            # if ``member.notices`` is not empty, a preemption notice from another source is still valid
            if phase is NodePhase.NOTICED and not member.notices:
                self._observe(ev.NodeNoticeWithdrawn(node, source))
                self._idle.pop(node, None)
                self._works_again(member, now)
                self._controller.withdrawn(node, now)
        elif phase not in {None, NodePhase.NOTICED}:
            self._observe(ev.NodeNoticed(node, source, seconds))
            self._no_new_work(member, now, noticed=True)
            self._controller.noticed(node, now)
            self.emptied(node)

    def unfit(self, node: NodeId, message: Unfit, now: float) -> None:
        """Handle the report that a node's executor is about to end. ``message``: the reason; the loss of the node
        follows.
        """
        if (member := self._nodes.members.get(node)) is not None:
            member.unfit = message
        self._ledger.node_closed(node, now, recall=False)

    def lost(self, node: NodeId, cause: str, now: float) -> None:
        member = self._nodes.members[node]
        cause = member.unfit.cause if member.unfit else cause
        if node not in self._controller.nodes:
            return
        announced, member.ended = bool(member.notices), True
        self._observe(ev.NodeLost(node, cause, announced))
        self._idle.pop(node, None)
        self._nodes.left(member)
        self.detector.ended(node)
        unfit = None if member.unfit is None or member.unfit.has_run else NoWorkers(member.unfit.cause)
        self._controller.node_lost(node, now, self._chance(), unfit=unfit)
        if unfit is not None and self._controller.final_error is unfit:
            self._failures.launch(unfit, None)
        self._ledger.node_lost(node, cause, now, announced=announced)
        self._broadcasts.lost(node, cause, now, since=member.away_since)

    def closed(self, node: NodeId, now: float) -> None:  # noqa: ARG002
        member = self._nodes.members[node]
        del self._actors[node]
        if member.ended:
            self._nodes.remove(node)
            self._terminate(member)

    def _no_new_work(self, member: Member, now: float, *, noticed: bool) -> None:
        self._nodes.left(member)
        self._ledger.node_closed(member.id, now, noticed=noticed)
        self._broadcasts.leaving(member.id, now, noticed=noticed)

    # --- timers ---------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        due = self.stragglers.not_before()
        for straggler in self.stragglers.overdue(now) if due is not None and due <= now else ():
            if self._controller.straggles(straggler.node, now):
                self._observe(ev.NodeLate(*straggler))
        for node in self.detector.overdue(now):
            away_s = self.detector.silent_for(node, now)
            self.lost(node, f"{self._nodes.members[node].dropped_by}, and not heard again for {away_s:.0f} s", now)
        for waiting in self.queue.overdue(now):
            limit_s = self._spec.start_timeout_s or 0.0
            overdue = QueuedTooLong(waiting.reason, limit_s, waiting.starts_at)
            self._never_comes(self._nodes.members[waiting.node], overdue, now, after_s=None)
        in_use, self._in_use = self._in_use, set()
        for node in in_use:
            self.emptied(node)

    def wake_at(self, now: float) -> float | None:
        looking = now + LOOK_S if self.detector.waits or self._in_use else None
        times = (looking, self.stragglers.not_before(), self.detector.wake_at(), self.queue.wake_at())
        return min((at for at in times if at is not None), default=None)

    # --- orders of the fleet controller -----------------------------------------------------------------------------

    def drain(self, member: Member, now: float) -> None:
        """Give a node no new tasks; the node is dismissed when its running tasks have ended."""
        self._observe(ev.NodeDraining(member.id))
        self._no_new_work(member, now, noticed=False)
        self.emptied(member.id)

    def promote(self, member: Member, now: float) -> None:
        if self._controller.nodes.get(member.id) is NodePhase.READY and member.id not in self._nodes.roster:
            self._works_again(member, now)

    def demote(self, member: Member, now: float) -> None:
        if self._controller.nodes.get(member.id) is NodePhase.SPARE and member.id in self._nodes.roster:
            self._stands_by(member)
            self._no_new_work(member, now, noticed=False)

    def end(self, member: Member, now: float) -> None:
        """End a node: close its connection, and terminate its machine: at once if the node failed or is lost, else
        after closing.
        """
        self.stragglers.ended(member.id)
        self.queue.left(member.id, now)
        self._tell(member.id, Leave())
        if member.ended:
            self._terminate(member)
            return
        member.ended = True
        self._observe(ev.NodeDismissed(member.id))
        self._idle.pop(member.id, None)
        self.detector.ended(member.id)
        self._ledger.node_lost(member.id, "dismissed", now)

    def look_at_idle(self) -> None:
        """Dismiss the nodes that have a preemption notice and hold no tasks, if enough other nodes work by now."""
        # without enough working nodes none may leave: many preemption notices may arrive before any replacement is
        # ready
        if self._idle and self._controller.is_full:
            for node in list(self._idle):
                self.emptied(node)

    def close(self) -> None:
        """Close the connections to all nodes; closing the provider then ends the machines."""
        self._closing = True
        for node in self._actors:
            self._tell(node, Leave())

    async def _end_all(self) -> None:
        """Close the connections to the remaining nodes when the pool's actor has ended, for example because it failed.

        Connected nodes have no task of their own that could notice this end.
        """
        try:
            await anyio.sleep_forever()
        finally:
            self.close()

    @property
    def all_closed(self) -> bool:
        return not self._actors

    def emptied(self, node: NodeId) -> None:
        """Dismiss a node that is drained or has a notice, if it holds no tasks any more and takes part in no file
        transfer.
        """
        if (link := self._nodes.links.get(node)) is not None and link.in_use:
            self._in_use.add(node)
        elif not self._ledger.load(node):
            self._controller.emptied(node)
            if self._controller.nodes.get(node) is NodePhase.NOTICED:
                self._idle[node] = None

    def _terminate(self, member: Member) -> None:
        if not member.terminated:
            member.terminated = True
            self._calls.terminate(member.machine.id, partial(self._confirmed, member.id))

    def _confirmed(self, node: NodeId, now: float) -> None:  # noqa: ARG002
        self.stragglers.gone(node)

    def _tell(self, node: NodeId, message: NodeMessage) -> None:
        if (actor := self._actors.get(node)) is not None:
            actor.receive(message)

    def _unheard(self) -> Sequence[Machine] | None:
        """Return the machines that the reachability probe is to test, if all nodes are silent; None: a node answers, or
        the pool closes.
        """
        if not self.detector.cut_off or self._closing:
            return None
        return [self._nodes.members[node].machine for node in self._actors]
