"""Query squeue for a pool's jobs, and parse its output. No I/O.

SQUEUE-1: whatever a job's comment or reason contains, its other fields and all other jobs are parsed correctly.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from getpass import getuser

from ...lazy_dataclass import dataclass
from .durations import read_or_none
from .hostlist import expand

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
