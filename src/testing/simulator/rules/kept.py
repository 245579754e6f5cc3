"""The rules about kept results, which stay on the nodes that computed them: SIM-37 to 39.

SIM-37: whoever requests a kept result, or has it as an input, gets the correct value, with bytes and sizes from the
    same run. The request gets an error only if the result cannot be recomputed; the error is about a lost node, and
    names the result's function. A result cannot be recomputed if its job has no reruns left, an input cannot be
    recomputed, or a rerun has just failed.
SIM-38: a result is recomputed only while a request or a job waits for it, by one run at a time, at most ``retries``
    times (without runs that were cancelled or lacked inputs); never if its job may run only once, and never while the
    node with the result exists.
SIM-39: when no references are left, no node keeps a result, and no call is remembered for recomputation.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....actors.interfaces import Ending, GaveUp, NodeId, Reason, Settled, Verdict
from ....engine.serialization.stored_objects import StoredObject
from ..kept_values import combined

if TYPE_CHECKING:
    from ....engine.wire.messages import Run
    from ..machines import Daemon, Sim
    from ..scenario import Job


class KeptRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self._inputs: dict[int, Sequence[int]] = {}  # job -> jobs whose results are its inputs
        self._held: set[int] = set()  # jobs to whose results the user has a reference
        self._requests: Counter[int] = Counter()  # job -> number of the user's requests that wait for its result
        # job that has neither ended nor been cancelled -> jobs whose results are its inputs
        self._open: dict[int, Sequence[int]] = {}
        self._uses: Counter[int] = Counter()  # job -> number of jobs in `_open` that have its result as an input
        self._runs: dict[int, int] = {}  # number of a rerun -> job whose result the rerun computes again
        self._again: Counter[int] = Counter()  # job -> number of its reruns, without cancelled reruns
        self._failed_at: defaultdict[int, float] = defaultdict(lambda: -1.0)  # job -> time of its last failed rerun
        # job -> node that keeps its result; the entry is removed once nobody refers to the result
        self._kept_on: dict[int, NodeId] = {}
        self._values: dict[int, str] = {}  # cache: job -> its correct value

    # --- references and requests ----------------------------------------------------------------------------------

    def submitted(self, job: Job, inputs: Sequence[int]) -> None:
        self._inputs[job.id] = tuple(inputs)
        self._begin(job.id, inputs)

    def held(self, job: int) -> None:
        self._held.add(job)

    def let_go(self, job: int) -> None:
        self._held.discard(job)
        self._note_freed(job)

    def requested(self, job: int) -> None:
        self._requests[job] += 1

    def answered(self, job: int) -> None:
        self._requests[job] -= 1
        self._note_freed(job)

    def _begin(self, job: int, inputs: Sequence[int]) -> None:
        self._open[job] = inputs
        self._uses.update(inputs)

    def _end(self, job: int) -> None:
        for each in self._open.pop(job, ()):
            self._uses[each] -= 1
            self._note_freed(each)

    def _note_freed(self, job: int) -> None:
        if job not in self._held and not self._wanted(job):
            self._kept_on.pop(job, None)

    def is_free(self, job: int) -> bool:
        """Return whether nobody needs the kept result of this job: no reference, request or open job refers to it."""
        return job in self._inputs and job not in self._held and not self._wanted(job)

    def _wanted(self, job: int) -> bool:
        return bool(self._requests[job] or self._uses[job])

    # --- recomputation --------------------------------------------------------------------------------------------

    def rerun(self, job: int, run: int) -> None:
        """Check that the result of ``job`` may be recomputed now. ``run`` is the job number of the rerun."""
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
        """Remove a job that was refused because the pool is being closed."""
        self._runs.pop(job, None)
        self._end(job)

    def at_rest(self) -> None:
        for run, job in self._runs.items():
            if not self._wanted(job):
                self._sim.broken("SIM-38", f"job {run} makes the result of job {job} again, and nobody waits for it")

    def settled(self, job: Job, ending: Ending) -> None:
        if isinstance(ending, GaveUp) and ending.reason is Reason.LOST and ending.failure is not None:
            self._inputs_lost(job.id, str(ending.failure))
        elif isinstance(ending, Settled) and ending.verdict is Verdict.UNSENT:
            self._sim.broken("SIM-37", f"job {job.id} was not sent what it was given, and is not sent again")
        run = self._runs.pop(job.id, None)
        origin = job.id if run is None else run
        if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            if isinstance(ending.outcome, StoredObject):
                self._kept_on[origin] = ending.node
            else:
                self._kept_on.pop(origin, None)
        elif run is not None:
            self._failed_at[run] = self._sim.loop.now
            if isinstance(ending, GaveUp) and ending.reason is Reason.LOST and ending.failure is not None:
                self._again[run] -= 1  # a rerun that could not begin, because an input is lost, does not count
        self._end(job.id)

    # --- values ---------------------------------------------------------------------------------------------------

    def value(self, job: int) -> str:
        """Return the correct value of a job's result."""
        if job not in self._values:
            self._values[job] = combined(job, [self.value(each) for each in self._inputs[job]])
        return self._values[job]

    def delivered(self, daemon: Daemon, run: Run) -> None:
        """Check that an attempt gets the correct inputs when the executor delivers it to a worker."""
        root = self._runs.get(run.job, run.job)
        if root not in self._inputs or run.job not in self._open:
            return
        expected = [self.value(each) for each in self._inputs[root]]
        _, actual = daemon.arguments_of(run)
        if actual != expected:
            self._sim.broken("SIM-37", f"attempt {run.attempt} of job {run.job} is given {actual} and not {expected}")

    def cut_wrongly(self, attempt: int, name: str) -> None:
        self._sim.broken("SIM-37", f"attempt {attempt} is given {name} with the sizes of another making")

    def got(self, job: int, value: object) -> None:
        actual, *_ = value if isinstance(value, tuple) else (value,)
        if actual != self.value(job):
            self._sim.broken("SIM-37", f"the result of job {job} is {actual!r} and not {self.value(job)}")

    def not_got(self, job: int, story: str) -> None:
        if not _names(story, job):
            self._sim.broken("SIM-37", f"the result of job {job} is lost, of which is told: {story}")
        elif not self._may_be_lost(job):
            self._sim.broken("SIM-37", f"the result of job {job} can be made again, and is told to be lost: {story}")

    def reported_closed(self, job: int) -> None:
        self._sim.broken("SIM-37", f"the result of job {job} is asked for, which is told that the pool is closed")

    def _inputs_lost(self, job: int, story: str) -> None:
        if job not in self._open:
            return  # the job was cancelled
        lost = [each for each in self._open.get(job, ()) if _names(story, each)]
        if not lost:
            self._sim.broken("SIM-37", f"job {job} ends as something else was lost: {story}")
        elif not any(map(self._may_be_lost, lost)):
            self._sim.broken("SIM-37", f"what job {job} was given can be made again, and is told to be lost: {story}")

    def _may_be_lost(self, job: int) -> bool:
        """Return whether the job's result cannot be recomputed: no reruns are left, or an input is lost for good."""
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
        """Return whether the job's result is still kept on a node that exists."""
        home = self._kept_on.get(job)
        return home is not None and home in self._sim.connector.links


def _times(job: Job) -> int:
    """Return the largest number of times that a job's result may be recomputed."""
    return 0 if job.once else job.retries


def _names(story: str, job: int) -> bool:
    return story.startswith(f"What job{job} on node ")
