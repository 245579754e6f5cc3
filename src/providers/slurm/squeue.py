"""Jobs as squeue shows them: the command, its output, the labels of Outrider's jobs, and why a job waits. No I/O.

`reason_of` explains why a job waits in the queue, and whether it will ever start: sbatch accepts jobs that can never
run, and only the reason of the pending job shows this. squeue(1) lists the reasons under "JOB REASON CODES", and
slurmctld adds details ("ReqNodeNotAvail, UnavailableNodes:c1").

SQUEUE-1: whatever a job's comment or reason contains, its other fields and all other jobs are parsed correctly.
REASON-1: a reason that this module does not know counts as temporary: only reasons that surely never end count as such.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from getpass import getuser
from typing import Literal

from ...lazy_dataclass import dataclass
from ..errors import BadRequest, NoCapacity, ProviderError, QuotaExceeded
from .notation import expand, read_or_none

# Job, state, nodes, start, time left, reason, comment: the comment may contain any character.
FORMAT = "%A|%T|%N|%S|%L|%r|%k"
FIELDS = FORMAT.count("|") + 1
FILTERS = (
    "ACCOUNT",
    "ALL",
    "ARRAY",
    "FORMAT",
    "LICENSES",
    "NAMES",
    "PARTITION",
    "PRIORITY",
    "QOS",
    "SORT",
    "STATES",
    "USERS",
)
MARK = "outrider"

QUEUED = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
)
RUNS = frozenset({"RUNNING", "SUSPENDED", "RESIZING", "SIGNALING", "STOPPED"})
ENDS = frozenset({"COMPLETING", "STAGE_OUT"})


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as squeue shows it."""

    id: str
    state: str  # Slurm's own name of the state
    nodes: tuple[str, ...] = ()  # in the order of the allocation
    starts_at: float | None = None  # unix time; for a pending job: its expected start
    left_s: float | None = None  # seconds until its time limit
    reason: str = ""
    comment: str = ""

    @property
    def over(self) -> bool:
        return self.state not in QUEUED | RUNS | ENDS


def command(*, user: str, name: str | None = None) -> list[str]:
    """Return the squeue command for the jobs of a user, including jobs that ended some minutes ago. ``name``: only jobs
    with this name.
    """
    which = [f"--user={user}", *([] if name is None else [f"--name={name}"])]
    # Unset the filter variables that the user has set: even an empty variable would filter.
    own = [f"--unset=SQUEUE_{name}" for name in FILTERS]
    return ["env", *own, "SLURM_TIME_FORMAT=%s", "squeue", "--noheader", "--states=all", *which, f"--format={FORMAT}"]


def read(answer: str) -> list[JobView]:
    """Return the jobs. Other lines, such as warnings, are left out."""
    views = (_view(line) for line in answer.split("\n"))
    return [each for each in views if each is not None]


def _view(line: str) -> JobView | None:
    fields = line.rstrip("\r").split("|", FIELDS - 1)
    if len(fields) != FIELDS or not fields[0].strip().isdecimal():
        return None
    job, state, nodes, starts, left, reason, comment = fields
    try:
        names = tuple(expand(nodes))
    except ValueError:
        names = ()
    starts_at = float(starts) if starts.isdecimal() else None
    return JobView(job.strip(), state.strip(), names, starts_at, read_or_none(left), reason, comment)


# --- owners of jobs ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """The comment of an Outrider job. ``token``: names the call of sbatch that created the job."""

    pool: str
    owner: str  # user@host
    token: str

    def __str__(self) -> str:
        return f"{MARK}:{self.pool}:{self.owner}:{self.token}"


def owner() -> str:
    """Return the owner to put into a `Label`: this user on this computer."""
    try:
        user = getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}".replace(":", "_")


def label_of(comment: str) -> Label | None:
    """Parse a job's comment; None: the job belongs to no pool."""
    parts = comment.split(":")
    if len(parts) != 4 or parts[0] != MARK or not all(parts):
        return None
    return Label(*parts[1:])


def of_pool(views: Sequence[JobView], pool: str) -> list[tuple[JobView, Label]]:
    """Return the jobs whose comment names the pool."""
    labelled = ((view, label_of(view.comment)) for view in views)
    return [(view, label) for view, label in labelled if label is not None and label.pool == pool]


# --- reasons of pending jobs ------------------------------------------------------------------------------------------


# "quota": a limit of the user's account, which waiting does not change; "persists": a reason that either ends soon or
# never ends
Fate = Literal["waits", "quota", "impossible", "persists"]


@dataclass(frozen=True, slots=True)
class Reason:
    """The meaning of a pending reason. ``words`` complete the text "job 4711 waits: "; ``advice`` is a sentence, or
    empty.
    """

    word: str  # Slurm's own reason code
    words: str
    fate: Fate = "waits"
    advice: str = ""

    @property
    def never_ends(self) -> bool:
        return self.fate in {"quota", "impossible"}

    @property
    def text(self) -> str:
        """Return Slurm's reason code, which users can search for, and its meaning."""
        return self.word if self.words == self.word else f"{self.word} ({self.words})"

    def error(self, job: str) -> ProviderError:
        """Return the error of a launch whose job waits for this reason and will never start."""
        never = "has not started it for minutes" if self.fate == "persists" else "will never start it"
        text = f"Slurm took job {job} and {never} ({self.word}): {self.words}"
        kind = {"waits": NoCapacity, "quota": QuotaExceeded}.get(self.fate, BadRequest)
        return kind(text, code=self.word, advice=self.advice)


