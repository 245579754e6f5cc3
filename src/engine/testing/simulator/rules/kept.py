"""The rules about results that stay on their nodes: SIM-37 to 39.

SIM-37: whoever asks for a kept result, or is given it, gets the value that its job makes of what it was given, in the
    bytes and sizes of one making; or hears of a lost node, by the name of what had made it, and only where it cannot be
    made again: it may not run so often, or what it needs cannot be made again, or making it has just failed.
SIM-38: a result is made again while somebody waits for it, by one run at a time, at most ``retries`` times that were
    not called off and had what they need, never where its job may run once; and not while the node that keeps it is
    there.
SIM-39: when nobody has a reference to anything, no node keeps anything, and no call is remembered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .....actors.interfaces import Ending, GaveUp, NodeId, Reason, Settled, Verdict
from ....serialization.stored_objects import StoredObject
from ..kept_values import made_of

if TYPE_CHECKING:
    from ....wire.messages import Run
    from ..daemon import Daemon
    from ..scenario import Job
    from ..simulation import Simulation


class KeptRules:
    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._inputs: dict[int, Sequence[int]] = {}  # the jobs whose results each was given
        self._held: set[int] = set()  # jobs to whose results the user has references
        self._asked: Counter[int] = Counter()  # by the user, who waits for the value
        self._open: dict[int, Sequence[int]] = {}  # jobs that have not settled nor were called off, with their inputs
        self._given: Counter[int] = Counter()  # of these, that were given the result
        self._runs: dict[int, int] = {}  # the job that makes a result again, and the one that had made it
        self._again: Counter[int] = Counter()  # times that a result was made again, and not called off
        self._failed_at: defaultdict[int, float] = defaultdict(lambda: -1.0)  # when making one again has failed last
        self._kept_on: dict[int, NodeId] = {}  # where it was made last, and was referred to since
        self._values: dict[int, str] = {}  # that are right, as far as they were needed

    # --- who has and wants what -----------------------------------------------------------------------------------

    def submitted(self, job: Job, given: Sequence[int]) -> None:
        self._inputs[job.id] = tuple(given)
        self._begin(job.id, given)

    def held(self, job: int) -> None:
        self._held.add(job)

    def let_go(self, job: int) -> None:
        self._held.discard(job)
        self._note_freed(job)

    def asked(self, job: int) -> None:
        self._asked[job] += 1

    def answered(self, job: int) -> None:
        self._asked[job] -= 1
        self._note_freed(job)

    def _begin(self, job: int, given: Sequence[int]) -> None:
        self._open[job] = given
        self._given.update(given)

    def _end(self, job: int) -> None:
        for each in self._open.pop(job, ()):
            self._given[each] -= 1
            self._note_freed(each)

    def _note_freed(self, job: int) -> None:
        if job not in self._held and not self._wanted(job):
            self._kept_on.pop(job, None)

    def is_free(self, job: int) -> bool:
        """Return whether nobody refers to the result of a job of the user's, or waits for it."""
        return job in self._inputs and job not in self._held and not self._wanted(job)

    def _wanted(self, job: int) -> bool:
        return bool(self._asked[job] or self._given[job])

    # --- what is made again ---------------------------------------------------------------------------------------

    def made_again(self, job: int, run: int) -> None:
        """Check that a job may run once more, as ``run``."""
        described, broken = self._sim.jobs[job], self._sim.broken
        if job in self._runs.values():
            broken("SIM-38", f"the result of job {job} is made again by two runs at a time")
        self._again[job] += 1
        if self._again[job] > _times(described):
            broken("SIM-38", f"the result of job {job} is made again {self._again[job]} times of {_times(described)}")
        if self._is_there(job):
            story = f"the result of job {job} is made again, and node {self._kept_on[job]}, which keeps it, is there"
            broken("SIM-38", story)
        self._runs[run] = job
        self._begin(run, self._inputs[job])

    def called_off(self, run: int) -> None:
        job = self._runs.pop(run, None)
        if job is not None:
            self._again[job] -= 1
        self._end(run)

    def refused(self, job: int) -> None:
        """Handle that a job was not taken, as the pool is being closed."""
        self._runs.pop(job, None)
        self._end(job)

    def at_rest(self) -> None:
        for run, job in self._runs.items():
            if not self._wanted(job):
                self._sim.broken("SIM-38", f"job {run} makes the result of job {job} again, and nobody waits for it")

    def settled(self, job: Job, ending: Ending) -> None:
        if isinstance(ending, GaveUp) and ending.reason is Reason.LOST and ending.failure is not None:
            self._not_given(job.id, str(ending.failure))
        elif isinstance(ending, Settled) and ending.verdict is Verdict.UNSENT:
            self._sim.broken("SIM-37", f"job {job.id} was not sent what it was given, and is not sent again")
        run = self._runs.pop(job.id, None)
        made = job.id if run is None else run
        if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            if isinstance(ending.outcome, StoredObject):
                self._kept_on[made] = ending.node
            else:
                self._kept_on.pop(made, None)
        elif run is not None:
            self._failed_at[run] = self._sim.loop.now
            if isinstance(ending, GaveUp) and ending.reason is Reason.LOST and ending.failure is not None:
                self._again[run] -= 1  # it did not run: what it needs is lost
        self._end(job.id)

    # --- which values there are -----------------------------------------------------------------------------------

    def value(self, job: int) -> str:
        """Return what a job makes of what it was given."""
        if job not in self._values:
            self._values[job] = made_of(job, [self.value(each) for each in self._inputs[job]])
        return self._values[job]

    def delivered(self, daemon: Daemon, run: Run) -> None:
        """Check what an attempt finds on its node when it is handed to a worker."""
        root = self._runs.get(run.job, run.job)
        if root not in self._inputs or run.job not in self._open:
            return
        expected = [self.value(each) for each in self._inputs[root]]
        _, found = daemon.given_to(run)
        if found != expected:
            self._sim.broken("SIM-37", f"attempt {run.attempt} of job {run.job} is given {found} and not {expected}")

    def cut_wrongly(self, attempt: int, name: str) -> None:
        self._sim.broken("SIM-37", f"attempt {attempt} is given {name} with the sizes of another making")

    def got(self, job: int, value: object) -> None:
        found, *_ = value if isinstance(value, tuple) else (value,)
        if found != self.value(job):
            self._sim.broken("SIM-37", f"the result of job {job} is {found!r} and not {self.value(job)}")

    def not_got(self, job: int, story: str) -> None:
        if not _names(story, job):
            self._sim.broken("SIM-37", f"the result of job {job} is lost, of which is told: {story}")
        elif not self._may_be_lost(job):
            self._sim.broken("SIM-37", f"the result of job {job} can be made again, and is told to be lost: {story}")

    def told_closed(self, job: int) -> None:
        self._sim.broken("SIM-37", f"the result of job {job} is asked for, which is told that the pool is closed")

    def _not_given(self, job: int, story: str) -> None:
        if job not in self._open:
            return  # it was called off
        lost = [each for each in self._open.get(job, ()) if _names(story, each)]
        if not lost:
            self._sim.broken("SIM-37", f"job {job} ends as something else was lost: {story}")
        elif not any(map(self._may_be_lost, lost)):
            self._sim.broken("SIM-37", f"what job {job} was given can be made again, and is told to be lost: {story}")

    def _may_be_lost(self, job: int) -> bool:
        """Return whether a result that is lost cannot be made again, or something that this takes cannot."""
        if self._again[job] >= _times(self._sim.jobs[job]):
            return True
        left, seen = [job], {job}
        while left:
            each = left.pop()
            if self._failed_at[each] == self._sim.loop.now:
                return True
            if each != job and self._again[each] >= _times(self._sim.jobs[each]) and not self._is_there(each):
                return True
            left += [its for its in self._inputs[each] if its not in seen]
            seen.update(self._inputs[each])
        return False

    def _is_there(self, job: int) -> bool:
        """Return whether the node that keeps a result is there, and somebody has referred to it all the time."""
        home = self._kept_on.get(job)
        return home is not None and home in self._sim.connector.links


def _times(job: Job) -> int:
    """Return how often the result of a job may be made again."""
    return 0 if job.once else job.retries


def _names(story: str, job: int) -> bool:
    return story.startswith(f"What job{job} on node ")
