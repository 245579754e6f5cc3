"""Stalled jobs: jobs with a ``stall`` limit that give no sign of life. `StallWatch` decides, `StalledJobs` acts.

Signs of life are a task's prints, log records and steps, and the end of another rank. Nodes record these signs, so the
watch gets no messages while all is well. When a job's time is over, the watch asks the job's nodes once for the stack
of each attempt and the time since its last sign. A broadcast has stalled only when none of its ranks gives a sign: many
programs let only one rank print, and in a hung collective all ranks are silent.

In a hung collective all but one rank wait in the collective: that one rank is the culprit, which `culprit` finds from
the stacks and the last signs of life, as far as they show it. Stacks are texts from the nodes, in the format of
`faulthandler`; the library frames before the first frame of the user's own code show in which function the thread
waits.

STALL-1: no job is reported as stalled while any of its attempts has given a sign within ``stall_s``.
STALL-2: a stalled job is reported once, until it gives a sign again.
STALL-3: no job is reported as stalled before all its attempts were examined: a silent node may only be disconnected.
STALL-4: only one question about a job is open at a time, and answers to older questions change nothing.
STALL-5: as long as a job with ``stall`` runs, it has a time for its next question, or an open question.
STALL-6: only the node to which an attempt was given can report that the attempt is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import count
from math import inf
from typing import assert_never

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from . import events as ev
from .events import Observe
from .interfaces import (
    AttemptId,
    AttemptSeen,
    Finished,
    GaveUp,
    JobId,
    Looked,
    NodeId,
    Order,
    Reason,
    Report,
    Returned,
    Stall,
)
from .ledger import Ledger
from .membership import Membership

MARGIN = 0.2  # a rank counts as silent first only if its silence is longer than the next rank's by this fraction
LEAST_S = 1.0
_FRAME = r'  File "(.*)", line (\d+|\?\?\?) in (.*)'
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "<frozen ")
# patterns of library files in which ranks wait for each other; a function name follows where only some functions wait
_COLLECTIVE = (
    r"/torch/distributed/|/torch/nn/parallel/distributed\.py|/torch/autograd/graph\.py.*_engine_run_backward"
    r"|/jax/experimental/multihost_utils\.py|/jax/_src/distributed\.py|/mpi4py/|/horovod/|/deepspeed/comm/"
    r"|/cupyx/distributed/|/tensorflow/python/distribute/|/multiprocessing/.*\b(join|barrier)"
)


class Silent(NamedTuple):
    """A running rank that gives no sign of life. ``quiet_s``: seconds since its last sign of life, or since its
    start.
    """

    rank: int
    text: str
    quiet_s: float


class Culprit(NamedTuple):
    rank: int
    why: str  # the reason as a clause for people


def culprit(ranks: Sequence[Silent]) -> Culprit | None:
    """Return the rank for which the other ranks wait; None: it is unknown, or the broadcast has only one rank."""
    if len(ranks) < 2:
        return None
    frames = {each.rank: _frames(each.text) for each in ranks}
    if all(frames.values()):
        outside = [rank for rank, stack in frames.items() if not _waits(stack)]
        if len(outside) == 1:
            return Culprit(outside[0], f"it is in {_line(frames[outside[0]])}, and the others wait in a collective")
        odd = _odd({rank: _line(stack) for rank, stack in frames.items()})
        if odd is not None:
            return Culprit(odd, f"it is in {_line(frames[odd])}, and all others in {_other(odd, frames)}")
    return _first_silent(ranks)


def _odd(lines: dict[int, str]) -> int | None:
    """Return the only rank whose line of code differs from the line of all others (at least two); None: there is no
    such rank.
    """
    if len(lines) < 3 or len(set(lines.values())) != 2:
        return None
    alone = [rank for rank, line in lines.items() if list(lines.values()).count(line) == 1]
    return alone[0] if len(alone) == 1 else None


def _other(odd: int, frames: dict[int, list[re.Match[str]]]) -> str:
    return next(_line(stack) for rank, stack in frames.items() if rank != odd)


def _first_silent(ranks: Sequence[Silent]) -> Culprit | None:
    """Return the rank that fell silent clearly before all other ranks; None: there is no such rank."""
    first, second, *_ = sorted(ranks, key=lambda each: -each.quiet_s)
    if first.quiet_s - second.quiet_s <= max(LEAST_S, MARGIN * second.quiet_s):
        return None
    return Culprit(first.rank, f"it fell silent {first.quiet_s - second.quiet_s:.1f} s before the next one")


def _frames(text: str) -> list[re.Match[str]]:
    """Return the stack frames of the thread that runs the task, the innermost first. ``text``: the stacks of all
    threads.
    """
    frames: list[re.Match[str]] = []
    for line in text.split("\n"):
        if (frame := re.fullmatch(_FRAME, line)) is None:
            break
        frames.append(frame)
    return frames


def _waits(frames: Sequence[re.Match[str]]) -> bool:
    """Return whether the user's own code has called a function in which ranks wait for each other. ``frames``: the
    thread's stack.
    """
    for frame in frames:
        if re.search(_COLLECTIVE, f"{frame[1]} {frame[3]}"):
            return True
        if not any(each in frame[1] for each in _LIBRARIES):
            return False
    return False


def _line(frames: Sequence[re.Match[str]]) -> str:
    users = [frame for frame in frames if not any(each in frame[1] for each in _LIBRARIES)]
    frame = (users or frames)[0]
    return f"{frame[3]} ({frame[1].rpartition('/')[2]}:{frame[2]})"


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


class StalledJobs:
    def __init__(
        self,
        watch: StallWatch,
        nodes: Membership,
        ledger: Ledger,
        observe: Observe,
        *,
        restart_broadcast: Callable[[JobId, str, float], bool],
    ) -> None:
        """``restart_broadcast``: `Broadcasts.stalled`, which returns whether the broadcast runs again."""
        self._watch, self._nodes, self._ledger, self._observe = watch, nodes, ledger, observe
        self._restart_broadcast = restart_broadcast

    def received(self, node: NodeId, reports: Sequence[Report], now: float) -> bool:
        """Handle a node's reports; return whether they may have changed more than the state of the `StallWatch`."""
        for report in reports:
            match report:
                case Finished(attempt):
                    self._watch.finished(node, attempt, now)
                case Returned(attempts):
                    for attempt in attempts:
                        self._watch.finished(node, attempt, now)
                case Looked(question, seen):
                    self._watch.answered(node, question, seen, now)
                case _:
                    pass
        return self._carry_out(now)

    def tick(self, now: float) -> None:
        self._watch.tick(now, self._heard)
        self._carry_out(now)

    def _heard(self, node: NodeId, attempt: AttemptId) -> float | None:
        link = self._nodes.links.get(node)
        return None if link is None else link.heard(attempt)

    def _carry_out(self, now: float) -> bool:
        effects, self._watch.effects = self._watch.effects, []
        for effect in effects:
            match effect:
                case AskNode(node, question, quiet_s):
                    # a node without a link cannot be asked; its loss will be handled as an event
                    if (link := self._nodes.links.get(node)) is not None:
                        link.look(question, quiet_s)
                case HasStalled():
                    self._has_stalled(effect, now)
                case _:
                    assert_never(effect)
        return bool(effects)

    def _has_stalled(self, effect: HasStalled, now: float) -> None:
        job, places, culprit = effect.job, effect.places, effect.culprit
        generation, name = max(place.generation for place in places), effect.stall.name
        restart = effect.stall.restart and self._restart(effect, now)
        rank, reason = (None, "") if culprit is None else culprit
        ranks = tuple(place.rank for place in places)
        self._observe(ev.Stalled(job, generation, ranks, effect.quiet_s, rank, reason, name, restart))
        for place in places:
            text = effect.seen[place.attempt].text
            facts = {"ranks": place.ranks, "generation": place.generation}
            self._observe(ev.StackTaken(job, place.node, place.rank, text, name, **facts))

    def _restart(self, effect: HasStalled, now: float) -> bool:
        """End the attempts of a stalled job; return whether other attempts follow."""
        why, place = f"no sign of life for {effect.quiet_s:.0f} s", effect.places[0]
        if place.generation:
            return self._restart_broadcast(effect.job, why, now)
        entry = self._ledger.entry(place.node, place.attempt)
        if entry is None or entry.task.at_most_once:
            return False
        if not entry.may_restart():
            self._ledger.cancel(effect.job, now, GaveUp(Reason.STALLED))
            return False
        entry.stalled = True
        self._nodes.links[place.node].kill(place.attempt)
        return True
