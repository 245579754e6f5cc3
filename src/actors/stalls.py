"""The detector of stalled jobs: jobs with a ``stall`` limit that give no sign of life. A decider; each event carries
its time.

Signs of life are a task's prints, log records and steps, and the end of another rank. Nodes record these signs, so the
detector gets no messages while all is well. When a job's time is over, the detector asks the job's nodes once for the
stack of each attempt and the time since its last sign. A broadcast has stalled only when none of its ranks gives a
sign: many programs let only one rank print, and in a hung collective all ranks are silent.

STALL-1: no job is reported as stalled while any of its attempts has given a sign within ``stall_s``.
STALL-2: a stalled job is reported once, until it gives a sign again.
STALL-3: no job is reported as stalled before all its attempts were examined: a silent node may only be disconnected.
STALL-4: only one question about a job is open at a time, and answers to older questions change nothing.
STALL-5: as long as a job with ``stall`` runs, it has a time for its next question, or an open question.
STALL-6: only the node to which an attempt was given can report that the attempt is over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import count
from math import inf

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from .interfaces import AttemptId, AttemptSeen, JobId, NodeId, Order, Stall
from .stall_culprit import Culprit, Silent, culprit

ANSWER_S = 10.0  # seconds for all nodes to answer a question; longer than the time in which a single node must answer
AGAIN_S = 1.0  # seconds; shortest time between two questions to the nodes about a job


class AskNode(NamedTuple):
    """A decision: ask a node about its attempts. The node does not examine attempts that gave a sign of life within
    ``quiet_s`` seconds.
    """

    node: NodeId
    question: int
    quiet_s: float


class Place(NamedTuple):
    """A running attempt, with its node and rank."""

    node: NodeId
    attempt: AttemptId
    rank: int
    ranks: int
    generation: int  # number of the attempt's generation; 0: not a rank of a broadcast


@dataclass(frozen=True, slots=True)
class HasStalled:
    """A decision: report that a job has stalled. ``seen``: the state of each of the job's attempts."""

    job: JobId
    stall: Stall
    quiet_s: float
    places: tuple[Place, ...]
    seen: Mapping[AttemptId, AttemptSeen]
    culprit: Culprit | None


Effect = AskNode | HasStalled
Heard = Callable[[NodeId, AttemptId], float | None]


@dataclass(slots=True)
class _Watched:
    stall: Stall
    signed_at: float  # time of the job's last known sign of life
    places: dict[AttemptId, Place] = field(default_factory=dict)
    due_at: float | None = None  # when to ask about the job next; None: a question about it is open
    question: int = 0  # number of the open question; 0: none is open
    question_at: float = 0.0
    waiting: set[NodeId] = field(default_factory=set)  # nodes that have not answered the open question yet
    seen: dict[AttemptId, AttemptSeen] = field(default_factory=dict)
    is_reported: bool = False


