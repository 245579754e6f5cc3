"""The messages that the pool's actor accepts; their union is its interface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from ..providers.base import Machine, MachineEvent
from ..providers.errors import ProviderError
from .kernel import Request
from .lifecycle import State
from .ports import (
    BroadcastSpec,
    ConnectFailed,
    Connection,
    GaveUp,
    JobId,
    Lost,
    NodeFacts,
    NodeId,
    Reason,
    Report,
    Settle,
    SettleAll,
    Task,
)

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
    """End a job: it settles as CANCELLED at once, its processes are killed, its slot is free when they are gone."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Resize:
    """Keep ``wanted`` nodes from now on. If there are more, the newest finish what they have and are terminated."""

    wanted: int


@dataclass(frozen=True, slots=True)
class WhenReady(Request[None]):
    """Ask to hear when the pool's ``min`` nodes are ready; fails with the last error if launching is given up first."""


@dataclass(frozen=True, slots=True)
class NodeState:
    node: NodeId
    machine: Machine
    state: State
    facts: NodeFacts | None  # None: not reached yet
    rank: int | None  # None: takes no new work
    load: int  # attempts and ranks it holds


@dataclass(frozen=True, slots=True)
class PoolState:
    nodes: tuple[NodeState, ...]
    wanted: int
    coming: int  # machines launching or booting
    queued: int  # tasks
    leased: int  # attempts on nodes
    broadcasts: int
    error: Exception | None  # launching was given up with this
    failed: Exception | None = None  # the last reason why a node did not come


@dataclass(frozen=True, slots=True)
class Snapshot(Request[PoolState]):
    pass


@dataclass(frozen=True, slots=True)
class Close(Request[None]):
    """Settle everything as CLOSED and close all connections; answered when they are closed. Idempotent."""


# --- to the pool, from its parts --------------------------------------------------------------------------------------


class Received(NamedTuple):
    """One batch of a node's reports, in order."""

    node: NodeId
    reports: Sequence[Report]


@dataclass(frozen=True, slots=True)
class Launched:
    """A launch call returned."""

    asked: int
    machines: Sequence[Machine]


@dataclass(frozen=True, slots=True)
class LaunchFailed:
    asked: int
    error: ProviderError


@dataclass(frozen=True, slots=True)
class MachineReport:
    event: MachineEvent


@dataclass(frozen=True, slots=True)
class Queued:
    """The node waits for its turn to be connected to, or (not ``waits``) that has come. Sent only if it had to wait."""

    node: NodeId
    waits: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """The node's machine has answered; sent once per node. Preparing the node follows and may take minutes."""

    node: NodeId


@dataclass(frozen=True, slots=True)
class Reached:
    node: NodeId
    connection: Connection


@dataclass(frozen=True, slots=True)
class Failed:
    """The node was given up before it was ready; or its session is gone, or can never be resumed."""

    node: NodeId
    error: ConnectFailed


@dataclass(frozen=True, slots=True)
class Dropped:
    """The connection to the node is lost, and reconnecting is being tried."""

    node: NodeId
    lost: Lost


@dataclass(frozen=True, slots=True)
class Resumed:
    node: NodeId


@dataclass(frozen=True, slots=True)
class Closed:
    """The node's connection is closed for good."""

    node: NodeId


class Signal(Enum):
    TICK = auto()  # the time that the pool's clock was set to has come
    VIEWS = auto()  # changes of the membership have gathered: tell the nodes
    ANSWERED = auto()  # all nodes are silent, and somebody else answers


FromUsers = Submit | Broadcast | Cancel | Resize | WhenReady | Snapshot | Close
FromParts = (
    Received
    | Launched
    | LaunchFailed
    | MachineReport
    | Queued
    | Answered
    | Reached
    | Failed
    | Dropped
    | Resumed
    | Closed
    | Signal
)
PoolMessage = FromUsers | FromParts
