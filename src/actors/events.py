"""The events of the pool itself, and the names of all events: everything that can be observed of a pool.

Each type of event is a frozen class. The component that causes or notices an event creates it; the pool's observer sets
the fields that all events have in common, and passes the event to the user. Ids (``job``, ``task``, ``node``) count
from 0 or 1 in each pool and are never reused in that pool.
"""

from __future__ import annotations

from typing import Protocol

from ..lazy_dataclass import dataclass
from .event_bases import Event, JobEvent, NodeEvent
from .job_events import (
    BroadcastFinished,
    BroadcastSubmitted,
    BroadcastWaits,
    GenerationLost,
    GenerationStarted,
    JobFailed,
    MapProgress,
    ProfileTaken,
    RemakeStarted,
    StackTaken,
    Stalled,
    TaskFinished,
    TaskGaveUp,
    TaskOutput,
    TaskRetried,
    TaskStarted,
    TaskSubmitted,
    TransferRerouted,
    UnfinishedLine,
    UploadProgress,
)
from .node_events import (
    GpuSample,
    LaunchFailed,
    NodeDismissed,
    NodeDraining,
    NodeFailed,
    NodeLate,
    NodeLaunching,
    NodeLost,
    NodeNoticed,
    NodeNoticeWithdrawn,
    NodePreparing,
    NodeQueued,
    NodeReady,
    NodeResumed,
    NodeSampled,
    NodesRequested,
    NodeStandby,
    NodeStarted,
    NodeSuspect,
    NodeUsed,
    VersionsDiffer,
)

__all__ = [
    "BroadcastFinished",
    "BroadcastSubmitted",
    "BroadcastWaits",
    "BudgetMostlySpent",
    "Event",
    "GenerationLost",
    "GenerationStarted",
    "GpuSample",
    "JobEvent",
    "JobFailed",
    "LaunchFailed",
    "MapProgress",
    "NetworkSilent",
    "NodeDismissed",
    "NodeDraining",
    "NodeEvent",
    "NodeFailed",
    "NodeLate",
    "NodeLaunching",
    "NodeLost",
    "NodeNoticeWithdrawn",
    "NodeNoticed",
    "NodePreparing",
    "NodeQueued",
    "NodeReady",
    "NodeResumed",
    "NodeSampled",
    "NodeStandby",
    "NodeStarted",
    "NodeSuspect",
    "NodeUsed",
    "NodesRequested",
    "Observe",
    "PoolClosed",
    "PoolClosing",
    "PoolIdleTooLong",
    "PoolReady",
    "PoolResized",
    "PoolScaled",
    "PoolStarting",
    "PoolUsed",
    "ProfileTaken",
    "ProviderWarned",
    "RecordFailed",
    "RemakeStarted",
    "SettleFailed",
    "StackTaken",
    "Stalled",
    "TaskFinished",
    "TaskGaveUp",
    "TaskOutput",
    "TaskRetried",
    "TaskStarted",
    "TaskSubmitted",
    "TerminateFailed",
    "TrackerBehind",
    "TransferRerouted",
    "UnfinishedLine",
    "UploadProgress",
    "VersionsDiffer",
]


@dataclass(frozen=True, slots=True)
class PoolStarting(Event):
    """The pool opens.

    Attributes:
        pool: The name of the pool.
        provider: The name of the provider.
        wanted: The number of nodes that the pool grows to.
        least: The number of nodes with which the pool is ready.
    """

    pool: str
    provider: str
    wanted: int
    least: int


@dataclass(frozen=True, slots=True)
class PoolReady(Event):
    """The pool is ready for work, as enough nodes are ready; the remaining nodes may follow.

    Attributes:
        ready: The number of ready nodes.
        wanted: The number of nodes that the pool grows to.
        took_s: Seconds since the start of the pool.
    """

    ready: int
    wanted: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolResized(Event):
    """The pool grows or shrinks to another number of nodes."""

    wanted: int


