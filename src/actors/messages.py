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
    """Run ``task``; ``settle`` is called exactly once, also when the pool ends before it reads this."""

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
    """End a job: it settles with this reason at once, its processes are killed, its slot is free when they are gone.

    ``limit_s``: with DEADLINE, how long it had.
    """

    job: JobId
    reason: Reason = Reason.CANCELLED
    limit_s: float | None = None


class LeaveRank(NamedTuple):
    """End one rank of a broadcast whose caller wants no more of it. The other ranks go on."""

    job: JobId
    rank: int


@dataclass(frozen=True, slots=True)
class Resize:
    """Keep ``wanted`` nodes from now on. If there are more, the newest finish what they have and are terminated."""

    wanted: int


@dataclass(frozen=True, slots=True)
class WhenReady(Request[None]):
    """A wait until the pool's ``min`` nodes are ready; fails with the last error if launching is given up first."""


@dataclass(frozen=True, slots=True)
class NodeState:
    node: NodeId
    machine: Machine
    phase: NodePhase | None  # None: it has ended, and its connection is being closed
    away: bool  # its connection is lost and being tried again
    rank: int | None  # None: takes no new work
    load: int  # attempts and ranks it holds
    ports_taken: int = 0  # by generations, since the node was reached
    ports_free: int = 0  # that the next generations may take


@dataclass(frozen=True, slots=True)
class PoolState:
    nodes: tuple[NodeState, ...]
    queued: int  # tasks
    leased: int  # attempts on nodes
    broadcasts: int
    error: Exception | None  # launching was given up with this
    failed: Exception | None = None  # the last reason why a node did not come
    queued_ago_s: float | None = None  # since a machine waited in its provider's queue; 0: one does; None: none has


@dataclass(frozen=True, slots=True)
class Snapshot(Request[PoolState]):
    pass


@dataclass(frozen=True, slots=True)
class Close(Request[None]):
    """Settle everything as CLOSED and close all connections; answered when they are closed. Idempotent."""


# --- to the pool, from its parts ------------------------------------------------------------------------------------


class Received(NamedTuple):
    """One batch of a node's reports, in order."""

    node: NodeId
    reports: Sequence[Report]


class Happened(NamedTuple):
    """An event from a part of the pool; the actor calls ``handle`` with the time at which it handles the event."""

    handle: Callable[[float], None]


RarePoolMessage = Broadcast | LeaveRank | Resize | WhenReady | Snapshot | Close | Happened
PoolMessage = Submit | Received | Cancel | RarePoolMessage


# --- to a node ------------------------------------------------------------------------------------------------------


class Reachable(NamedTuple):
    """The machine has its address now."""

    machine: Machine


class Queued(NamedTuple):
    """The machine waits in its provider's queue: its time to boot does not pass."""


class Boots(NamedTuple):
    """The machine, which was queued, boots from now on."""


class Leave(NamedTuple):
    """Close the connection, if there is one, and end."""


NodeMessage = Queued | Boots | Reachable | Leave
