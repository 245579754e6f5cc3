"""The pool's machines and nodes: handle their events and carry out what is decided about them.

The pure modules `fleet_controller`, `stragglers` and `failure_detector` decide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from math import inf
from typing import assert_never

import anyio

from ..providers.base import (
    LaunchSettled,
    LaunchUnsure,
    Machine,
    MachineEvent,
    MachineGone,
    MachineId,
    MachineReachable,
    PreemptionNotice,
    Warned,
)
from ..providers.errors import NoCapacity, ProviderError
from . import events as ev
from .autoscaler import WORTH_S, Autoscaler, Demand, Working
from .broadcasts import Broadcasts
from .failure_detector import FailureDetector
from .fleet_controller import FleetController, NodePhase
from .interfaces import (
    ConnectFailed,
    Connection,
    Dependencies,
    Lost,
    NodeId,
    NoWorkers,
    Unfit,
)
from .kernel import ActorStopped, Context, Ref
from .late_nodes import LateNodes
from .ledger import Ledger
from .membership import SOURCES_KEPT, Member, Membership
from .messages import Leave, NodeMessage, PoolMessage, Reachable
from .node import TRIES_AT_ONCE, Dialer, NodeActor
from .provider_calls import ProviderCalls
from .stragglers import Stragglers

LATE_S = 0.1  # below this it is noise
LOOK_S = 1.0  # while nodes, or the ends of transfers, are waited for: how late it is tells how long the program stood
EARLY_KEPT = 1024  # machines whose events are kept while their launch call has not returned yet


class Machines:
    def __init__(
        self,
        context: Context[PoolMessage],
        dependencies: Dependencies,
        *,
        nodes: Membership,
        ledger: Ledger,
        broadcasts: Broadcasts,
    ) -> None:
        spec = dependencies.spec
        self.controller = FleetController(spec.desired, retries=spec.launch_retries, spare=spec.spare)
        self.detector = FailureDetector(reconnect_s=spec.reconnect_s, lease_s=spec.lease_s)
        self.stragglers = Stragglers(spec.desired)
        self._autoscaler = None if spec.scale is None else Autoscaler(spec.scale, slots=spec.slots, least=spec.min)
        self._fleet = dependencies.fleet
        self._calls = ProviderCalls(context, dependencies, self)
        self._context = context
        self._actors: dict[NodeId, Ref[NodeMessage]] = {}  # of nodes, until their connections are closed
        self._spec = spec
        tries, returns = anyio.Semaphore(TRIES_AT_ONCE), anyio.Semaphore(TRIES_AT_ONCE)
        self._dialer = Dialer(
            dependencies.connect, spec.boot_timeout_s, tries, returns, dependencies.preparing, context.ref.tell_inline
        )
        self._late = LateNodes()
        self._nodes = nodes
        self._ledger = ledger
        self._broadcasts = broadcasts
        self._observe = dependencies.observe
        self._probe = dependencies.probe
        self._chance = dependencies.chance
        self._idle: dict[NodeId, None] = {}  # the noticed nodes that hold nothing
        self._in_use: set[NodeId] = set()  # nodes that would leave if no files came from them or went to them
        self._early: OrderedDict[MachineId, list[MachineEvent]] = OrderedDict()
        self._unusable: list[ConnectFailed] = []
        self._refused: ConnectFailed | None = None  # the last of these errors; None once a node has come since
        self._failed: Exception | None = None
        self._closing = False

    @property
    def minimum(self) -> int:
        """Return how many nodes must be ready before the pool is, and for a broadcast."""
        return min(self._spec.min, self.controller.wanted) if self._autoscaler is None else self._autoscaler.floor

    @property
    def hopeless(self) -> Exception | None:
        """Return the error because of which no further node will come; None: one may come."""
        error = self.controller.given_up
        if error is None or self.controller.coming:
            return None
        if not isinstance(error, NoCapacity) or not self._unusable:
            return self._with_late(error)
        first, *others = self._unusable  # there would be enough machines if they were usable
        return self._with_late(first, *(f"Also: {other}" for other in others))

    @property
    def failed(self) -> Exception | None:
        """Return the last reason why a node did not come."""
        return None if self._failed is None else self._with_late(self._failed)

    def _with_late(self, error: Exception, *notes: str) -> Exception:
        """Set the notes of an error that a pool fails with: also where its nodes were, if their time was over."""
        ready, wanted = len(self._nodes.roster), self.controller.wanted
        told = self._late.told(wanted=wanted, ready=ready, within_s=self._spec.boot_timeout_s)
        if notes or told:
            error.__notes__ = [*notes, *filter(None, [told])]
        return error

    @property
    def remaining(self) -> int:
        """Return how many nodes work, or still may, if no further one comes."""
        staying = sum(phase is not NodePhase.DRAINING for phase in self.controller.nodes.values())
        return min(staying, self.controller.wanted)

    def start(self, now: float) -> None:
        scale = self._spec.scale
        self._ledger.limit(self.controller.wanted if scale is None else scale.most)
        if not self.minimum:
            self.controller.opened(now)
        self.controller.tick(now)

    def resize(self, wanted: int, now: float) -> None:
        if self._autoscaler is not None:
            self._autoscaler.resize(wanted)  # as the least number: the load adds to it
            self._sized(now)
            return
        self._observe(ev.PoolResized(wanted))
        self.controller.resize(wanted, now)
        self._ledger.limit(wanted)
        self._sized(now)

    def scale(self, now: float) -> None:
        """Fit the number of nodes to the work, if that is what the pool's user wants."""
        scaler, placement = self._autoscaler, self._ledger.placement
        if scaler is None or self._closing:
            return
        tasks, waiting, ranks = self._ledger.backlog(WORTH_S, now)
        ranks, waits = max(ranks, self._broadcasts.largest), bool(tasks or ranks or placement.claims)
        working = [
            Working(node, host.load > 0 or self._nodes.links[node].in_use > 0, host.progress_at)
            for node, phase in self.controller.nodes.items()
            if phase is NodePhase.READY and (host := placement.hosts.get(node)) is not None
        ]
        before = self.controller.wanted
        demand = Demand(placement.busy, waiting, tasks, ranks, waits)
        if (change := scaler.decide(demand, working, self.controller.missing, now)) is not None:
            self._observe(ev.PoolScaled(change.wanted, before, change.reason))
            self.controller.scale(change.wanted, change.leaving, now)
            self._sized(now)

    def _sized(self, now: float) -> None:
        self.stragglers.wanted = wanted = self.controller.wanted
        self._broadcasts.resized(now, minimum=self.minimum, wanted=wanted)

    def tick(self, now: float, *, late_s: float) -> None:
        """``late_s``: by how much this program is late for it, having stood still."""
        if late_s > LATE_S:
            self.detector.stood_still(late_s)
        self.controller.tick(now)
        for straggler in self.stragglers.overdue(now):
            if self.controller.straggles(straggler.node, now):
                self._observe(ev.NodeLate(*straggler))
        for node in self.detector.overdue(now):
            away_s = self.detector.silent_for(node, now)
            self.lost(node, f"{self._nodes.members[node].dropped_by}, and not heard again for {away_s:.0f} s", now)
        in_use, self._in_use = self._in_use, set()
        for node in in_use:
            self._emptied(node)

    def wake_at(self, now: float) -> float | None:
        scaling = None if self._autoscaler is None else self._autoscaler.wake_at(now)
        looking = now + LOOK_S if self.detector.waits or self._in_use else None
        times = (scaling, looking, self.controller.wake_at(), self.stragglers.wake_at(), self.detector.wake_at())
        return min((at for at in times if at is not None), default=None)

    # --- machines -------------------------------------------------------------------------------------------------

    def launched(self, asked: int, machines: Sequence[Machine], now: float) -> None:
        if self._closing:
            return  # the provider's context ends them
        members = [self._nodes.add(machine) for machine in machines]
        for member in members:
            machine = member.machine
            self._observe(ev.NodeLaunching(member.id, machine.id, machine.hourly_cost, machine.facts or {}))
            make = partial(NodeActor, node=member.id, machine=machine, dialer=self._dialer, pool=self)
            self._actors[member.id] = self._context.spawn(f"node {member.id}", make)
        impatient = (member.id for member in members if member.machine.patience_s is None)  # others time out
        self.stragglers.launched(impatient, now)
        retry_in_s = self.controller.launched([member.id for member in members], asked, now, self._chance())
        if retry_in_s is not None:
            self._not_launched(NoCapacity(f"{len(members)} of {asked} machines could be had"), retry_in_s)
        for member in members:
            for event in self._early.pop(member.machine.id, ()):
                self.reported(event, now)

    def launch_failed(self, asked: int, error: ProviderError, now: float) -> None:
        after_s = error.retry_after_s
        retry_in_s = self.controller.launch_failed(error, asked, now, self._chance(), retry_after_s=after_s)
        self._not_launched(error, retry_in_s)

    def reported(self, event: MachineEvent, now: float) -> None:
        if isinstance(event, Warned | LaunchUnsure):
            self._observe(ev.ProviderWarned(event.text))
            return
        if isinstance(event, LaunchSettled):
            return
        machine = event.machine.id if isinstance(event, MachineReachable) else event.id
        member = self._nodes.of(machine)
        if member is None:  # its launch call has not returned, or was cancelled, or its node has ended
            self._early.setdefault(machine, []).append(event)
            if len(self._early) > EARLY_KEPT:
                self._early.popitem(last=False)
            return
        match event:
            case MachineReachable(reachable):
                if member.machine.address is None and not member.ended:
                    member.machine = reachable
                    self._tell(member.id, Reachable(reachable))
            case MachineGone(_, cause):
                member.terminated = True
                if self.controller.booting(member.id):
                    self._unreached(member, ConnectFailed(f"its machine is gone: {cause}"), now)
                else:
                    self.lost(member.id, cause, now)
            case PreemptionNotice():
                if member.link is not None:
                    member.link.notify(event)
                self.noticed(member.id, event, now)
            case _:
                assert_never(event)

    def _tell(self, node: NodeId, message: NodeMessage) -> None:
        if (actor := self._actors.get(node)) is not None:
            with suppress(ActorStopped):  # that its connection is closed is on the way
                actor.tell(message)

    def _not_launched(self, error: Exception, retry_in_s: float | None) -> None:
        if isinstance(error, NoCapacity) and error.__cause__ is None:
            error.__cause__ = self._refused  # perhaps there are machines, but none that is usable
        self._failed = error
        self._broadcasts.failure = error
        self._observe(ev.LaunchFailed(str(error), self.controller.failures, retry_in_s))

    # --- a node's life --------------------------------------------------------------------------------------------

    def waits(self, node: NodeId, now: float) -> None:  # noqa: ARG002
        self.stragglers.tried(node, inf)

    def reached(self, node: NodeId, connection: Connection, now: float) -> None:
        if not self.controller.booting(node):
            return  # it is being dismissed already
        member = self._nodes.members[node]
        member.facts = connection.facts
        member.ports.extend(connection.facts.ports)
        member.link = self._nodes.links[node] = connection.link
        self.detector.connected(node, now)
        self.stragglers.ready(node, now)
        self._broadcasts.failure = self._refused = None
        if self.controller.node_ready(node, now):
            self._works(member, now)
        else:
            self._stands_by(member)

    def _stands_by(self, member: Member) -> None:
        self._observe(ev.NodeStandby(member.id, *member.identity))

    def _works(self, member: Member, now: float) -> None:
        """Give the node a rank and let it take tasks, for the first time or again."""
        self._nodes.joined(member)
        rank, ready, wanted = self._nodes.roster.rank(member.id), len(self._nodes.roster), self.controller.wanted
        assert rank is not None, "it has joined"
        self._observe(ev.NodeReady(member.id, rank, ready, wanted, *member.identity))
        if member.away_since is None:
            self._ledger.node_ready(member.id, now, member.amounts)
        if ready >= self.minimum:
            self.controller.opened(now)

    def _works_again(self, member: Member, now: float) -> None:
        self._broadcasts.staying(member.id, now)
        self._works(member, now)

    def connection_failed(self, node: NodeId, error: ConnectFailed, now: float) -> None:
        """Handle that the node cannot be reached, or not any more."""
        if self.controller.booting(node):
            self._unreached(self._nodes.members[node], error, now)
        else:
            self.lost(node, str(error), now)

    def _unreached(self, member: Member, error: ConnectFailed, now: float) -> None:
        node = member.id
        member.ended = True
        self._observe(ev.NodeFailed(node, str(error)))
        self._fleet.unusable(member.machine.id, str(error), for_good=error.fatal)
        if error.late:
            self._late.add(error.late)
        if error.futile or (error.late and member.machine.patience_s is not None):  # or a host of the user's own
            self._unusable.append(error)
            self._refused = error
        retry_in_s = self.controller.node_failed(node, error, now, self._chance(), fatal=error.systematic)
        if retry_in_s != 0.0:
            self._not_launched(error, retry_in_s)

    def dropped(self, node: NodeId, lost: Lost, now: float) -> None:
        member = self._nodes.members[node]
        if node not in self.controller.nodes or member.away_since is not None:
            return
        member.away_since = now
        member.dropped_by = lost.cause
        self._observe(ev.NodeSuspect(node, lost.cause, lost.silent))
        if self.detector.dropped(node, now + lost.early_s, silent=lost.silent):
            self._observe(ev.NetworkSilent(len(self._nodes.links)))
            if self._probe is not None:
                self._calls.ask_others(self._probe, self._unheard)
        self.controller.away(node)
        if node in self._nodes.roster:
            self._ledger.node_closed(node, now, recall=False)

    def resumed(self, node: NodeId, now: float) -> None:
        member = self._nodes.members[node]
        if node not in self.controller.nodes or member.away_since is None:
            return
        member.away_since = None
        self._observe(ev.NodeResumed(node))
        self.detector.connected(node, now)
        if node in self._nodes.roster:
            self._ledger.node_ready(node, now, member.amounts)
        elif self.controller.nodes[node] is NodePhase.SPARE:
            self._stands_by(member)
        self.controller.back(node, now)

    def noticed(self, node: NodeId, notice: PreemptionNotice, now: float) -> None:
        """Handle a preemption notice about ``node``, from its provider or from the node itself."""
        member, source, seconds = self._nodes.members.get(node), notice.source, notice.seconds
        if member is None or (len(member.notices) >= SOURCES_KEPT and source not in member.notices):
            return
        if seconds is None:
            member.notices.discard(source)
        else:
            member.notices.add(source)
        self._broadcasts.noticed(node, notice, now)
        phase = self.controller.nodes.get(node)
        if phase is NodePhase.DRAINING:  # it needs no replacement, but its machine's end may kill what runs there
            if seconds is not None:
                self._observe(ev.NodeNoticed(node, source, seconds))
            self._no_new_work(member, now, noticed=bool(member.notices))
            return
        if seconds is None:
            if phase is NodePhase.NOTICED and not member.notices:  # else one from another source still stands
                self._observe(ev.NodeNoticeWithdrawn(node, source))
                self._idle.pop(node, None)
                self._works_again(member, now)
                self.controller.withdrawn(node, now)
        elif phase not in {None, NodePhase.NOTICED}:
            self._observe(ev.NodeNoticed(node, source, seconds))
            self._no_new_work(member, now, noticed=True)
            self.controller.noticed(node, now)
            self._emptied(node)

    def unfit(self, node: NodeId, message: Unfit, now: float) -> None:
        """Handle that a node's executor ends by itself: ``message`` is the cause of the node's loss, which follows."""
        if (member := self._nodes.members.get(node)) is not None:
            member.unfit = message
        self._ledger.node_closed(node, now, recall=False)

    def lost(self, node: NodeId, cause: str, now: float) -> None:
        member = self._nodes.members[node]
        cause = member.unfit.cause if member.unfit else cause
        if node not in self.controller.nodes:
            return
        announced, member.ended = bool(member.notices), True
        self._observe(ev.NodeLost(node, cause, announced))
        self._idle.pop(node, None)
        self._nodes.left(member)
        self.detector.ended(node)
        unfit = None if member.unfit is None or member.unfit.has_run else NoWorkers(member.unfit.cause)
        self.controller.node_lost(node, now, self._chance(), unfit=unfit)
        if unfit is not None and self.controller.given_up is unfit:
            self._not_launched(unfit, None)
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

    # --- what the fleet decides -----------------------------------------------------------------------------------

    def carry_out(self, now: float) -> None:
        orders = self.controller.orders
        if self._closing:
            return  # the provider's context ends all machines
        emptied, self._ledger.decisions.emptied = self._ledger.decisions.emptied, []
        for node in emptied:
            self._emptied(node)
        for node in list(self._idle):
            self._emptied(node)
        launches, orders.launches = orders.launches, []
        for machines in launches:
            self._observe(ev.NodesRequested(machines))
            self._calls.launch(machines)
        drains, orders.drains = orders.drains, []
        for node in drains:
            member = self._nodes.members[node]
            self._observe(ev.NodeDraining(node))
            self._no_new_work(member, now, noticed=False)
            self._emptied(node)
        promotions, orders.promotions = orders.promotions, []
        for node in promotions:
            self._promote(self._nodes.members[node], now)
        demotions, orders.demotions = orders.demotions, []
        for node in demotions:
            self._demote(self._nodes.members[node], now)
        terminations, orders.terminations = orders.terminations, []
        for node in terminations:
            self._end(self._nodes.members[node], now)

    @property
    def busy(self) -> bool:
        orders = self.controller.orders
        changes = orders.launches or orders.drains or orders.promotions or orders.demotions or orders.terminations
        return bool(changes or self._ledger.decisions.emptied)

    def _emptied(self, node: NodeId) -> None:
        """Handle a draining or noticed node, if it holds nothing any more and no files come from it or go to it."""
        if (link := self._nodes.links.get(node)) is not None and link.in_use:
            self._in_use.add(node)
        elif not self._ledger.load(node):
            self.controller.emptied(node)
            if self.controller.nodes.get(node) is NodePhase.NOTICED:
                self._idle[node] = None

    def _promote(self, member: Member, now: float) -> None:
        if self.controller.nodes.get(member.id) is NodePhase.READY and member.id not in self._nodes.roster:
            self._works_again(member, now)

    def _demote(self, member: Member, now: float) -> None:
        if self.controller.nodes.get(member.id) is NodePhase.SPARE and member.id in self._nodes.roster:
            self._stands_by(member)
            self._no_new_work(member, now, noticed=False)

    def close(self) -> None:
        """Close the connections to all nodes; the provider's context ends their machines."""
        self._closing = True
        self._calls.close()
        for node in self._actors:
            self._tell(node, Leave())

    @property
    def all_closed(self) -> bool:
        return not self._actors

    def _end(self, member: Member, now: float) -> None:
        """Close a node's connection; end its machine after that, or at once if the node failed or is lost."""
        self.stragglers.ended(member.id)
        self._tell(member.id, Leave())
        if member.ended:
            self._terminate(member)
            return
        member.ended = True
        self._observe(ev.NodeDismissed(member.id))
        self._idle.pop(member.id, None)
        self.detector.ended(member.id)
        self._ledger.node_lost(member.id, "dismissed", now)

    def _terminate(self, member: Member) -> None:
        if not member.terminated:
            member.terminated = True
            self._calls.terminate(member.machine.id)

    def _unheard(self) -> Sequence[Machine] | None:
        """Return the machines if all nodes are silent; None: they are not, or no longer."""
        if not self.detector.cut_off or self._closing:
            return None
        return [self._nodes.members[node].machine for node in self._actors]
