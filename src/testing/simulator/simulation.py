"""The shared state of one simulated run: the clock, the random numbers, the machines and the referee."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...actors.interfaces import AttemptId, Finished, JobId, Order, Report, Returned, Started
from ...engine.serialization.stored_objects import StoredObject
from ...engine.transport.instance_views import InstanceViews
from ...engine.transport.memory_checkpoints import MemoryCheckpoints
from .cloud import ScriptedCloud
from .connection import Connector
from .machines import Meeting
from .network import IN, OUT
from .referee import Referee, Violation
from .scenario import Dice, Job, Scenario
from .trace import Trace

if TYPE_CHECKING:
    from ...providers.base import MachineId
    from .clock import VirtualLoop
    from .machines import Host

ECHOES_KEPT = 64


class Simulation:
    def __init__(self, loop: VirtualLoop, scenario: Scenario, trace: Trace) -> None:
        self.loop, self.scenario, self.trace = loop, scenario, trace
        self.dice = Dice(scenario.seed)
        self.jobs: dict[int, Job] = {job.id: job for job in scenario.jobs}
        self.hosts: dict[MachineId, Host] = {}
        self.unsettled: set[int] = set()  # jobs that were submitted and have not ended
        self.orders: dict[int, Order] = {}  # attempt -> the order that sent it to a node, for all attempts so far
        self.views = InstanceViews("simulated", scenario.slots)
        self.checkpoints = MemoryCheckpoints()
        self.violation: Violation | None = None  # the first broken promise
        self.referee = Referee(self)
        self.cloud = ScriptedCloud(self)
        self.connector = Connector(self)
        self.past: deque[tuple[Callable[[Sequence[Report]], None], Sequence[Report]]] = deque(maxlen=ECHOES_KEPT)
        self._cuts = 0
        self._meetings: dict[tuple[JobId, int], Meeting] = {}

    def broken(self, rule: str, story: str) -> None:
        """Record a broken promise; only the first one counts.

        The run ends at the loop's next iteration and not here, because the caller may be in the middle of an update.
        """
        if self.violation is None:
            self.loop.halt = self.violation = Violation(rule, story, self.loop.now)
            self.trace("broken", rule=rule, story=story)
            self.trace.ended = True

    def meeting(self, attempt: int) -> Meeting:
        """Return the `Meeting` of the generation to which this attempt belongs."""
        order = self.orders[AttemptId(attempt)]
        assert order.world is not None
        which = (order.task.job, order.world.generation)
        meeting = self._meetings.get(which)
        if meeting is None:
            meeting = self._meetings[which] = Meeting(order.world.size)
        return meeting

    def record(self, tell: Callable[[Sequence[Report]], None], reports: Sequence[Report]) -> None:
        """Keep the reports about attempts, so that an `Echo` fault can send them again."""
        of_attempts = [
            report
            for report in reports
            if isinstance(report, Started | Returned)
            # without reports of stored objects: keeping such a report would keep its object alive
            or (isinstance(report, Finished) and not isinstance(report.outcome, StoredObject))
        ]
        if of_attempts:
            self.past.append((tell, of_attempts))

    @property
    def cut(self) -> bool:
        return self._cuts > 0

    def cut_client(self) -> None:
        self._cuts += 1
        if self._cuts == 1:
            self.cloud.reach(False)
            for host in self.hosts.values():
                host.line.block(OUT, IN)

    def mend_client(self) -> None:
        self._cuts -= 1
        if not self._cuts:
            for host in self.hosts.values():
                host.line.unblock(OUT, IN)
            self.cloud.reach(True)
