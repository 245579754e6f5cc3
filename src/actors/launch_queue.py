"""The machines that wait in a queue of their provider's, as jobs of a cluster do, and how long they may. Pure.

A machine waits from when its provider says so (`MachineQueued`) until it runs (`MachineStarted`) or has its address.
Meanwhile its time to boot does not pass, it is no straggler, and nothing that waits for it runs out of time: see
`node`, `stragglers` and `Waits`.

QUEUE-1: a machine's reason to wait is reported when it begins to wait, and again only when the reason has changed.
QUEUE-2: a machine is overdue once it has waited for ``start_timeout_s`` on end, not before, and only once.
QUEUE-3: a repeated report that a machine waits, or another reason, does not begin its wait anew.
QUEUE-4: a machine that runs, or whose node has ended, does not wait.
"""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .interfaces import NodeId


@dataclass(slots=True)
class Waiting:
    """A machine in the queue. ``starts_at``: when its provider expects it to start, in unix time; None: not known."""

    node: NodeId
    since: float
    reason: str
    starts_at: float | None


class LaunchQueue:
    def __init__(self, start_timeout_s: float | None) -> None:
        self._start_timeout_s = start_timeout_s
        self._waiting: dict[NodeId, Waiting] = {}  # in the order in which they began to wait
        self._left_at: float | None = None  # when the last waiting machine left the queue

    def __contains__(self, node: NodeId) -> bool:
        return node in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def queued(self, node: NodeId, reason: str, starts_at: float | None, now: float) -> bool:
        """Handle that a machine waits. Return whether the wait or its reason is new."""
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = Waiting(node, now, reason, starts_at)
            return True
        changed = (waiting.reason, waiting.starts_at) != (reason, starts_at)
        waiting.reason, waiting.starts_at = reason, starts_at
        return changed

    def left(self, node: NodeId, now: float) -> float | None:
        """Handle that a machine runs, or that its node has ended. Return how long it waited; None: it did not."""
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return None
        self._left_at = now
        return now - waiting.since

    def overdue(self, now: float) -> list[Waiting]:
        """Return the machines that have waited for too long; they wait no longer."""
        limit_s = self._start_timeout_s
        if limit_s is None:
            return []
        overdue = [each for each in self._waiting.values() if now >= each.since + limit_s]
        for each in overdue:
            self.left(each.node, now)
        return overdue

    def wake_at(self) -> float | None:
        """Return the time at which ``overdue`` must be called; None: none."""
        if self._start_timeout_s is None or not self._waiting:
            return None
        return next(iter(self._waiting.values())).since + self._start_timeout_s

    def holds(self, now: float) -> bool:
        """Return whether a machine waits, or has until now: then the time of all waits for nodes begins anew."""
        return self.without_s(now) == 0.0

    def without_s(self, now: float) -> float | None:
        """Return for how long no machine has waited; 0: one waits now; None: none ever has."""
        if self._waiting:
            return 0.0
        return None if self._left_at is None else now - self._left_at
