"""Decide whether a pool is idle, from the samples of its nodes. Pure; times are seconds of any one clock.

IDLE-1: a node of which nothing is known is not idle, and so its pool is not: it boots, has sent no sample yet or none
    for a while, or reports no figures for one of its GPUs.
IDLE-2: only a whole stretch counts: it begins anew when a node has done anything or was unknown, when a node comes or
goes, and when a call begins or ends.
IDLE-3: a pool without nodes is never idle: it costs nothing.
IDLE-4: a pool whose nodes have all done nothing for ``max_idle_s`` is reported, with the next sample at the latest.
IDLE-5: a machine that waits in its provider's queue is no node yet: it costs nothing, and keeps no pool.
"""

from __future__ import annotations

from dataclasses import field

from ..lazy_dataclass import dataclass
from .events import NodeSampled

GPU_BUSY = 0.05  # of a GPU's time: a desktop or a monitoring program uses less
CPUS_BUSY = 0.25  # processors: the system's own services and our executor take less, one busy thread takes 1
SAMPLES_MISSED = 3  # in a row, after which a node's state is unknown


@dataclass(frozen=True, slots=True)
class Idle:
    """A pool that has done nothing since ``since``. ``nodes``: their number; ``gpus``: the number in all nodes
    together.

    ``most``: the highest use in a sample since then: of a GPU, from 0 to 1; without GPUs, in processors.
    """

    since: float
    nodes: int
    gpus: int
    most: float


@dataclass(slots=True)
class _Node:
    gpus: int | None = None  # None: it boots
    sampled_at: float | None = None
    idle_since: float | None = None  # None: it is busy, or its state is unknown
    most: float = 0.0


@dataclass(slots=True)
class Idleness:
    """``max_idle_s``: how long a pool may do nothing. ``every_s``: how often each node sends a sample."""

    max_idle_s: float
    every_s: float
    _nodes: dict[int, _Node] = field(default_factory=dict)
    _since: float = 0.0  # when the present stretch began at the earliest

    def boots(self, node: int, now: float) -> None:
        """Handle that a node is launched, or prepared, or that its machine, which was queued, runs."""
        if node not in self._nodes:
            self._nodes[node] = _Node()
            self._since = now

    def joined(self, node: int, gpus: int, now: float) -> None:
        """Handle that a node is ready, or stands by: a spare node costs as much."""
        self._nodes[node] = _Node(gpus)
        self._since = now

    def left(self, node: int, now: float) -> None:
        if self._nodes.pop(node, None) is not None:
            self._since = now

    def queued(self, node: int, now: float) -> None:
        """Handle that the machine of a node waits in its provider's queue, until ``boots`` is called."""
        self.left(node, now)

    def called(self, now: float) -> None:
        """Handle that a call has begun or ended."""
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
        """Return the `Idle` state if it has lasted for as long as it may; else None. Call after each sample."""
        idle = self.idle(now)
        return idle if idle is not None and now - idle.since >= self.max_idle_s else None

    def _is_known(self, node: _Node, now: float) -> bool:
        return node.sampled_at is not None and now - node.sampled_at <= (SAMPLES_MISSED + 1) * self.every_s


def _use(sample: NodeSampled, gpus: int) -> float | None:
    """Return the use of the busiest GPU, or without GPUs of the processors; None: unknown."""
    if not gpus:
        return sample.cpu * sample.cpus
    uses = [gpu.utilisation for gpu in sample.gpus]
    known = [use for use in uses if use is not None]
    return max(known) if len(known) == len(uses) >= gpus else None
