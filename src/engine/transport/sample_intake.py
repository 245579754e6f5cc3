"""Convert a node's samples to events of the pool. Samples beyond the requested rate are dropped."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...actors.events import GpuSample, NodeSampled
from ...actors.interfaces import NodeId
from ..wire.messages import Sampled

MOST_GPUS = 64  # GPUs of a node, at most; `node.sampler` sends no more
BURST = 10  # number of samples that may arrive together, for example after the connection was slow


class SampleIntake:
    """The intake of one node's samples. ``every_s``: the requested interval; None: no samples."""

    def __init__(
        self,
        node: NodeId,
        every_s: float | None,
        observe: Callable[[NodeSampled], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node, self._every_s, self._observe, self._clock = node, every_s, observe, clock
        self._left, self._at = float(BURST), clock()

    def received(self, sampled: Sampled) -> None:
        if self._every_s is None or len(sampled.gpus) > MOST_GPUS:
            return
        now = self._clock()
        self._left = min(BURST, self._left + 2 * (now - self._at) / self._every_s)
        self._at = now
        if self._left < 1:
            return
        self._left -= 1
        self._observe(event_of(self._node, sampled))


def event_of(node: NodeId, sampled: Sampled) -> NodeSampled:
    fields: dict[str, Any] = sampled._asdict() | {"gpus": tuple(GpuSample(*gpu) for gpu in sampled.gpus)}
    return NodeSampled(node, **fields)
