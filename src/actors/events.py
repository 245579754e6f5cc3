"""Everything that can be observed of a pool: one frozen type each, in the order in which it happens.

The component that sees something happen creates its event; the pool's observer adds what all its events have in
common before the user gets it. Ids (``job``, ``task``, ``node``) count from 0 or 1 in each pool and are never
used twice there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from .observing import Observe as Observe  # noqa: PLC0414  they are one interface


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events."""

    name: ClassVar[str] = "event"  # as in logs: "node_lost"
    at: float = field(default=0.0, kw_only=True)  # seconds since the epoch, by the client's clock; 0.0: not yet set

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, slots=True)
class NodeEvent(Event):
    """The base of what happens to one node."""

    node: int


@dataclass(frozen=True, slots=True)
class JobEvent(Event):
    """The base of what happens to a job, its output excepted: `Observe` says whether it wants these."""

    job: int


# --- the pool -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolStarting(Event):
    pool: str
    provider: str
    wanted: int
    least: int


@dataclass(frozen=True, slots=True)
class PoolReady(Event):
    """Enough nodes are ready; the rest may still come."""

    ready: int
    wanted: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolResized(Event):
    wanted: int


@dataclass(frozen=True, slots=True)
class PoolScaled(Event):
    """A pool with ``scale="load"`` is to have more nodes, or fewer, and why."""

    wanted: int
    before: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolClosing(Event):
    """The pool takes no new work, and its machines are being given back."""


@dataclass(frozen=True, slots=True)
class PoolClosed(Event):
    """The last event of a pool. Anything that may be left running was reported before, by `ProviderWarned`."""


@dataclass(frozen=True, slots=True)
class BudgetMostlySpent(Event):
    """Four fifths of ``max_cost`` are spent; at the whole the pool is ended. In USD; ``hourly``: USD per hour now."""

    spent: float
    limit: float
    hourly: float


@dataclass(frozen=True, slots=True)
class PoolIdleTooLong(Event):
    """The pool has done nothing for ``idle_s``, its ``max_idle`` of ``limit_s`` or longer: it is being ended.

    ``use``: the most that any of its ``gpus`` was used meanwhile, from 0 to 1; without GPUs how many processors of a
    node were.
    """

    idle_s: float
    limit_s: float
    gpus: int
    use: float


# --- its nodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodesRequested(Event):
    count: int


@dataclass(frozen=True, slots=True)
class LaunchFailed(Event):
    """The provider launched no machine, or too few; it is asked again ``retry_in_s`` later, or (None) not again."""

    error: str
    failures: int
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLaunching(NodeEvent):
    machine: str = ""
    hourly_cost: float = 0.0  # USD
    facts: Mapping[str, str] = field(default_factory=dict)  # what the provider says of it: pid, zone, type, ...


@dataclass(frozen=True, slots=True)
class NodeLate(NodeEvent):
    """The node is a straggler: others had answered ``others_s`` after their launch. Another machine is asked for.

    Whichever of the two is ready first works; the other one is dismissed.
    """

    waited_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class NodePreparing(NodeEvent):
    """A step of bringing the image onto the node: an event when it begins, per log line, and at its end (`took_s`).

    ``phase``: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor".
    """

    phase: str
    text: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(NodeEvent):
    """The node can run tasks, and has this rank; ``ready`` of ``wanted`` nodes can."""

    rank: int
    ready: int
    wanted: int
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    took_s: float = 0.0  # since it was launched


@dataclass(frozen=True, slots=True)
class VersionsDiffer(NodeEvent):
    """A node has other package versions than this program. Reported once for each such set of versions.

    ``versions``: (what, here, there); ``table`` says the same for people, with the possible consequences.
    """

    versions: tuple[tuple[str, str, str], ...]
    table: str


@dataclass(frozen=True, slots=True)
class NodeStandby(NodeEvent):
    """The node is ready and stands by without work. When it takes the place of a lost node, `NodeReady` follows."""

    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class NodeSuspect(NodeEvent):
    """The node's connection is lost or (``silent``) delivers nothing; reconnecting is tried for a while."""

    cause: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class NodeResumed(NodeEvent):
    """A suspect node answered in time, and nothing was lost."""


@dataclass(frozen=True, slots=True)
class NodeNoticed(NodeEvent):
    """The node has a preemption notice: the cloud will take its machine in ``seconds``."""

    source: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeNoticeWithdrawn(NodeEvent):
    source: str


@dataclass(frozen=True, slots=True)
class NodeDraining(NodeEvent):
    """The node finishes what it runs and gets no new work."""


@dataclass(frozen=True, slots=True)
class NodeDismissed(NodeEvent):
    """The node is no longer wanted and is shut down in order."""


@dataclass(frozen=True, slots=True)
class NodeFailed(NodeEvent):
    """The node never became ready."""

    cause: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost(NodeEvent):
    """A ready node was lost. ``noticed``: the cloud had announced it by a preemption notice."""

    cause: str = ""
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU of a node. ``utilisation``: 0 to 1, the part of the driver's last interval in which it ran anything.

    None: the driver does not say.
    """

    index: int  # as nvidia-smi counts them
    utilisation: float | None
    memory_bytes: int
    memory_total_bytes: int
    watts: float | None


@dataclass(frozen=True, slots=True)
class NodeSampled(NodeEvent):
    """The use of a node in the ``seconds`` before: of its machine, or of its container where that has limits.

    ``cpu``: 0 to 1 of all ``cpus``. ``received_bytes`` and ``sent_bytes`` went over its network meanwhile. Consoles and
    logs do not show this event.
    """

    seconds: float
    cpu: float
    cpus: float
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int  # of the disk with the work folder
    disk_total_bytes: int
    received_bytes: int
    sent_bytes: int
    gpus: tuple[GpuSample, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkSilent(Event):
    """Every connection is silent, perhaps because of this computer's own network. As long as nobody else answers
    either, the nodes are waited for until their lease is over.
    """

    nodes: int


@dataclass(frozen=True, slots=True)
class TerminateFailed(Event):
    """Terminating these machines failed several times; it is tried again, at the latest when the pool ends."""

    machines: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class ProviderWarned(Event):
    """The provider has a warning for people, in one clause; the pool does nothing about it.

    For example: it has had no news of the machines for long, or something that costs nothing is left of the pool.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """The record of the run cannot be written, or no further: its disk is full, for one. The pool goes on."""

    error: str


@dataclass(frozen=True, slots=True)
class SettleFailed(Event):
    """The end of a job could not be reported to its caller while the pool was closing; this is a defect."""

    error: str


# --- tasks ----------------------------------------------------------------------------------------------------------


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

    ``verdict``: "returned", "raised", "died" (its process), "terminated" (the same, by SIGTERM or SIGKILL), "timed_out"
    or "killed" (by the pool).
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
class JobFailed(JobEvent):
    """A job's function raised, or the process that ran it died. ``error``: a line such as "ValueError: bad luck". Of a
    map each item is told of: its ``function`` is "item 3 of f", and its ``job`` the task that it shared with others.

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
    """A task has begun a line and not ended it for half a second: a progress bar, dots. ``text``: what is there of it.

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

    ``rank``: the one that the others wait for, and ``reason`` why it is that one; None: it cannot be told. ``restart``:
    whether it is run again for that. A `StackTaken` follows for each.
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
class StackTaken(Event):
    """The stacks of a task, or of a rank of a broadcast, were taken: what its processes are at, as in `TaskStack`.

    Those that were taken together have the same ``at``.
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
