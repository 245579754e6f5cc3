"""The referee of a simulated pool: checks the promises of Outrider, and reports the first broken promise.

The rules in `rules` examine the simulated world (which process runs where, which machine costs money), the pool's
events and the tasks that it sends, but never its internal state. The simulator also checks these promises outside
`rules`:

SIM-9: nothing waits for ever: the pool becomes ready or reports why not, every job settles (ends with a result or an
    error), and closing takes bounded time.
SIM-17: when nothing happens any more, each ready node was last sent exactly the current list of ready nodes.
SIM-18: a closed pool leaves nothing behind: no process on a machine that can be reached, and no connection.
SIM-20: no actor fails.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...actors import events as ev
from ...actors.interfaces import AttemptId, Ending, JobId, NodeId, Order, Settled
from ...engine.serialization.stored_objects import StoredObject
from ...providers.base import MachineId, PreemptionNotice
from .rules.amounts import AmountRules
from .rules.costs import CostRules
from .rules.executors import ExecutorRules
from .rules.jobs import JobRules
from .rules.kept import KeptRules
from .rules.nodes import NodeRules
from .rules.ports import PortRules
from .rules.queues import QueueRules
from .rules.scaling import ScalingRules
from .rules.time_limits import TimeLimitRules
from .rules.waves import WaveRules
from .rules.worlds import WorldRules

if TYPE_CHECKING:
    from ...engine.wire.messages import Run
    from ...providers.base import Machine
    from .faults import Fault
    from .machines import Daemon, Host, Sim
    from .scenario import Job


class Violation(Exception):
    """The exception for a broken promise.

    Args:
        rule: The number of the promise, such as ``"SIM-9"``.
        story: A description of what happened.
        at_s: The simulated time in seconds.
    """

    def __init__(self, rule: str, story: str, at_s: float) -> None:
        super().__init__(f"{rule} at {at_s:.6f} s: {story}")
        self.rule, self.story, self.at_s = rule, story, at_s


class Referee:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.jobs = JobRules(sim)
        self.amounts = AmountRules(sim)
        self.executors = ExecutorRules(sim)
        self.scaling = ScalingRules(sim)
        self.worlds = WorldRules(sim)
        self.nodes = NodeRules(sim)
        self.waves = WaveRules(sim)
        self.costs = CostRules(sim)
        self.queues = QueueRules(sim)
        self.time_limits = TimeLimitRules(sim)
        self.kept = KeptRules(sim)
        self.ports = PortRules(sim)
        self.least_wanted = sim.scenario.nodes

    # --- events of the pool -----------------------------------------------------------------------------------------

    def observed(self, event: ev.Event) -> None:  # noqa: PLR0912 (a table)
        match event:
            case ev.NodeLaunching():
                self.nodes.launched(NodeId(event.node), MachineId(event.machine))
            case ev.PoolScaled():
                self.scaling.scaled(event.wanted, event.before)
                self.nodes.resized(event.wanted)
            case ev.NodeStandby() | ev.NodeReady() | ev.NodeDraining():
                if isinstance(event, ev.NodeDraining):
                    self.scaling.draining(self.nodes.seats[NodeId(event.node)].machine)
                self.nodes.becomes(NodeId(event.node), event.name.removeprefix("node_"))
            case ev.NodeQueued():
                self.nodes.queued(NodeId(event.node))
                self.waves.queued(self.nodes.seats[NodeId(event.node)].machine)
            case ev.NodeStarted():
                self.nodes.started(NodeId(event.node))
            case ev.NodeLate():
                self.queues.called_late(NodeId(event.node))
                self.waves.called_late(NodeId(event.node))
                self.nodes.becomes(NodeId(event.node), "late")
            case ev.NodeLost() | ev.NodeFailed():
                self._over(NodeId(event.node), event.name, event.cause)
            case ev.NodeDismissed():
                self._over(NodeId(event.node), event.name, "")
            case ev.NodeNoticeWithdrawn():
                self.scaling.notice_withdrawn()
            case ev.NodeNoticed():
                self.jobs.excuse(NodeId(event.node))
            case ev.LaunchFailed():
                self.nodes.launch_failed(event.retry_in_s)
                self.executors.launch_failed(event.error)
            case ev.NetworkSilent():
                self.nodes.network_silent()
            case ev.GenerationStarted():
                self.worlds.started(JobId(event.job), event.generation, event.ranks)
            case ev.Stalled():
                self.jobs.stalled(event)
            case ev.TaskRetried():
                self.jobs.retried(event)
            case ev.PoolClosing():
                self.nodes.closing = True
            case ev.SettleFailed():
                self._sim.broken("SIM-20", event.error)
            case _:
                pass

    def ordered(self, node: NodeId, host: Host, order: Order) -> None:
        self.nodes.ordered(node)
        self.jobs.ordered(node, order)
        self.time_limits.ordered(order)
        if order.world is not None:
            self.worlds.ordered(node, host, order)

    def settled(self, job: Job, ending: Ending) -> None:
        self._sim.trace("settled", job=job.id, ending=_ending_text(ending))
        self.jobs.settle(job, ending)
        self.queues.settled(job.id, (ending,))
        self.time_limits.settled(job, (ending,))
        self.kept.settled(job, ending)

    def settled_all(self, job: Job, endings: Sequence[Ending], generation: int) -> None:
        self._sim.trace("settled_all", job=job.id, generation=generation, endings=endings)
        self.jobs.settle_all(job, endings, generation)
        self.queues.settled(job.id, endings)
        self.time_limits.settled(job, endings)

    def resized(self, wanted: int) -> None:
        self.least_wanted = min(self.least_wanted, wanted)
        if self._sim.scenario.idle_s is not None:
            self.scaling.resized(wanted)
            return
        self.nodes.resized(wanted)
        self.worlds.resized(wanted)

    def _over(self, node: NodeId, event: str, cause: str) -> None:
        host = self._sim.hosts[self.nodes.seats[node].machine]
        if event == "node_failed":
            self.queues.failed(node, cause)
        self.nodes.over(node, event, cause)
        self.jobs.lost(node)
        self.worlds.lost(node, host)

    # --- events of the simulated world ------------------------------------------------------------------------------

    def delivered(self, daemon: Daemon, run: Run, *, known: Mapping[bytes, str | None]) -> None:
        self.jobs.delivered(daemon, run, known)
        self.kept.delivered(daemon, run)
        if run.world is not None:
            self.worlds.delivered(daemon, run, self._sim.orders[AttemptId(run.attempt)])

    def began(self, host: Host, attempt: int) -> None:
        order = self._sim.orders[AttemptId(attempt)]
        self._sim.trace("began", attempt=attempt, job=order.task.job, rank=order.rank, host=host.number)
        self.jobs.began(host, order)
        self.amounts.began(host, order)
        self.executors.began(host)
        self.time_limits.began(host, order)
        if order.world is not None:
            self.worlds.began(order)

    def ended(self, host: Host, attempt: int, how: str) -> None:
        order = self._sim.orders[AttemptId(attempt)]
        self._sim.trace("ended", attempt=attempt, how=how)
        self.jobs.ended(host, order, how)
        self.amounts.ended(host, order)
        self.scaling.ended(host)
        if order.world is not None:
            self.worlds.ended(order)

    def launching(self, count: int) -> None:
        self.nodes.launching(count)

    def launch_ended(self, count: int, machines: Sequence[Machine]) -> None:
        self.nodes.launch_ended(count, machines)
        self.waves.launched(machines)

    def answered(self, machine: MachineId) -> None:
        self.waves.answered(machine)

    def notice_sent(self, notice: PreemptionNotice) -> None:
        self.nodes.notice_sent(notice)

    def fault_injected(self, fault: Fault, hosts: Sequence[Host]) -> None:
        self.nodes.fault_injected(fault, hosts)

    def machine_lost(self, host: Host) -> None:
        self.nodes.machine_lost(host)

    # --- checks at certain times ------------------------------------------------------------------------------------

    def at_rest(self) -> None:
        """Check the rules. Called when no callback is ready, before the virtual clock advances."""
        self.worlds.at_rest()
        self.nodes.at_rest()
        self.costs.at_rest()
        self.kept.at_rest()

    def closed(self) -> None:
        self.nodes.closed()
        alive = [attempt for attempt, host in self.jobs.running.items() if host.on and host.line.open]
        if alive:
            self._sim.broken("SIM-18", f"the pool is closed, and attempts {alive} run on")
        if self._sim.connector.links:
            self._sim.broken("SIM-18", f"the pool is closed, and connected to nodes {list(self._sim.connector.links)}")


def _ending_text(ending: Ending) -> object:
    """Return a job's ending in a form whose text in traces does not change from run to run."""
    if isinstance(ending, Settled) and isinstance(ending.outcome, StoredObject):
        return ending._replace(outcome=ending.outcome.name)
    return ending
