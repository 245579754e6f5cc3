"""The agreement on when to stop: all ranks of a generation get each other's notices and stop at the same step. Pure;
events carry time.

When any machine of a generation will be taken, each node that runs its ranks gets the notice. The ranks then wait at
their next stop check, which is a call of `should_stop`. Each node reports how many checks its ranks have made, and all
ranks stop at the check after the highest of these numbers.

STOP-1: the last notice that each node of a generation was sent is the generation's soonest.
STOP-2: a generation is sent at most one check to stop at: a check after all checks that its ranks had made.
STOP-3: no message is sent about a generation that is over.
"""

from __future__ import annotations

from dataclasses import field, replace

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from ..providers.base import PreemptionNotice
from .interfaces import JobId, NodeId, Peer, StopAt, StopChecks, World

SAME_S = 1.0  # seconds; two times that differ by less than this are one deadline, reported twice with different delays


class Deadline(NamedTuple):
    """The time at which a node's machine will be taken, by a preemption notice."""

    at: float
    number: int  # number of the preemption notice; no two notices have the same number
    notice: PreemptionNotice


@dataclass(slots=True)
class Generation:
    world: World
    nodes: set[NodeId]  # nodes of the generation that are not lost
    # the deadline that the generation's nodes were sent last; None: no deadline was sent, or the last one was withdrawn
    sent: Deadline | None = None
    # numbers of the preemption notices that the generation's nodes were sent; emptied when no notice is valid any more
    numbers: set[int] = field(default_factory=set)
    checks: dict[NodeId, int] = field(default_factory=dict)
    stop_at: int | None = None


class StopAgreement:
    def __init__(self) -> None:
        # preemption notices to be sent; the caller empties the list
        self.notices: list[tuple[NodeId, PreemptionNotice, Peer]] = []
        # orders to stop at a check, to be sent after the notices; the caller empties the list
        self.stops: list[tuple[NodeId, StopAt]] = []
        self._generations: dict[JobId, Generation] = {}
        # by node and by source: the deadline of each preemption notice
        self._deadlines: dict[NodeId, dict[str, Deadline]] = {}
        self._last = 0

    def started(self, job: JobId, world: World, now: float) -> None:
        """Handle that a generation of ``job`` begins, which replaces the job's previous generation."""
        self._generations[job] = generation = Generation(world, set(world.nodes))
        self._notify(job, generation, now)

    def ended(self, job: JobId) -> None:
        self._generations.pop(job, None)

    def noticed(self, node: NodeId, notice: PreemptionNotice, now: float) -> None:
        deadlines, source, seconds = self._deadlines.setdefault(node, {}), notice.source, notice.seconds
        known = deadlines.get(source)
        if seconds is None:
            deadlines.pop(source, None)
        elif known is None:
            self._last += 1
            deadlines[source] = Deadline(now + seconds, self._last, notice)
        elif abs(known.at - now - seconds) >= SAME_S:
            deadlines[source] = known._replace(at=now + seconds)
        if not deadlines:
            del self._deadlines[node]
        for job, generation in self._of(node):
            self._notify(job, generation, now)

    def lost(self, node: NodeId, now: float) -> None:
        self._deadlines.pop(node, None)
        for job, generation in self._of(node):
            generation.nodes.discard(node)
            generation.checks.pop(node, None)
            self._notify(job, generation, now)
            self._agree(job, generation)

    def checked(self, node: NodeId, report: StopChecks) -> None:
        """Handle a node's report of how many stop checks its ranks have made; ignore the report if it is about an
        outdated notice.
        """
        generation = self._generations.get(report.job)
        if generation is None or generation.world.generation != report.generation or node not in generation.nodes:
            return
        if report.number in generation.numbers:
            generation.checks[node] = report.checks
            self._agree(report.job, generation)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _of(self, node: NodeId) -> list[tuple[JobId, Generation]]:
        return [(job, generation) for job, generation in self._generations.items() if node in generation.nodes]

    def _notify(self, job: JobId, generation: Generation, now: float) -> None:
        """Send the soonest deadline to the generation's nodes, unless it is the deadline that they were sent last."""
        if not self._deadlines and generation.sent is None:
            return
        places = {node: place for place, node in enumerate(generation.world.nodes) if node in generation.nodes}
        known = [(deadline, node) for node in places for deadline in self._deadlines.get(node, {}).values()]
        soonest, of = min(known, key=lambda each: each[0][:2], default=(None, None))
        if soonest == generation.sent:
            return
        before, generation.sent = generation.sent, soonest
        if soonest is None or of is None:
            assert before is not None, "it differs from what was sent"
            generation.numbers.clear()
            generation.checks.clear()
            notice, number, place = replace(before.notice, seconds=None), before.number, 0
        else:
            generation.numbers.add(soonest.number)
            notice, number = replace(soonest.notice, seconds=max(0.0, soonest.at - now)), soonest.number
            place = places[of]
        peer = Peer(job, generation.world.generation, number, place)
        self.notices += [(node, notice, peer) for node in places]

    def _agree(self, job: JobId, generation: Generation) -> None:
        if generation.stop_at is None and generation.checks and generation.checks.keys() == generation.nodes:
            generation.stop_at = max(generation.checks.values()) + 1
            stop = StopAt(job, generation.world.generation, generation.stop_at)
            self.stops += [(node, stop) for node in sorted(generation.nodes)]