@dataclass(frozen=True, slots=True)
class PoolScaled(Event):
    """A pool with ``scale="load"`` changes its number of nodes.

    Attributes:
        wanted: The new number.
        before: The previous number.
        reason: The reason, in words.
    """

    wanted: int
    before: int
    reason: str


@dataclass(frozen=True, slots=True)
class PoolClosing(Event):
    """The pool takes no new work, and releases its machines."""


@dataclass(frozen=True, slots=True)
class PoolUsed(Event):
    """The used share of all nodes' processors and memory. A `NodeUsed` event for each node comes before.

    Sent at the end of a pool whose provider has accounting data, or gives a reason for having none. A value that is
    None is not known.

    Attributes:
        nodes: The number of nodes with accounting data.
        cpu: The used share of the processors' time, from 0 to 1.
        memory: The used share of memory, at the peak of each node, from 0 to 1.
        unknown: Why some nodes, or all, have no accounting data.
    """

    nodes: int
    cpu: float | None
    memory: float | None
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class PoolClosed(Event):
    """The last event of a pool. If any machine may still be running, a `ProviderWarned` event came before."""


@dataclass(frozen=True, slots=True)
class BudgetMostlySpent(Event):
    """Four fifths of ``max_cost`` are spent. The pool ends when all of ``max_cost`` is spent.

    Attributes:
        spent: The cost so far, in USD.
        limit: The ``max_cost``, in USD.
        hourly: The current cost per hour, in USD.
    """

    spent: float
    limit: float
    hourly: float


@dataclass(frozen=True, slots=True)
class PoolIdleTooLong(Event):
    """The pool has been idle for its ``max_idle`` or longer, and is being ended.

    Attributes:
        idle_s: The idle time in seconds.
        limit_s: The ``max_idle`` in seconds.
        gpus: The number of GPUs.
        use: The highest use of any GPU in that time, from 0 to 1; without GPUs, the highest number of processors of a
            node that were in use.
    """

    idle_s: float
    limit_s: float
    gpus: int
    use: float


@dataclass(frozen=True, slots=True)
class NetworkSilent(Event):
    """Every connection to a node is silent, perhaps because this computer's own network fails.

    As long as no other host answers either, the pool waits for the nodes until their leases end.
    """

    nodes: int


@dataclass(frozen=True, slots=True)
class TerminateFailed(Event):
    """Terminating machines failed several times; the pool will try again, at the latest when it ends.

    Attributes:
        machines: The ids of the machines.
        error: The last error.
    """

    machines: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class ProviderWarned(Event):
    """The provider has a warning for people, in one clause. The pool does not react to the warning.

    For example, the provider has had no news of the machines for long, or could not delete a resource that costs
    nothing.
    """

    text: str


@dataclass(frozen=True, slots=True)
class RecordFailed(Event):
    """The record of the run can no longer be written, for example on a full disk. The pool continues."""

    error: str


@dataclass(frozen=True, slots=True)
class TrackerBehind(Event):
    """A tracker has not received all data of the run when the pool ends.

    Attributes:
        tracker: The name of the tracker.
        points: About how many points the tracker has not received.
        problem: The reason, if it is known.
        command: The command that sends the missing data. Empty: nothing can be sent.
    """

    tracker: str
    points: int
    problem: str
    command: str


@dataclass(frozen=True, slots=True)
class SettleFailed(Event):
    """The end of a job could not be reported to its caller while the pool closed; this is a defect in Outrider."""

    error: str


class Observe(Protocol):
    """An observer: a callable that gets each event; it must be quick and must not raise."""

    tasks: bool  # whether the observer wants the events of single jobs (`JobEvent`), which cost time for every task

    def __call__(self, event: Event, /) -> None: ...

    def wants(self, job: int) -> bool:
        """Return whether the observer wants the events of this job. Called only if ``tasks`` is true."""
