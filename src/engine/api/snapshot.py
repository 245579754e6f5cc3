"""The present state of a pool and its nodes, as `Pool.snapshot` returns it."""

from __future__ import annotations

from collections.abc import Mapping

from ...actors import events as ev
from ...lazy_dataclass import dataclass
from .quantities import count

STATES: dict[type[ev.NodeEvent], str] = {  # type of an event -> state of the node after this event
    ev.NodeLaunching: "launching",
    ev.NodeQueued: "queued",
    ev.NodeStarted: "launching",
    ev.NodeLate: "late",
    ev.NodePreparing: "preparing",
    ev.NodeReady: "ready",
    ev.NodeStandby: "standby",
    ev.NodeSuspect: "suspect",
    ev.NodeResumed: "ready",
    ev.NodeNoticed: "noticed",
    ev.NodeNoticeWithdrawn: "ready",
    ev.NodeDraining: "draining",
    ev.NodeFailed: "lost",
    ev.NodeLost: "lost",
}
ABOUT_TO_LEAVE = {"noticed", "draining"}


@dataclass(frozen=True, slots=True, repr=False)
class NodeState:
    """The current state of a node.

    ``state``: launching, queued, late, preparing, ready, standby, suspect, noticed or draining.
    """

    node: int
    state: str
    rank: int | None = None  # position among the ready nodes; None if the node is not ready
    machine: str = ""
    hostname: str = ""
    address: str = ""
    accelerators: int = 0
    # bytes sent to the node since it was connected, without data that nodes on this computer map from shared memory
    sent_bytes: int = 0
    received_bytes: int = 0  # bytes received from the node
    facts: Mapping[str, str] | None = None  # the provider's facts about the machine: pid, zone, type, price, ...

    def __repr__(self) -> str:
        rank = "" if self.rank is None else f", rank {self.rank}"
        gpus = f", {count(self.accelerators, 'accelerator')}" if self.accelerators else ""
        where = self.hostname or self.address or self.machine
        return f"<node {self.node}: {self.state}{rank}{f', on {where}' if where else ''}{gpus}>"


@dataclass(frozen=True, slots=True, repr=False)
class PoolSnapshot:
    """The state of a pool at one moment. ``submitted`` and ``finished`` count jobs; a broadcast is one job."""

    pool: str
    state: str  # "starting", "ready", "closing" or "closed"
    desired: int
    nodes: tuple[NodeState, ...]
    submitted: int
    finished: int
    # broadcasts that have waited for at least 10 s, with the reason and the duration of the wait
    waits: tuple[ev.BroadcastWaits, ...] = ()

    @property
    def ready(self) -> int:
        """The number of nodes that accept work."""
        return sum(node.state in {"ready", "suspect"} for node in self.nodes)

    @property
    def described(self) -> str:
        """The state as text: ``3 of 4 nodes ready, 2 jobs open``."""
        if self.state == "closed":
            return f"ended after {count(self.finished, 'job')}"
        state = "" if self.state == "ready" else f"{self.state}, "
        open_jobs = self.submitted - self.finished
        jobs = f", {count(open_jobs, 'job')} open" if open_jobs else ""
        waits = f", {count(len(self.waits), 'broadcast')} waiting for {self.waits[0].reason}" if self.waits else ""
        return f"{state}{self.ready} of {count(self.desired, 'node')} ready{jobs}{waits}"

    def __repr__(self) -> str:
        return f"<pool {self.pool!r}: {self.described}>"
