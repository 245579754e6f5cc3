"""Everything that can be observed of a pool: one frozen type each, in the order in which it happens.

Whoever sees something happen makes its event; what all events of a pool have in common is added by its observer, on
the way to the user. Ids (``job``, ``task``, ``node``) count from 0 or 1 in each pool and are never used twice there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True)
class _Event:
    name: ClassVar[str]  # as in logs: "node_lost"
    at: float = field(default=0.0, kw_only=True)  # seconds since the epoch, by the client's clock; 0.0: not yet told

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


# --- the pool -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PoolStarting(_Event):
    pool: str
    provider: str
    wanted: int
    least: int


@dataclass(frozen=True, slots=True)
class PoolReady(_Event):
    """Enough nodes are ready; the rest may still come."""

    ready: int
    wanted: int
    took_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolResized(_Event):
    wanted: int


@dataclass(frozen=True, slots=True)
class PoolClosing(_Event):
    """No new work; machines are being given back."""


@dataclass(frozen=True, slots=True)
class PoolClosed(_Event):
    """The last event. What may be left of it was told before, by `ProviderWarned`."""


@dataclass(frozen=True, slots=True)
class BudgetMostlySpent(_Event):
    """Four fifths of ``max_cost`` are gone; at all of it the pool is ended. USD, and USD per hour at present."""

    spent: float
    limit: float
    hourly: float


# --- its nodes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodesRequested(_Event):
    count: int


@dataclass(frozen=True, slots=True)
class LaunchFailed(_Event):
    """The provider gave none; ``retry_in_s`` None: it is not asked again."""

    error: str
    failures: int
    retry_in_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeLaunching(_Event):
    node: int
    machine: str = ""
    hourly_cost: float = 0.0  # USD
    facts: Mapping[str, str] = field(default_factory=dict)  # what the provider says of it: pid, zone, type, ...


@dataclass(frozen=True, slots=True)
class NodeLate(_Event):
    """It does not answer, where others had ``others_s`` after their launch: another machine is asked for.

    Whichever is ready first works; the other one is dismissed.
    """

    node: int
    waited_s: float
    others_s: float


@dataclass(frozen=True, slots=True)
class NodePreparing(_Event):
    """A step of bringing the image onto it, each told three ways: it begins, a line of its log, it is over (`took_s`).

    ``phase``: "probe", "upload", "python", "apt", "packages", "files", "volumes", "run" or "executor".
    """

    node: int
    phase: str
    text: str = ""
    took_s: float | None = None


@dataclass(frozen=True, slots=True)
class NodeReady(_Event):
    """It can run tasks, as the node with this rank; ``ready`` of ``wanted`` are."""

    node: int
    rank: int
    ready: int
    wanted: int
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    took_s: float = 0.0  # since it was launched


@dataclass(frozen=True, slots=True)
class VersionsDiffer(_Event):
    """A node's packages are not this program's, and what that may mean. Told once for each such set of versions.

    ``versions``: (what, here, there); ``table`` is the same for people, with the consequences.
    """

    node: int
    versions: tuple[tuple[str, str, str], ...]
    table: str


@dataclass(frozen=True, slots=True)
class NodeStandby(_Event):
    """It is ready and does no work: it takes the place of a node that is lost. Then it is told as `NodeReady`."""

    node: int
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0


@dataclass(frozen=True, slots=True)
class NodeSuspect(_Event):
    """Its connection is lost or (``silent``) says nothing; it is tried again for a while."""

    node: int
    cause: str = ""
    silent: bool = False


@dataclass(frozen=True, slots=True)
class NodeResumed(_Event):
    """A suspect node answered in time: nothing was lost."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeNoticed(_Event):
    """The cloud will take its machine in ``seconds``."""

    node: int
    source: str
    seconds: float


@dataclass(frozen=True, slots=True)
class NodeNoticeWithdrawn(_Event):
    node: int
    source: str


