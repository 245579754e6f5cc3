"""The agreement of a generation's nodes on each other's notices and on where to stop. Pure; time comes in with events.

Each node that runs ranks of a generation is told when any of that generation's machines will be taken. From then on its
ranks wait at their next question whether to stop; each node reports how many its ranks have asked, and all ranks stop
at the question after the highest of these numbers.

DOOM-1: every node of a generation has been told of the generation's soonest notice, and of no other.
DOOM-2: a generation is told one place to stop at, if any: behind every question that its ranks had asked.
DOOM-3: nobody is told of a generation that is over.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from .ports import Asked, JobId, NodeId, PeerDoomed, StopAt, World

SAME_S = 1.0  # two reports of the same time differ by their transmission delays


class Notice(NamedTuple):
    number: int
    source: str
    at: float


@dataclass(slots=True)
class Generation:
    world: World
    nodes: set[NodeId]  # those that are not lost
    told: Notice | None = None  # the notice that its nodes have been told
    numbers: set[int] = field(default_factory=set)  # of all notices told since there last was none
    asked: dict[NodeId, int] = field(default_factory=dict)
    stop_at: int | None = None


class StopAgreement:
    def __init__(self) -> None:
        self.words: list[tuple[NodeId, PeerDoomed | StopAt]] = []  # to be sent; the caller empties it
        self._generations: dict[JobId, Generation] = {}
        self._notices: dict[NodeId, dict[str, Notice]] = {}  # by source
        self._last = 0

    def started(self, job: JobId, world: World, now: float) -> None:
        """Begin with a job's new generation, which replaces its previous one."""
        self._generations[job] = generation = Generation(world, set(world.nodes))
        self._tell(job, generation, now)

    def ended(self, job: JobId) -> None:
        self._generations.pop(job, None)

    def noticed(self, node: NodeId, source: str, seconds: float | None, now: float) -> None:
        """Handle a notice from ``source`` about ``node``; ``seconds`` None: the source has withdrawn it."""
        notices = self._notices.setdefault(node, {})
        known = notices.get(source)
        if seconds is None:
            notices.pop(source, None)
        elif known is None:
            self._last += 1
            notices[source] = Notice(self._last, source, now + seconds)
        elif abs(known.at - now - seconds) >= SAME_S:
            notices[source] = known._replace(at=now + seconds)
        if not notices:
            del self._notices[node]
        for job, generation in self._of(node):
            self._tell(job, generation, now)

    def lost(self, node: NodeId, now: float) -> None:
        self._notices.pop(node, None)
        for job, generation in self._of(node):
            generation.nodes.discard(node)
            generation.asked.pop(node, None)
            self._tell(job, generation, now)
            self._agree(job, generation)

    def asked(self, node: NodeId, report: Asked) -> None:
        """Handle a node's report of how often its ranks have asked; ignore it if it answers an outdated notice."""
        generation = self._generations.get(report.job)
        if generation is None or generation.world.generation != report.generation or node not in generation.nodes:
            return
        if report.number in generation.numbers:
            generation.asked[node] = report.asked
            self._agree(report.job, generation)

    # --- decisions ------------------------------------------------------------------------------------------------

    def _of(self, node: NodeId) -> list[tuple[JobId, Generation]]:
        return [(job, generation) for job, generation in self._generations.items() if node in generation.nodes]

    def _tell(self, job: JobId, generation: Generation, now: float) -> None:
        """Tell the generation's nodes its soonest notice, if that or its time differs from what they were told."""
        if not self._notices and generation.told is None:
            return
        places = {node: place for place, node in enumerate(generation.world.nodes) if node in generation.nodes}
        known = [(notice, node) for node in places for notice in self._notices.get(node, {}).values()]
        notice, node = min(known, key=lambda each: (each[0].at, each[0].number), default=(None, None))
        if notice == generation.told:
            return
        before, generation.told = generation.told, notice
        if notice is None or node is None:
            generation.numbers.clear()
            generation.asked.clear()
            number, place, source, seconds = (0 if before is None else before.number), 0, "", None
        else:
            generation.numbers.add(notice.number)
            number, place, source, seconds = notice.number, places[node], notice.source, max(0.0, notice.at - now)
        word = PeerDoomed(job, generation.world.generation, number, place, source, seconds)
        self.words += [(node, word) for node in places]

    def _agree(self, job: JobId, generation: Generation) -> None:
        if generation.stop_at is None and generation.asked and generation.asked.keys() == generation.nodes:
            generation.stop_at = max(generation.asked.values()) + 1
            word = StopAt(job, generation.world.generation, generation.stop_at)
            self.words += [(node, word) for node in sorted(generation.nodes)]
