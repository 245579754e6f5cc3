"""A pool's machines: launches machines, handles the provider's events about them, and keeps the wanted number of nodes.

The pure module `fleet_controller` decides how many machines to launch or end. `node_lives` handles nodes after their
launch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import assert_never

from ..providers.base import (
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
    PreemptionNotice,
    UsageUnknown,
    Warned,
)
from ..providers.errors import NoCapacity, ProviderError
from . import events as ev
from .broadcasts import Broadcasts
from .fleet_controller import WORTH_S, Autoscaler, Demand, FleetController, NodePhase, Working
from .interfaces import Dependencies
from .kernel import Context
from .launches import LaunchFailures, ProviderCalls
from .ledger import Ledger
from .membership import Membership
from .messages import PoolMessage
from .node_lives import NodeLives

LATE_S = 0.1  # seconds; a shorter delay of a call of `tick` is normal
EARLY_KEPT = 1024  # largest number of machines whose events are kept until the call that launches the machine returns


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
        self._spec = spec = dependencies.spec
        self._observe = observe = dependencies.observe
        self.controller = controller = FleetController(spec.desired, retries=spec.launch_retries, spare=spec.spare)
        self.failures = LaunchFailures(
            controller, nodes.roster, broadcasts, observe, boot_timeout_s=spec.boot_timeout_s
        )
        self._autoscaler = None if spec.scale is None else Autoscaler(spec.scale, slots=spec.slots, least=spec.min)
        self._calls = ProviderCalls(context, dependencies, self)
        self.lives = NodeLives(
            context,
            dependencies,
            controller,
            self._calls,
            self.failures,
            nodes=nodes,
            ledger=ledger,
            broadcasts=broadcasts,
            minimum=lambda: self.minimum,
        )
        self._nodes = nodes
        self._ledger = ledger
        self._broadcasts = broadcasts
        self._chance = dependencies.chance
        self._early: OrderedDict[MachineId, list[MachineEvent]] = OrderedDict()
        self._closing = False

    @property
    def minimum(self) -> int:
        """Return how many nodes must be ready before the pool counts as ready, or before a broadcast may start."""
        return min(self._spec.min, self.controller.wanted) if self._autoscaler is None else self._autoscaler.floor

    @property
    def remaining(self) -> int:
        """Return the number of nodes that work or may become ready, but at most the wanted number. Draining nodes do
        not count.
        """
        staying = sum(phase is not NodePhase.DRAINING for phase in self.controller.nodes.values())
        return min(staying, self.controller.wanted)

    # --- number of nodes ------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        scale = self._spec.scale
        self._ledger.limit(self.controller.wanted if scale is None else scale.most)
        if not self.minimum:
            self._nodes.roster.opened()
            self.controller.opened(now)
        self.controller.tick(now)

    def resize(self, wanted: int, now: float) -> None:
        if self._autoscaler is not None:
            # sets the smallest number of nodes; the load can only raise the number above this minimum
            self._autoscaler.resize(wanted)
            self._sized(now)
            return
        self._observe(ev.PoolResized(wanted))
        self.controller.resize(wanted, now)
        self._ledger.limit(wanted)
        self._sized(now)

    def scale(self, now: float) -> None:
        """Adjust the number of nodes to the waiting work, if the pool has ``scale="load"``."""
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
        self.lives.stragglers.wanted = wanted = self.controller.wanted
        self._broadcasts.resized(now, minimum=self.minimum, wanted=wanted)

    # --- timers ---------------------------------------------------------------------------------------------------

    def tick(self, now: float, *, late_s: float) -> None:
        """Carry out what is due now. ``late_s``: the delay of this call, caused by a stall of this program."""
        if late_s > LATE_S:
            self.lives.detector.stood_still(late_s)
        self.controller.tick(now)
        self.lives.tick(now)

    def wake_at(self, now: float) -> float | None:
        scaling = None if self._autoscaler is None else self._autoscaler.wake_at(now)
        times = (scaling, self.controller.wake_at(), self.lives.wake_at(now))
        return min((at for at in times if at is not None), default=None)

    # --- events from the provider ---------------------------------------------------------------------------------

    def launched(self, requested: int, machines: Sequence[Machine], now: float) -> None:
        if self._closing:
            return  # do nothing: the pool is closing, and closing the provider will end these machines
        members = [self.lives.launched(machine) for machine in machines]
        # machines with `patience_s` (hosts that the user names) have their own time limit, so they are never stragglers
        impatient = (member.id for member in members if member.machine.patience_s is None)
        self.lives.stragglers.launched(impatient, now)
        retry_in_s = self.controller.launched([member.id for member in members], requested, now, self._chance())
        if retry_in_s is not None:
            self.failures.launch(NoCapacity(f"{len(members)} of {requested} machines could be had"), retry_in_s)
        for member in members:
            for event in self._early.pop(member.machine.id, ()):
                self.reported(event, now)

    def launch_failed(self, requested: int, error: ProviderError, now: float) -> None:
        after_s, cause = error.retry_after_s, error.kind
        retry_in_s = self.controller.launch_failed(
            error, requested, now, self._chance(), retry_after_s=after_s, cause=cause
        )
        self.failures.launch(error, retry_in_s)

    def reported(self, event: MachineEvent, now: float) -> None:
        if isinstance(event, Warned | LaunchUnsure):
            self._observe(ev.ProviderWarned(event.text))
            return
        if isinstance(event, LaunchSettled | MachineUsage | UsageUnknown):
            return
        machine = event.machine.id if isinstance(event, MachineReachable) else event.id
        member = self._nodes.of(machine)
        # the machine's launch call has not returned or was cancelled, or the machine's node has ended
        if member is None:
            self._early.setdefault(machine, []).append(event)
            if len(self._early) > EARLY_KEPT:
                self._early.popitem(last=False)
            return
        match event:
            case MachineQueued(_, reason, starts_at):
                self.lives.queued(member, reason, starts_at, now)
            case MachineStarted():
                self.lives.started(member, now)
            case MachineReachable(reachable):
                self.lives.addressed(member, reachable, now)
            case MachineGone(_, cause, error):
                self.lives.gone(member, cause, error, now)
            case PreemptionNotice():
                if member.link is not None:
                    member.link.notify(event)
                self.lives.noticed(member.id, event, now)
            case _:
                assert_never(event)

    # --- orders of the fleet controller -----------------------------------------------------------------------------

    def carry_out(self, now: float) -> None:
        orders = self.controller.orders
        if self._closing:
            return  # do nothing: the pool is closing, and closing the provider will end all machines
        emptied, self._ledger.decisions.emptied = self._ledger.decisions.emptied, []
        for node in emptied:
            self.lives.emptied(node)
        self.lives.look_at_idle()
        launches, orders.launches = orders.launches, []
        for machines in launches:
            self._observe(ev.NodesRequested(machines))
            self._calls.launch(machines)
        members = self._nodes.members
        drains, orders.drains = orders.drains, []
        for node in drains:
            self.lives.drain(members[node], now)
        promotions, orders.promotions = orders.promotions, []
        for node in promotions:
            self.lives.promote(members[node], now)
        demotions, orders.demotions = orders.demotions, []
        for node in demotions:
            self.lives.demote(members[node], now)
        terminations, orders.terminations = orders.terminations, []
        for node in terminations:
            self.lives.end(members[node], now)

    @property
    def busy(self) -> bool:
        orders = self.controller.orders
        changes = orders.launches or orders.drains or orders.promotions or orders.demotions or orders.terminations
        return bool(changes or self._ledger.decisions.emptied)

    def close(self) -> None:
        """Request no more machines, and close the connections; closing the provider then ends the machines."""
        self._closing = True
        self._calls.close()
        self.lives.close()