@dataclass(frozen=True, slots=True)
class NodeDraining(_Event):
    """It finishes what it runs and gets nothing new."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeDismissed(_Event):
    """Not wanted any more: it is ended in order."""

    node: int


@dataclass(frozen=True, slots=True)
class NodeFailed(_Event):
    """It never became ready."""

    node: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class NodeLost(_Event):
    """``noticed``: the cloud had said so before."""

    node: int
    cause: str = ""
    noticed: bool = False


@dataclass(frozen=True, slots=True)
class NetworkSilent(_Event):
    """Every connection is silent, maybe for this computer's own network: as long as nobody else answers either, the
    nodes are waited for until their lease is over.
    """

    nodes: int


@dataclass(frozen=True, slots=True)
class TerminateFailed(_Event):
    """Tried again when the pool ends."""

    machines: tuple[str, ...]
    error: str


@dataclass(frozen=True, slots=True)
class ProviderWarned(_Event):
    """What the provider wants people to hear of, in one clause; nothing follows from it.

    Such as: it has heard nothing of the machines for long, or something that costs nothing is left of the pool.
    """

    text: str


@dataclass(frozen=True, slots=True)
class SettleFailed(_Event):
    """A defect: the end of a job could not be told to its caller while the pool was closing."""

    error: str


# --- tasks ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskSubmitted(_Event):
    job: int
    task: int
    function: str = ""


@dataclass(frozen=True, slots=True)
class TaskStarted(_Event):
    job: int
    task: int
    node: int
    number: int = 1  # which attempt of the task this is


@dataclass(frozen=True, slots=True)
class TaskFinished(_Event):
    """An attempt ended. ``number``: which attempt it was.

    ``verdict``: "returned", "raised", "died" (its process), "terminated" (the same, by SIGTERM or SIGKILL), "timed_out"
    or "killed" (by the pool).
    """

    job: int
    task: int
    node: int
    number: int
    verdict: str
    busy_s: float


@dataclass(frozen=True, slots=True)
class TaskRetried(_Event):
    """Its node was lost, or it failed and has ``max_restarts`` left; it is queued again, in front."""

    job: int
    task: int
    node: int
    number: int
    cause: str = ""


@dataclass(frozen=True, slots=True)
class TaskGaveUp(_Event):
    """It ended without an attempt's own word: "lost", "quarantined", "queue_timeout", "cancelled", ..."""

    job: int
    task: int
    reason: str


@dataclass(frozen=True, slots=True)
class TaskOutput(_Event):
    """Whole lines, or a piece of one longer than 64 KiB. ``dropped`` bytes were lost before it.

    ``text`` is as the task wrote it, control characters too: consoles and logs of Outrider's take those out.
    """

    job: int
    node: int
    rank: int
    stream: str
    text: str
    function: str = ""
    dropped: int = 0


# --- broadcasts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BroadcastSubmitted(_Event):
    job: int
    function: str = ""


@dataclass(frozen=True, slots=True)
class GenerationStarted(_Event):
    """These ranks run: all of them, or after a loss perhaps the lost ones alone. ``nodes`` by rank, one per k ranks."""

    job: int
    generation: int
    nodes: tuple[int, ...]
    ranks: tuple[int, ...]
    head: int = 0
    head_port: int = 0


@dataclass(frozen=True, slots=True)
class GenerationLost(_Event):
    """It lost these nodes: what the others still do is void, or kept, as ``on_loss`` says.

    No nodes: a rank failed by itself, and is to be run again with the others (``max_restarts``).
    """

    job: int
    generation: int
    nodes: tuple[int, ...]
    cause: str = ""


@dataclass(frozen=True, slots=True)
class BroadcastFinished(_Event):
    """``verdicts`` by rank, as in `TaskFinished` or `TaskGaveUp`."""

    job: int
    generation: int
    verdicts: tuple[str, ...]


Event = (
    PoolStarting
    | PoolReady
    | PoolResized
    | PoolClosing
    | PoolClosed
    | BudgetMostlySpent
    | NodesRequested
    | LaunchFailed
    | NodeLaunching
    | NodeLate
    | NodePreparing
    | NodeReady
    | VersionsDiffer
    | NodeStandby
    | NodeSuspect
    | NodeResumed
    | NodeNoticed
    | NodeNoticeWithdrawn
    | NodeDraining
    | NodeDismissed
    | NodeFailed
    | NodeLost
    | NetworkSilent
    | TerminateFailed
    | ProviderWarned
    | SettleFailed
    | TaskSubmitted
    | TaskStarted
    | TaskFinished
    | TaskRetried
    | TaskGaveUp
    | TaskOutput
    | BroadcastSubmitted
    | GenerationStarted
    | GenerationLost
    | BroadcastFinished
)

OfJobs = (
    TaskSubmitted
    | TaskStarted
    | TaskFinished
    | TaskRetried
    | TaskGaveUp
    | BroadcastSubmitted
    | GenerationStarted
    | GenerationLost
    | BroadcastFinished
)


class Observe(Protocol):
    """Told of what happens; must be quick and must not raise."""

    tasks: bool  # whether `OfJobs` are wanted: they cost time on the busiest path

    def __call__(self, event: Event, /) -> None: ...
