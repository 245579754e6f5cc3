"""Everything a user can observe of a pool: one frozen type each, in the order in which it happens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, get_args

from ..actors.ports import NodeFacts
from ..providers.base import Machine
from .clean import all_plain


@dataclass(frozen=True, slots=True)
class _Event:
    name: ClassVar[str]  # as in logs: "node_lost"
    at: float  # seconds since the epoch, by the client's clock


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


def _named(kind: type[Any]) -> str:
    kind.name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
    return str(kind.name)


BY_NAME: dict[str, type[Event]] = {_named(kind): kind for kind in get_args(Event)}


def event(name: str, at: float, /, **facts: object) -> Event:
    """The event called ``name``, from facts as `actors.ports.Observe` gets them; those without a field are left out."""
    kind = BY_NAME[name]
    shown: dict[str, Any] = {}
    for fact, value in facts.items():
        if isinstance(value, NodeFacts):
            names = {"hostname": all_plain(value.hostname), "address": all_plain(value.address)}
            shown |= names | {"accelerators": len(value.accelerators)}
        else:
            shown[fact] = _shown(value)
    known = kind.__dataclass_fields__
    return kind(at=at, **{fact: value for fact, value in shown.items() if fact in known})


def _shown(value: object) -> object:
    """Facts of the layers below in words and numbers."""
    if isinstance(value, Machine):
        return all_plain(str(value.id))
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, list | tuple):
        return tuple(_shown(each) for each in value)
    return all_plain(value)