_PARTITION = "`scontrol show partition` says what the partition allows: ask for less, or name another partition."
_LIMITS = (
    "`sacctmgr show assoc where user=$USER` and `sacctmgr show qos` say the limits: ask for less, or for another QOS."
)
# The cause may be in either output.
_SEE = "`sinfo -R` lists the nodes that are drained or down, `scontrol show partition` the limits"

_WAITS = {
    "None": "it has just come into the queue",
    "Priority": "other jobs come before it",
    "Resources": "it is next, and waits for nodes to become free",
    "Dependency": "a job that it depends on has not ended",
    "BeginTime": "the time of its earliest start has not come",
    "JobArrayTaskLimit": "as many jobs of its array run as may run at once",
    "Licenses": "a license that it asked for is in use",
    "NodeDown": "a node that it needs is down",
    "ReqNodeNotAvail": "nodes that it asked for are down, drained or reserved",
    "Reservation": "its reservation has not begun",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition takes no new jobs at present",
    "QOSMaxJobsPerUserLimit": "as many of this user's jobs run as its QOS allows",
    "QOSGrpNodeLimit": "the jobs of its QOS have as many nodes as they may have",
    "QOSGrpCpuLimit": "the jobs of its QOS have as many processors as they may have",
    "QOSGrpGRES": "the jobs of its QOS have as many devices as they may have",
    "QOSGrpJobsLimit": "as many jobs of its QOS run as may run",
    "QOSGrpMemLimit": "the jobs of its QOS have as much memory as they may have",
    "QOSMaxCpuPerUserLimit": "this user's jobs have as many processors as the QOS allows",
    "QOSMaxNodePerUserLimit": "this user's jobs have as many nodes as the QOS allows",
    "QOSMaxGRESPerUser": "this user's jobs have as many devices as the QOS allows",
    "QOSMaxMemoryPerUser": "this user's jobs have as much memory as the QOS allows",
    "AssocGrpNodeLimit": "the account's jobs have as many nodes as they may have",
    "AssocGrpCpuLimit": "the account's jobs have as many processors as they may have",
    "AssocGrpGRES": "the account's jobs have as many devices as they may have",
    "AssocGrpJobsLimit": "as many of the account's jobs run as may run",
    "AssocGrpMemLimit": "the account's jobs have as much memory as they may have",
    "AssocMaxJobsLimit": "as many of this user's jobs run as the account allows",
    "AssociationJobLimit": "as many of the account's jobs run as may run",
    "MaxJobsPerAccount": "as many of the account's jobs run as may run",
    "Prolog": "the site's prolog runs on its nodes",
    "FrontEndDown": "no front end is there to start it",
    "WaitingForScheduling": "the scheduler has not looked at it yet",
    "SchedDefer": "the scheduler has put it off",
    "Cleaning": "it is being cleaned up after an earlier start",
    "BurstBufferResources": "it waits for room in the burst buffer",
    "JobHeldUser": "it is held, until `scontrol release` lets it go",
    "JobHeldAdmin": "an administrator holds it: ask them why",
}
# Slurm gives these reasons both for partitions whose nodes are down for a moment, and for jobs that can never fit.
_PERSISTS = {
    "PartitionNodeLimit": "its partition has too few nodes up, or allows fewer or less time",
    "PartitionConfig": "its partition has not up what it asks for, or does not allow it",
}
_NEVER = {
    "PartitionTimeLimit": ("its time limit is longer than its partition allows", _PARTITION),
    "BadConstraints": ("no node has what it asks for", "`sinfo -o '%P %D %c %m %G %f'` lists what the nodes have."),
    "DependencyNeverSatisfied": ("a job that it depends on has ended in another way", "Leave the dependency out."),
    "DeadLine": ("it cannot end before its deadline", "Ask for less time, or leave the deadline out."),
    "InvalidAccount": ("its account is not valid", "`sacctmgr show assoc where user=$USER` lists yours."),
    "InvalidQOS": ("its QOS is not valid", "`sacctmgr show qos` lists what there is."),
    "QOSNotAllowed": ("its partition or account does not allow this QOS", _LIMITS),
    "AccountNotAllowed": ("its partition does not allow this account", _PARTITION),
    "ReservationDeleted": ("its reservation was deleted", "Leave the reservation out."),
    "JobLaunchFailure": ("its nodes failed to start it", "Ask the site's administrators: slurmctld.log says why."),
    "launch failed requeued held": (
        "its nodes failed to start it, and Slurm holds it now",
        "Ask the site's administrators: slurmd's log on the node says why.",
    ),
}
_NEEDS = "Nodes required for job are"
_QUOTA_WORDS = ("PerJob", "PerNode", "TimeLimit", "Minutes", "GrpWallLimit", "MinBilling", "MinCpu", "MinGRES")


def reason_of(text: str) -> Reason:
    """Return the meaning of the reason in squeue's ``%r``; see REASON-1."""
    word = text.strip().strip("()")
    head = word.partition(",")[0].strip()
    if head in _WAITS:
        return Reason(word, _WAITS[head])
    if head in _PERSISTS:
        return Reason(word, _PERSISTS[head], "persists", f"{_SEE}: ask for fewer nodes, or name another partition.")
    if head in _NEVER:
        words, advice = _NEVER[head]
        return Reason(word, words, "impossible", advice)
    scope = next((each for each in ("QOS", "Assoc") if head.startswith(each)), None)
    if scope is not None:
        whose = "its QOS" if scope == "QOS" else "its account"
        if any(each in head for each in _QUOTA_WORDS) and "RunMinutes" not in head:
            return Reason(word, f"it asks for more than {whose} allows", "quota", _LIMITS)
        return Reason(word, f"{whose} is at its limit")
    needs = "nodes that it needs are down, drained or reserved for others"
    return Reason(word, needs if word.startswith(_NEEDS) else word or "Slurm does not say why")
