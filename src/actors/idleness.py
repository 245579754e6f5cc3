"""The decision whether a pool is idle, from its nodes' samples (regular reports of use). Pure; times are seconds of any
one clock.

IDLE-1: a pool with a node in an unknown state is not idle. The state is unknown of a node that boots, that has sent no
    sample yet or none for a while, or that reports no figures for one of its GPUs.
IDLE-2: only idle time without a break counts. It starts from zero when a node has worked or was in an unknown state,
    when a node joins or leaves, and when a call begins or ends.
IDLE-3: a pool without nodes is never idle: it costs nothing.
IDLE-4: a pool whose nodes have all been idle for ``max_idle_s`` is reported, with the next sample at the latest.
IDLE-5: a machine in its provider's queue is not a node yet: it costs nothing, and the pool may be idle during its wait.
"""

from __future__ import annotations

from dataclasses import field

from ..lazy_dataclass import dataclass
from .events import NodeSampled

GPU_BUSY = 0.05  # fraction of a GPU's time from which on the GPU is busy; a desktop or a monitoring program uses less
# number of processors in use from which on a node is busy; system services and the executor use less, one busy thread
# uses 1
CPUS_BUSY = 0.25
SAMPLES_MISSED = 3  # number of missed samples in a row after which a node's state is unknown


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle state of a pool since the time ``since``.

    ``nodes``: the number of nodes. ``gpus``: the number of GPUs in all nodes together. ``most``: the highest use in any
    sample since ``since``: of a GPU, from 0 to 1; without GPUs, the number of processors in use.
    """

    since: float
    nodes: int
    gpus: int
    most: float


@dataclass(slots=True)
class _Node:
    gpus: int | None = None  # number of the node's GPUs; None: the node still boots
    sampled_at: float | None = None
    # since when the node has been idle; None: the node is busy, or its state is unknown
    idle_since: float | None = None
    most: float = 0.0


@dataclass(slots=True)
class Idleness:
    """A detector of idle pools. ``max_idle_s``: the allowed idle time. ``every_s``: the time between two samples of a
    node.
    """

    max_idle_s: float
    every_s: float
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _since: float = 0.0  # the pool's idle time cannot have begun before this time

    def boots(self, node: int, now: float) -> None:
        """Handle that a node is launched, that it is being prepared, or that its queued machine begins to run."""
        if node not in self._nodes:
            self._nodes[node] = _Node()
            self._since = now

    def joined(self, node: int, gpus: int, now: float) -> None:
        """Handle that a node is ready, or stands by as a spare: a spare node costs as much."""
        self._nodes[node] = _Node(gpus)
        self._since = now

    def left(self, node: int, now: float) -> None:
        if self._nodes.pop(node, None) is not None:
            self._since = now

    def queued(self, node: int, now: float) -> None:
        """Handle that the machine of a node waits in its provider's queue; `boots` is called when that wait ends."""
        self.left(node, now)

    def called(self, now: float) -> None:
        """Handle that a call by the user has begun or ended."""
        self._since = now

    def sampled(self, sample: NodeSampled, now: float) -> None:
        node = self._nodes.get(sample.node)
        if node is None or node.gpus is None:
            return
        use = _use(sample, node.gpus)
        whole = self._is_known(node, now)
        node.sampled_at = now
        if use is None or use >= (GPU_BUSY if node.gpus else CPUS_BUSY):
            node.idle_since = None
        elif node.idle_since is None or not whole:
            node.idle_since, node.most = now, use
        else:
            node.most = max(node.most, use)

    def idle(self, now: float) -> Idle | None:
        """Return the pool's `Idle` state; None: a node is busy, or its state is unknown."""
        since = self._since
        for node in self._nodes.values():
            if node.idle_since is None or not self._is_known(node, now):
                return None
            since = max(since, node.idle_since)
        if not self._nodes:
            return None
        gpus = sum(node.gpus or 0 for node in self._nodes.values())
        most = max(node.most for node in self._nodes.values() if node.gpus or not gpus)
        return Idle(since, len(self._nodes), gpus, most)

    def over(self, now: float) -> Idle | None:
        """Return the `Idle` state if it has lasted for ``max_idle_s``, else None. Call this after each sample."""
        idle = self.idle(now)
        return idle if idle is not None and now - idle.since >= self.max_idle_s else None

    def _is_known(self, node: _Node, now: float) -> bool:
        return node.sampled_at is not None and now - node.sampled_at <= (SAMPLES_MISSED + 1) * self.every_s


def _use(sample: NodeSampled, gpus: int) -> float | None:
    """Return the use of the busiest GPU, or of the processors if the node has no GPU; None: unknown."""
    if not gpus:
        return sample.cpu * sample.cpus
    uses = [gpu.utilisation for gpu in sample.gpus]
    known = [use for use in uses if use is not None]
    return max(known) if len(known) == len(uses) >= gpus else None
