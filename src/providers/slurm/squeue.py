"""Ask squeue for a pool's jobs, and read its answer. No I/O.

SQUEUE-1: whatever a job's comment or reason has in it, its other fields are read right, and no other job's are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from getpass import getuser

from ...lazy_dataclass import dataclass
from .durations import read_or_none
from .hostlist import expand

FORMAT = "%A|%T|%N|%S|%L|%r|%k"  # job, state, nodes, start, time left, reason, comment: this one may have any letter
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
    state: str  # in Slurm's word
    nodes: tuple[str, ...] = ()  # in the order of the allocation
    starts_at: float | None = None  # unix time; of a job that waits: when Slurm expects it to start
    left_s: float | None = None  # until its time limit
    reason: str = ""
    comment: str = ""

    @property
    def over(self) -> bool:
        return self.state not in QUEUED | RUNS | ENDS


def command(*, user: str, name: str | None = None) -> list[str]:
    """Return the command that lists the user's jobs of a name, also those that ended some minutes ago."""
    which = [f"--user={user}", *([] if name is None else [f"--name={name}"])]
    own = [f"--unset=SQUEUE_{name}" for name in FILTERS]  # what users have set for themselves; empty, it would count
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


# --- whose a job is ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """The comment of a job of ours. ``token``: of the one call of sbatch that made it."""

    pool: str
    owner: str  # user@host
    token: str

    def __str__(self) -> str:
        return f"{MARK}:{self.pool}:{self.owner}:{self.token}"


def owner() -> str:
    """Return this user on this computer, for a `Label`."""
    try:
        user = getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename}".replace(":", "_")


def label_of(comment: str) -> Label | None:
    """Return what a job's comment says; None: the job is no pool's."""
    parts = comment.split(":")
    if len(parts) != 4 or parts[0] != MARK or not all(parts):
        return None
    return Label(*parts[1:])


def of_pool(views: Sequence[JobView], pool: str) -> list[tuple[JobView, Label]]:
    """Return the jobs whose comment names the pool."""
    labelled = ((view, label_of(view.comment)) for view in views)
    return [(view, label) for view, label in labelled if label is not None and label.pool == pool]
