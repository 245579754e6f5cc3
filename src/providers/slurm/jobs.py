"""The states of a pool's jobs and machines, tracked from one output of squeue to the next. No I/O, no clock.

`JobBook` tracks the jobs of a living pool, `JobEnds` decides when jobs that are being ended are over, and
`split_left_jobs` decides which jobs of a dead client a fleet takes over.

JOBS-1: a machine is reported as running at most once, and as gone at most once. After it is reported as gone, no event
follows for it.
JOBS-2: when a job starts, its machines get its nodes in the allocation's order, and keep them: when a node is taken
away, the nodes of the other machines stay as they are.
JOBS-3: a job is gone only when two outputs of squeue in a row do not show it, both requested after the job's
submission.
JOBS-4: a pending reason that never ends is reported at once, and only once.
JOBS-5: some of Slurm's reasons for a pending job may end soon or never. Such a reason is reported after it has lasted
for `PERSISTS_S` without a break, not earlier.
JOBS-6: a node is silent if its step has not ended `SILENT_S` after that step was asked to end. A job is quiet when it
has silent nodes, and all its other steps have ended.
JOBS-7: while Slurm ends a job, its steps are asked to end, once, when the time announced to their tasks is over.
JOBS-8: a job has ended by its own report when the steps on all its nodes had begun, and all of them have reported their
end.

ENDS-1: a job is over when an output of squeue shows it as ended. A job is also over when `MISSING` outputs in a row,
`APART_S` apart, do not show it: one output is not enough, because a Slurm controller that has just started, or a
standby controller that takes over, answers before it knows all jobs.
ENDS-2: a job of which no step runs on any responding node (a quiet job) is over when an output of squeue shows that
Slurm is ending the job. That no step runs is known from the steps (JOBS-6, JOBS-8), or because Slurm has had enough
time to kill them. squeue shows a quiet job until Slurm counts the nodes that do not respond as down, or has cleaned
up, which takes minutes at some sites.

LEFT-1: a machine is taken over only if its job runs, the job still has the machine's node, and the journal shows that
the job is of this pool.
LEFT-2: every other living job of the pool is ended. Jobs of other pools are not touched.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import field
from math import inf
from typing import TYPE_CHECKING

from ...lazy_dataclass import dataclass
from ..base import Machine, MachineId
from ..shared.resource_ownership import Claim, Thing
from .squeue import ENDS, QUEUED, RUNS, JobView, Reason, label_of, reason_of

if TYPE_CHECKING:
    from ..shared.journal import Intent


# Seconds for an ending job to report its cause. The replacement of its machines waits at most this long.
CAUSE_S = 0.5
SILENT_S = 3.0  # seconds from the request to end a step until it has ended; a step that takes longer is on a lost node
SOON_S = 3.0  # seconds from the submission of a job until it starts, if nodes are idle
MISSING = 2  # a job is gone when this many outputs of squeue in a row do not show it
PERSISTS_S = 300.0
MOVED_S = 30.0  # seconds; if the expected start of a job changes by less, the change is not reported

_ENDS = {
    "TIMEOUT": "job {job} reached its time limit",
    "PREEMPTED": "job {job} was preempted for another one",
    "NODE_FAIL": "a node of job {job} failed",
    "CANCELLED": "job {job} was cancelled",
    "OUT_OF_MEMORY": "job {job} was ended for more memory than it had asked for",
    "BOOT_FAIL": "a node of job {job} did not boot",
    "DEADLINE": "job {job} reached its deadline",
}
_REASONS = {"TimeLimit": "TIMEOUT", "Preempted": "PREEMPTED", "NodeDown": "NODE_FAIL", "NodeFailure": "NODE_FAIL"}


@dataclass(frozen=True, slots=True)
class Queued:
    """A job waits in the queue, or its pending reason has changed."""

    job: str
    machines: tuple[MachineId, ...]
    reason: Reason
    starts_at: float | None  # unix time


@dataclass(frozen=True, slots=True)
class Runs:
    """A job has started: its machines have their nodes."""

    job: str
    nodes: tuple[tuple[MachineId, str], ...]
    left_s: float | None  # seconds until the job's time limit


@dataclass(frozen=True, slots=True)
class Gone:
    """A machine has ended, or Slurm took its node away."""

    machine: MachineId
    cause: str


@dataclass(frozen=True, slots=True)
class Never:
    """A job will never start."""

    job: str
    machines: tuple[MachineId, ...]
    reason: Reason


JobEvent = Queued | Runs | Gone | Never


@dataclass(slots=True)
class Job:
    """The state of one job. ``machines``: its machines, in order, without those that the pool has ended."""

    id: str
    folder: str
    submitted_at: float
    machines: list[MachineId]
    node_of: dict[MachineId, str] = field(default_factory=dict)  # includes ended machines
    ending: list[MachineId] = field(default_factory=list)  # machines whose end is requested and not confirmed
    running: bool = False
    # True: Slurm put the job back into the queue after it ran. Its machines are lost, and the job has to be cancelled.
    requeued: bool = False
    over: bool = False
    # True: Slurm reported the end, or the job was cancelled. False: the job was only missing in outputs of squeue.
    confirmed: bool = False
    nodes: tuple[str, ...] = ()  # the job's present nodes
    first_node: str | None = None
    # Node -> time at which its step was asked to end; inf: the step has ended.
    released: dict[str, float] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)  # released nodes that do not respond
    began: set[str] = field(default_factory=set)  # nodes whose steps have reported their address
    left_s: float | None = None
    last_reported: tuple[str, float | None] | None = None  # (reason, expected start)
    never: bool = False
    # since when the job has been pending for a reason that may end soon or never (JOBS-5)
    persists_since: float | None = None
    missing: int = 0
    ending_since: float | None = None
    is_end_sent: bool = False
    shrinking: bool = False  # whether a call that releases the job's surplus nodes is in progress

    @property
    def unused_nodes(self) -> list[str]:
        """The nodes of the job that have no machine of the pool."""
        used = {self.node_of.get(machine) for machine in self.machines}
        return [node for node in self.nodes if node not in used]

    @property
    def batch_node(self) -> str | None:
        """The node of the job's batch shell, which cannot be released."""
        return self.first_node

    def give_back(self, nodes: Iterable[str], now: float) -> None:
        """Record that the steps on these nodes were asked to end. The node of the batch shell cannot be released: it
        stays in the job.
        """
        for node in nodes:
            self.released[node] = min(now, self.released.get(node, now))

    def may_be_quiet(self, now: float) -> bool:
        """Return whether the job may be quiet (no step runs on any responding node), so that its steps have to be
        checked.
        """
        return bool(self.silent) or any(now - at >= SILENT_S for at in self.released.values())

    def steps_seen(self, steps: Collection[str], now: float) -> bool:
        """Process the list of nodes whose steps have not reported their end. Return whether the job is quiet (JOBS-6:
        it has silent nodes, and its other steps have ended).
        """
        self.silent |= {node for node in steps if now - self.released.get(node, inf) >= SILENT_S}
        return bool(self.silent) and self.silent.issuperset(steps)

    def has_ended(self, steps: Collection[str]) -> bool:
        """Return whether the job has ended by the reports of its steps (JOBS-8). ``steps``: as in `steps_seen`."""
        return bool(self.nodes) and self.began.issuperset(self.nodes) and not steps

    def is_left(self, now: float, grace_s: float) -> bool:
        """Return True, only once, when the steps of a job have to be asked to end, because Slurm is ending the job and
        no client can reach it any more (JOBS-7).

        ``grace_s``: seconds that were announced to the tasks. Slurm kills nothing in the first 5 s.
        """
        since = self.ending_since
        if since is None or self.over or self.machines or self.is_end_sent or now - since < grace_s:
            return False
        self.is_end_sent = True
        return True


