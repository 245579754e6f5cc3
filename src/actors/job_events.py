"""Events of a pool's work: tasks and what they write, broadcasts and their generations."""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .event_bases import Event, JobEvent


@dataclass(frozen=True, slots=True)
class TaskSubmitted(JobEvent):
    task: int
    function: str = ""


@dataclass(frozen=True, slots=True)
class TaskStarted(JobEvent):
    task: int
    node: int
    number: int = 1  # which attempt of the task this is


@dataclass(frozen=True, slots=True)
class TaskFinished(JobEvent):
    """An attempt ended. ``number``: which attempt it was.

    ``verdict``: "returned", "raised", "died" (its process), "terminated" (the same, by SIGTERM or SIGKILL),
    "timed_out", "killed" (by the pool) or "unsent": a kept result that it was given is lost. That is made again, and
    then the task is submitted again, or the task fails.
    """

    task: int
    node: int
    number: int
    verdict: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried(JobEvent):
    """The task's node was lost, or it failed and has ``max_restarts`` left; it is queued again, in front."""

    task: int
    node: int
    number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TaskGaveUp(JobEvent):
    """The task ended without an outcome of an attempt. ``reason``: as in `Reason`, such as "lost" or "cancelled"."""

    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class BroadcastWaits(Event):
    """A broadcast has waited for ``waited_s`` before its ranks run. The event comes after 10 s, and whenever the wait
    has doubled.

    ``reason``: what it waits for, such as "free ports of node 3". ``ended``: it waits no more, or is over.
    """

    job: int
    reason: str
    waited_s: float
    function: str = ""
    ended: bool = False


@dataclass(frozen=True, slots=True)
class JobFailed(JobEvent):
    """A job's function raised, or the process that ran it died. ``error``: a line such as "ValueError: bad luck". A map
    has an event for each item: its ``function`` is "item 3 of f", and its ``job`` the task that it shared with others.

    ``ranks``: those of a broadcast that failed alike, the first of them on ``node``; empty for any other call.
    """

    function: str
    error: str
    node: int
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MapProgress(JobEvent):
    """A map has given its caller the results of ``done`` of ``total`` items; None: they have no length. Of those done
    ``failed`` gave errors. Its tasks are jobs of their own.
    """

    function: str
    done: int
    total: int | None
    ended: bool = False
    failed: int = 0


@dataclass(frozen=True, slots=True)
class UploadProgress(Event):
    """Arguments or functions of 64 MiB and more are on their way to ``nodes`` for ``took_s``, or have ``ended``."""

    nodes: int
    sent_bytes: int
    total_bytes: int
    took_s: float
    ended: bool = False


@dataclass(frozen=True, slots=True)
class TransferRerouted(Event):
    """A node gets no more of a large object from ``source``, for this ``reason``, and the rest from the node
    ``instead``; None: from this program. ``apart``: the pool's nodes do not reach each other, so this program sends
    every object to every node from now on, without further events.
    """

    node: int
    source: int
    instead: int | None
    have_bytes: int
    size_bytes: int
    reason: str
    apart: bool = False


@dataclass(frozen=True, slots=True)
class RemakeStarted(Event):
    """A needed result is gone, as ``node`` is lost or the result was freed: its call runs again, as this ``job``, for
    the ``number``-th time of at most ``times``.
    """

    job: int
    node: int
    function: str
    number: int
    times: int


@dataclass(frozen=True, slots=True)
class TaskOutput(Event):
    """A task wrote whole lines, or a piece of a line longer than 64 KiB. ``dropped`` bytes were lost before it.

    ``text`` is as the task wrote it, control characters included; Outrider's consoles and logs remove those. Of a line
    that was redrawn by carriage returns over more than half a second it is the last state. ``rank`` of ``ranks`` wrote
    it; a task that is not part of a broadcast is rank 0 of 1.
    """

    job: int
    node: int
    rank: int
    stream: str
    text: str
    function: str = ""
    dropped: int = 0
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class UnfinishedLine(Event):
    """A task has begun a line and not ended it for half a second: a progress bar, dots. ``text``: the line so far.

    The next such event of the same job, rank and stream replaces it; when the line ends, `TaskOutput` has all of it.
    """

    job: int
    node: int
    rank: int
    stream: str
    text: str
    function: str = ""
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class Stalled(Event):
    """A task, or all ``ranks`` of a broadcast that run, have given no sign of life for ``quiet_s``: no line, no step.

    ``rank``: the one that the others wait for, and ``reason`` why it is that one; None: it is unknown. ``restart``:
    whether the task or broadcast is run again. A `StackTaken` follows for each.
    """

    job: int
    generation: int
    ranks: tuple[int, ...]
    quiet_s: float
    rank: int | None
    reason: str
    function: str
    restart: bool = False


@dataclass(frozen=True, slots=True)
class ProfileTaken(Event):
    """The profile of a task, or of a rank of a broadcast, is over, or there is none.

    ``profile``: its name, shared by profiles that were taken together. ``artifact``: the name of the task's logged
    artifact; empty: none. ``said``: why there is none, or what is missing in it. ``clock_offset_s``: by how much the
    node's clock is ahead of this program's, within ``clock_error_s``; None: it is not known.
    """

    job: int
    node: int
    rank: int
    profile: str
    artifact: str
    said: str = ""
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: it is no part of a broadcast
    clock_offset_s: float | None = None
    clock_error_s: float | None = None


@dataclass(frozen=True, slots=True)
class StackTaken(Event):
    """The stacks of the processes of a task, or of a rank of a broadcast, as in `TaskStack`.

    Stacks that were taken together have the same ``at``.
    """

    job: int
    node: int
    rank: int
    text: str
    function: str = ""
    ranks: int = 1
    generation: int = 0  # 0: it is no part of a broadcast


# --- broadcasts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BroadcastSubmitted(JobEvent):
    function: str = ""


@dataclass(frozen=True, slots=True)
class GenerationStarted(JobEvent):
    """A generation begins to run ``ranks``: all, or after a loss perhaps only the lost. ``nodes``: one per k ranks."""

    generation: int
    nodes: tuple[int, ...]
    ranks: tuple[int, ...]
    head: int = 0
    head_port: int = 0


@dataclass(frozen=True, slots=True)
class GenerationLost(JobEvent):
    """The generation lost these nodes; ``on_loss`` decides whether the other ranks' work is void or kept.

    Without nodes: a rank failed by itself, and is to be run again with the others (``max_restarts``).
    """

    generation: int
    nodes: tuple[int, ...]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BroadcastFinished(JobEvent):
    """The broadcast ended. ``verdicts``: by rank, as in `TaskFinished` (``verdict``) or `TaskGaveUp` (``reason``)."""

    generation: int
    verdicts: tuple[str, ...]