class StallWatch:
    """The state of all jobs with a ``stall`` limit. The caller carries out ``effects`` and empties the list."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.jobs: dict[JobId, _Watched] = {}  # the running jobs that have a ``stall`` limit
        self._of: dict[AttemptId, JobId] = {}
        self._questions = count(1)
        # no job needs a check before this time; the time may be too early, as it is updated without a look at all jobs
        self._not_before = inf

    def began(self, node: NodeId, order: Order, now: float) -> None:
        """Handle that an attempt of a task with a ``stall`` limit was given to a node."""
        task = order.task
        if task.stall is None:
            return
        watched = self.jobs.setdefault(task.job, _Watched(task.stall, now))
        ranks, generation = (1, 0) if order.world is None else (order.world.size, order.world.generation)
        watched.places[order.attempt] = Place(node, order.attempt, order.rank, ranks, generation)
        self._of[order.attempt] = task.job
        self._signed(watched, now)

    def finished(self, node: NodeId, attempt: AttemptId, now: float) -> None:
        """Handle a node's report that an attempt is over. This is a sign of life for the other ranks of the attempt's
        job.
        """
        job = self._of.get(attempt)
        if job is None or self.jobs[job].places[attempt].node != node:
            return
        watched = self.jobs[job]
        del self._of[attempt], watched.places[attempt]
        if watched.places:
            self._signed(watched, now)
        else:
            del self.jobs[job]
            if not self.jobs:
                self._not_before = inf

    def lost(self, node: NodeId, now: float) -> None:
        gone = [place.attempt for job in self.jobs.values() for place in job.places.values() if place.node == node]
        for attempt in gone:
            self.finished(node, attempt, now)

    def wake_at(self) -> float | None:
        """Return a time at which ``tick`` must be called. The time may be too early, as signs of life do not change
        it.
        """
        return self._not_before if self.jobs else None

    def tick(self, now: float, heard: Heard) -> None:
        """Ask the nodes about the jobs that are due.

        ``heard`` returns how many seconds ago an attempt gave a sign of life, such as a line of output; None: never.
        """
        for job in list(self.jobs.values()):
            if job.due_at is None:
                if now >= job.question_at + ANSWER_S:
                    self._again(job, now + AGAIN_S)
            elif now >= job.due_at:
                known = [heard(place.node, place.attempt) for place in job.places.values()]
                quiet_s = min((each for each in known if each is not None), default=job.stall.seconds)
                if quiet_s < job.stall.seconds:
                    self._signed(job, now - quiet_s)
                else:
                    self._ask(job, now)
        self._not_before = min(
            (job.question_at + ANSWER_S if job.due_at is None else job.due_at for job in self.jobs.values()),
            default=inf,
        )

    def answered(self, node: NodeId, question: int, seen: Mapping[AttemptId, AttemptSeen], now: float) -> None:
        """Handle a node's answer to the question number ``question``: the state of its attempts."""
        entry = next(((name, job) for name, job in self.jobs.items() if job.question == question), None)
        if entry is None or node not in entry[1].waiting:
            return
        name, job = entry
        job.waiting.discard(node)
        job.seen.update({attempt: sight for attempt, sight in seen.items() if attempt in job.places})
        quiet_s = min((sight.quiet_s for sight in job.seen.values()), default=job.stall.seconds)
        if quiet_s < job.stall.seconds:
            self._signed(job, now - quiet_s)
        elif not job.waiting:
            self._judge(name, job, quiet_s, now)

    # --- state of one job -----------------------------------------------------------------------------------------

    def _signed(self, job: _Watched, at: float) -> None:
        job.signed_at = max(job.signed_at, at)
        job.is_reported = False
        self._again(job, job.signed_at + job.stall.seconds)

    def _again(self, job: _Watched, at: float) -> None:
        job.question, job.due_at = 0, at
        self._not_before = min(self._not_before, at)
        job.waiting.clear()
        job.seen = {}

    def _ask(self, job: _Watched, now: float) -> None:
        job.question, job.due_at, job.question_at = next(self._questions), None, now
        self._not_before = min(self._not_before, now + ANSWER_S)
        job.waiting = {place.node for place in job.places.values()}
        job.seen = {}
        self.effects += [AskNode(node, job.question, job.stall.seconds) for node in sorted(job.waiting)]

    def _judge(self, name: JobId, job: _Watched, quiet_s: float, now: float) -> None:
        if job.places.keys() - job.seen.keys():  # at least one attempt waits for a slot, or its node is disconnected
            self._again(job, now + max(AGAIN_S, job.stall.seconds / 10))
            return
        seen, is_reported, job.is_reported = job.seen, job.is_reported, True
        self._again(job, now + job.stall.seconds)
        if is_reported:
            return
        places = tuple(sorted(job.places.values(), key=lambda place: place.rank))
        silent = [Silent(each.rank, seen[each.attempt].text, seen[each.attempt].quiet_s) for each in places]
        self.effects.append(HasStalled(name, job.stall, quiet_s, places, dict(seen), culprit(silent)))