def machine_ids(pool: str, job: str, count: int) -> list[MachineId]:
    return [MachineId(f"{pool}/{job}-{number}") for number in range(count)]


class JobBook:
    """All known jobs of one pool."""

    def __init__(self, pool: str) -> None:
        self._pool = pool
        self.jobs: dict[str, Job] = {}
        self._job_of: dict[MachineId, Job] = {}

    def submitted(self, job: str, folder: str, count: int, now: float) -> Sequence[MachineId]:
        """Add a job that sbatch has created. Return its machines. A job that is known already stays as it is."""
        if job not in self.jobs:
            machines = machine_ids(self._pool, job, count)
            self.jobs[job] = new = Job(job, folder, now, machines)
            self._job_of |= dict.fromkeys(machines, new)
        return list(self.jobs[job].machines)

    def adopted(self, view: JobView, folder: str, nodes: Mapping[MachineId, str], now: float) -> None:
        """Add a running job with machines of this pool. The job's other nodes are unused."""
        self.jobs[view.id] = job = Job(view.id, folder, now, list(nodes), dict(nodes), running=True, nodes=view.nodes)
        job.first_node, job.began = view.nodes[0] if view.nodes else None, set(nodes.values())
        self._job_of |= dict.fromkeys(nodes, job)

    def job_of(self, machine: MachineId) -> Job | None:
        return self._job_of.get(machine)

    def node_of(self, machine: MachineId) -> str | None:
        job = self._job_of.get(machine)
        return None if job is None else job.node_of.get(machine)

    @property
    def open_jobs(self) -> list[Job]:
        """Return the jobs that may still wait or run, in the order of their submission."""
        return [job for job in self.jobs.values() if not job.over]

    @property
    def living(self) -> list[MachineId]:
        return [machine for job in self.open_jobs for machine in job.machines]

    def ending(self, ids: Iterable[MachineId]) -> list[Job]:
        """Record that the pool is ending these machines; no more events follow for them. Return their jobs, except the
        jobs whose end is confirmed.
        """
        ending: dict[str, Job] = {}
        for machine in ids:
            job = self._job_of.get(machine)
            if job is None or job.over:
                continue
            if machine in job.machines:
                job.machines.remove(machine)
                job.ending.append(machine)
            if machine in job.ending:
                ending[job.id] = job
        return list(ending.values())

    def expects_news(self, now: float) -> bool:
        """Return whether a change is expected soon: a job's start, or the cause of its end."""
        return any(
            job.ending_since is not None if job.running else now - job.submitted_at < SOON_S
            for job in self.open_jobs
            if job.machines
        )

    # --- answers of squeue --------------------------------------------------------------------------------------------

    def answer(self, views: Iterable[JobView], sent_at: float) -> list[JobEvent]:
        """Process an output of squeue, and return the new events. ``sent_at``: time of the request for the output."""
        shown = {view.id: view for view in views}
        events: list[JobEvent] = []
        for job in self.open_jobs:
            view = shown.get(job.id)
            if view is not None:
                job.missing = 0
                events += [] if job.requeued and not view.over else self._seen(job, view, sent_at)
            elif sent_at > job.submitted_at:
                job.missing += 1
                if job.missing >= MISSING:
                    events += self._over(job, f"Slurm does not know job {job.id} any more")
        return events

    def _seen(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        if view.state in QUEUED and not job.running:
            return self._waits(job, view, now)
        if view.state in QUEUED:
            job.running, job.requeued, job.nodes = False, True, ()
            return self._lost(job, f"job {job.id} was put back into the queue")
        if view.state in RUNS:
            job.left_s = view.left_s
            return [*self._starts(job, view), *self._loses(job, view)]
        cause = _ENDS.get(_REASONS.get(view.reason, view.state))
        if view.state in ENDS:
            job.ending_since = now if job.ending_since is None else job.ending_since
            if cause is None and now - job.ending_since < CAUSE_S:
                return []
            return self._lost(job, (cause or "job {job} is ending").format(job=job.id))
        job.confirmed = True
        return self._over(job, (cause or "the steps of job {job} have ended").format(job=job.id))

    def _waits(self, job: Job, view: JobView, now: float) -> list[JobEvent]:
        reason = reason_of(view.reason)
        if reason.fate != "persists":
            job.persists_since = None
        elif job.persists_since is None:
            job.persists_since = now
        if reason.never_ends or (job.persists_since is not None and now - job.persists_since >= PERSISTS_S):
            was_reported, job.never = job.never, True
            return [] if was_reported else [Never(job.id, tuple(job.machines), reason)]
        before, job.last_reported = job.last_reported, (reason.word, view.starts_at)
        if before is not None and before[0] == reason.word and not _moved(before[1], view.starts_at):
            job.last_reported = before
            return []
        return [Queued(job.id, tuple(job.machines), reason, view.starts_at)]

    def _starts(self, job: Job, view: JobView) -> list[JobEvent]:
        if job.running or not view.nodes:
            return []
        job.running, job.nodes, job.first_node = True, view.nodes, view.nodes[0]
        job.node_of = dict(zip(job.machines, view.nodes, strict=False))
        return [Runs(job.id, tuple(job.node_of.items()), view.left_s)]

    def _loses(self, job: Job, view: JobView) -> list[JobEvent]:
        if not job.running:
            return []
        job.nodes = view.nodes
        lost = [machine for machine in job.machines if job.node_of.get(machine) not in view.nodes]
        for machine in lost:
            job.machines.remove(machine)
        why = f"Slurm took it from job {job.id}, as nodes are that are down or do not answer"
        return [Gone(machine, f"node {job.node_of.get(machine, 'without a name')}: {why}") for machine in lost]

    def _lost(self, job: Job, cause: str) -> list[JobEvent]:
        lost, job.machines = job.machines, []
        return [Gone(machine, cause) for machine in lost]

    def _over(self, job: Job, cause: str) -> list[JobEvent]:
        job.over = True
        return self._lost(job, cause)


def _moved(before: float | None, now: float | None) -> bool:
    if before is None or now is None:
        return before is not now
    return abs(now - before) >= MOVED_S


# --- jobs that are being ended ----------------------------------------------------------------------------------------


APART_S = 0.5


class JobEnds:
    """The jobs that are being ended. ``watched``: jobs that are known to exist before the first output of squeue."""

    def __init__(self, watched: Iterable[str] = ()) -> None:
        self._lacked = dict.fromkeys(watched, 0)
        self._lacked_at: dict[str, float] = {}

    @property
    def left(self) -> list[str]:
        """The jobs that are not over."""
        return list(self._lacked)

    def answer(self, views: Iterable[JobView], sent_at: float, quiet: Container[str] = ()) -> list[str]:
        """Process an output of squeue. Return the jobs that are not over.

        Args:
            views: The jobs in the output that this program is ending.
            sent_at: Time at which the output was requested.
            quiet: Jobs of which no step runs on any responding node.
        """
        shown = {view.id: view for view in views}
        for job in [*self._lacked, *(each for each in shown if each not in self._lacked)]:
            if job in shown:
                view = shown[job]
                self._shown(job, over=view.over or (view.state in ENDS and job in quiet))
            elif sent_at - self._lacked_at.get(job, -inf) >= APART_S:
                self._lacked[job] += 1
                self._lacked_at[job] = sent_at
                if self._lacked[job] >= MISSING:
                    del self._lacked[job]
        return self.left

    def _shown(self, job: str, *, over: bool) -> None:
        self._lacked_at.pop(job, None)
        if over:
            self._lacked.pop(job, None)
        else:
            self._lacked[job] = 0


# --- jobs of a dead client --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LeftJobs:
    """The jobs to take over, and the jobs to end.

    ``machines``: the machines that are taken over; ``surplus``: the number of living machines above ``most``;
    ``keeps``: the jobs of ``machines``; ``ends``: the other living jobs of the pool.
    """

    machines: tuple[Machine, ...]
    surplus: int
    keeps: tuple[JobView, ...]
    ends: tuple[JobView, ...]


def thing_of(view: JobView) -> Thing:
    """Convert a job to a `Thing` (a resource with its tags), by which a `Claim` decides whether a pool owns the job."""
    label = label_of(view.comment)
    if label is None:
        return Thing(view.id)
    return Thing(view.id, pool=label.pool, owner=label.owner, launch=label.token)


def split_left_jobs(views: Iterable[JobView], claim: Claim, known: Sequence[Machine], most: int) -> LeftJobs:
    """Decide to take over the first ``most`` of the ``known`` machines that still exist. ``views``: the user's jobs, as
    squeue shows them.
    """
    ours = {view.id: view for view in views if not view.over and claim.has(thing_of(view))}
    there = [machine for machine in known if machine.address is not None and _runs(ours.get(job_of(machine)), machine)]
    machines = tuple(there[:most])
    kept = {job_of(machine) for machine in machines}
    return LeftJobs(
        machines,
        len(there) - len(machines),
        tuple(view for view in ours.values() if view.id in kept),
        tuple(view for view in ours.values() if view.id not in kept),
    )


def folder_of(view: JobView, intents: Iterable[Intent], root: str) -> str:
    """Return a job's folder: as the journal has it, else named by the token of the sbatch call that created the job."""
    label = label_of(view.comment)
    written = (each.facts.get("folder") for each in intents if view.id in (each.ids or ()))
    return next(filter(None, written), f"{root}/{view.id if label is None else label.token}")


def job_of(machine: Machine) -> str:
    return machine.facts.get("job", "")


def _runs(view: JobView | None, machine: Machine) -> bool:
    return view is not None and view.state in RUNS and machine.facts.get("node", "") in view.nodes
