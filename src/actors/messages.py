"""The messages that each actor accepts; their unions are the actors' interfaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..lazy_dataclass import dataclass
from ..lazy_named_tuple import NamedTuple
from ..providers.base import Machine
from .fleet_controller import NodePhase
from .interfaces import (
    BroadcastSpec,
    GaveUp,
    JobId,
    NodeId,
    Reason,
    Report,
    Settle,
    SettleAll,
    Task,
)
from .kernel import Request

# --- to the pool, from its users. Bursts are fine, its mailbox holds a million; the public calls apply back-pressure --


class Submit(NamedTuple):
    """Run ``task``. ``settle`` is called exactly once, also if the pool ends before it reads this message."""

    task: Task
    settle: Settle

    def bounce(self, error: Exception) -> None:  # noqa: ARG002
        self.settle(GaveUp(Reason.CLOSED))


class Broadcast(NamedTuple):
    """Run a function on every ready node; ``settle_all`` is called exactly once."""

    spec: BroadcastSpec
    settle_all: SettleAll

    def bounce(self, error: Exception) -> None:  # noqa: ARG002
        self.settle_all((GaveUp(Reason.CLOSED),), 0)


class Cancel(NamedTuple):
    """End a job: it settles with ``reason`` at once and its processes are killed; its slot is free when they are gone.

    ``limit_s``: the deadline in seconds, if ``reason`` is DEADLINE.
    """

    job: JobId
    reason: Reason = Reason.CANCELLED
    limit_s: float | None = None


class LeaveRank(NamedTuple):
    """End one rank of a broadcast, because the caller no longer wants its result. The other ranks continue."""

    job: JobId
    rank: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Keep ``wanted`` nodes from now on. If more exist, the newest finish their tasks and are terminated."""

    wanted: int


@dataclass(frozen=True, slots=True)
class WhenReady(Request[None]):
    """A wait until the pool's ``min`` nodes are ready. It fails with the last error if the pool gives up launching."""


@dataclass(frozen=True, slots=True)
class NodeState:
    node: NodeId
    machine: Machine
    phase: NodePhase | None  # None: the node has ended, and its connection is being closed
    away: bool  # whether its connection is lost while the pool tries to reconnect
    rank: int | None  # None: the node takes no new work
    load: int  # number of attempts and ranks that the node holds
    ports_taken: int = 0  # number of ports that generations have taken since the node was connected
    ports_free: int = 0  # number of ports that the next generations may take


@dataclass(frozen=True, slots=True)
class PoolState:
    nodes: tuple[NodeState, ...]
    queued: int  # number of queued tasks
    leased: int  # number of attempts on nodes
    broadcasts: int
    error: Exception | None  # the error because of which the pool gave up launching
    failed: Exception | None = None  # why the last failed node did not become ready
    # seconds since a machine last waited in its provider's queue; 0: one waits now; None: none ever has
    queued_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot(Request[PoolState]):
    pass


@dataclass(frozen=True, slots=True)
class Close(Request[None]):
    """Settle every job as CLOSED and close all connections; answered when they are closed. Idempotent."""


# --- to the pool, from its parts ------------------------------------------------------------------------------------


class Received(NamedTuple):
    """One batch of a node's reports, in order."""

    node: NodeId
    reports: Sequence[Report]


class Happened(NamedTuple):
    """An event from a part of the pool. The actor calls ``handle`` with the time at which it handles the event."""

    handle: Callable[[float], None]


RarePoolMessage = Broadcast | LeaveRank | Resize | WhenReady | Snapshot | Close | Happened
PoolMessage = Submit | Received | Cancel | RarePoolMessage


# --- to a node ------------------------------------------------------------------------------------------------------


class Reachable(NamedTuple):
    """The machine has got its address."""

    machine: Machine


class Queued(NamedTuple):
    """The machine waits in its provider's queue: its time to boot does not run."""


class Boots(NamedTuple):
    """The machine, which was queued, begins to boot."""


class Leave(NamedTuple):
    """Close the connection, if one is open, and end."""


NodeMessage = Queued | Boots | Reachable | Leave
