"""The messages that each actor accepts; the union types at the end of each section are the actors' interfaces."""

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

# --- messages to the pool from its users (the mailbox holds a million; public calls wait if too much work is open) ----


class Submit(NamedTuple):
    """A message: run ``task``. ``settle`` is called exactly once with the task's ending, also if the pool ends before
    it reads this message.
    """

    task: Task
    settle: Settle

    def bounce(self, error: Exception) -> None:  # noqa: ARG002
        self.settle(GaveUp(Reason.CLOSED))


class Broadcast(NamedTuple):
    """A message: run a function on every ready node. ``settle_all`` is called exactly once with the ranks' endings."""

    spec: BroadcastSpec
    settle_all: SettleAll

    def bounce(self, error: Exception) -> None:  # noqa: ARG002
        self.settle_all((GaveUp(Reason.CLOSED),), 0)


class Cancel(NamedTuple):
    """A message: end a job. Its caller gets ``reason`` at once, and its processes are killed; its slot is free when
    they are gone.

    ``limit_s``: the deadline in seconds, if ``reason`` is DEADLINE.
    """

    job: JobId
    reason: Reason = Reason.CANCELLED
    limit_s: float | None = None


class LeaveRank(NamedTuple):
    """A message: end one rank of a broadcast, as the caller no longer wants its result. The other ranks continue."""

    job: JobId
    rank: int


@dataclass(frozen=True, slots=True)
class Resize:
    """A message: keep ``wanted`` nodes from now on. If there are more, the newest nodes finish their tasks and are
    terminated.
    """

    wanted: int


@dataclass(frozen=True, slots=True)
class WhenReady(Request[None]):
    """A request that is answered when the pool's ``min`` nodes are ready. If the pool gives up launching, the last
    error is raised.
    """


@dataclass(frozen=True, slots=True)
class NodeState:
    node: NodeId
    machine: Machine
    phase: NodePhase | None  # None: the node has ended, and its connection is being closed
    away: bool  # whether the node's connection is lost while the pool tries to reconnect
    rank: int | None  # rank of the node; None: the node takes no new work
    load: int  # number of attempts of tasks and of ranks that the node holds
    ports_taken: int = 0  # number of the node's ports that generations have used since the node was connected
    ports_free: int = 0  # number of the node's free ports that the next generations may use


@dataclass(frozen=True, slots=True)
class PoolState:
    nodes: tuple[NodeState, ...]
    queued: int  # number of queued tasks
    leased: int  # number of attempts that nodes hold
    broadcasts: int
    error: Exception | None  # the error because of which the pool gave up launching
    failed: Exception | None = None  # why the node that failed last did not become ready
    # seconds since a machine last waited in its provider's queue; 0: a machine waits now; None: no machine has ever
    # waited
    queued_ago_s: float | None = None


@dataclass(frozen=True, slots=True)
class Snapshot(Request[PoolState]):
    pass


@dataclass(frozen=True, slots=True)
class Close(Request[None]):
    """A request: end every job with the reason CLOSED, and close all connections. It is answered when they are closed.
    Idempotent.
    """


# --- messages to the pool from its own components -------------------------------------------------------------------


class Received(NamedTuple):
    """A batch of reports from one node, in the order in which the node sent them."""

    node: NodeId
    reports: Sequence[Report]


class Happened(NamedTuple):
    """An event from a component of the pool. The pool's actor calls ``handle`` with the time at which it handles the
    event.
    """

    handle: Callable[[float], None]


RarePoolMessage = Broadcast | LeaveRank | Resize | WhenReady | Snapshot | Close | Happened
PoolMessage = Submit | Received | Cancel | RarePoolMessage


# --- messages to a node ---------------------------------------------------------------------------------------------


class Reachable(NamedTuple):
    """A message: the node's machine has got its address."""

    machine: Machine


class Queued(NamedTuple):
    """A message: the node's machine waits in its provider's queue, so its time to boot does not count."""


class Boots(NamedTuple):
    """A message: the node's machine, which was queued, begins to boot."""


class Leave(NamedTuple):
    """A message: close the connection to the node, if one is open, and end."""


NodeMessage = Queued | Boots | Reachable | Leave
