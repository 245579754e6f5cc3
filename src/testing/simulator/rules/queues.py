"""The rules about machines that wait in their provider's queue: SIM-32.

SIM-32: while a machine waits in the queue, its node is not reported late and does not time out, and no job fails
    because a replacement is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ....actors.interfaces import Ending, GaveUp, NodeId, Reason

if TYPE_CHECKING:
    from ..machines import Sim


class QueueRules:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim

    def called_late(self, node: NodeId) -> None:
        if self._sim.referee.nodes.seats[node].queued:
            self._sim.broken("SIM-32", f"node {node} waits in the queue, and is called late")

    def failed(self, node: NodeId, cause: str) -> None:
        if self._sim.referee.nodes.seats[node].queued and "not ready within" in cause:
            self._sim.broken("SIM-32", f"node {node} waits in the queue, and is given up: {cause}")

    def settled(self, job: int, endings: Sequence[Ending]) -> None:
        if not any(isinstance(each, GaveUp) and each.reason is Reason.NO_REPLACEMENT for each in endings):
            return
        if queue := self._sim.referee.nodes.queue:
            self._sim.broken("SIM-32", f"job {job} ended for want of a node while nodes {queue} wait in the queue")
