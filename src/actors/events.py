"""Events: everything that can be observed of a pool, one frozen type each. Those of the pool itself are here.

The component that sees something happen creates its event; the pool's observer adds what all its events have in
common before the user gets it. Ids (``job``, ``task``, ``node``) count from 0 or 1 in each pool and are never
used twice there.
"""

from __future__ import annotations

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
from .observing import Observe

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
class PoolUsed(Event):
    """The use of all nodes of the pool together, from 0 to 1, after the `NodeUsed` of each.

    ``nodes``: the number with figures. ``memory``: at the peak of each. None: unknown. ``unknown``: why some nodes, or
    all, have no figures. Sent at the end of a pool whose provider counts, or explains why it does not.
    """

    nodes: int
    cpu: float | None
    memory: float | None
    unknown: str = ""


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


@dataclass(frozen=True, slots=True)
class NetworkSilent(Event):
    """Every connection is silent, perhaps because of this computer's own network. As long as no probe answers either,
    the pool waits for the nodes until their lease is over.
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
class TrackerBehind(Event):
    """A tracker of the pool lacks something of the run at its end. ``command`` sends it; empty: nothing is to be sent.

    ``points``: about how many it lacks. ``problem``: the known cause.
    """

    tracker: str
    points: int
    problem: str
    command: str


@dataclass(frozen=True, slots=True)
class SettleFailed(Event):
    """The end of a job could not be reported to its caller while the pool was closing; this is a defect."""

    error: str
