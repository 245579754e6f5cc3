"""The machines that wait in a provider's queue, as jobs of a cluster do, and their time limit. Pure.

A machine waits from the provider's report `MachineQueued` until it runs (`MachineStarted`) or has its address. During
this wait the machine's time to boot does not count, the machine is no straggler, and no other wait for this machine
reaches its time limit: see `node`, `stragglers` and `Waits`.

QUEUE-1: a machine's reason to wait is reported when its wait begins, and again only when the reason has changed.
QUEUE-2: a machine is overdue once it has waited for ``start_timeout_s`` without a break, not before, and only once.
QUEUE-3: a repeated report that a machine waits, or a new reason, does not restart its wait.
QUEUE-4: a machine that runs, or whose node has ended, does not wait.
"""

from __future__ import annotations

from ..lazy_dataclass import dataclass
from .interfaces import NodeId


@dataclass(slots=True)
class Waiting:
    """A machine in the queue. ``starts_at``: Unix time at which the provider expects the machine to start; None: not
    known.
    """

    node: NodeId
    since: float
    reason: str
    starts_at: float | None


class LaunchQueue:
    def __init__(self, start_timeout_s: float | None) -> None:
        self._start_timeout_s = start_timeout_s
        self._waiting: dict[NodeId, Waiting] = {}  # the machine that began to wait first comes first
        self._left_at: float | None = None  # when a waiting machine last left the queue

    def __contains__(self, node: NodeId) -> bool:
        return node in self._waiting

    def __len__(self) -> int:
        return len(self._waiting)

    def queued(self, node: NodeId, reason: str, starts_at: float | None, now: float) -> bool:
        """Handle that a machine waits. Return whether the wait is new, or its reason has changed."""
        waiting = self._waiting.get(node)
        if waiting is None:
            self._waiting[node] = Waiting(node, now, reason, starts_at)
            return True
        changed = (waiting.reason, waiting.starts_at) != (reason, starts_at)
        waiting.reason, waiting.starts_at = reason, starts_at
        return changed

    def left(self, node: NodeId, now: float) -> float | None:
        """Handle that a machine runs, or that its node has ended. Return the seconds that the machine waited; None: it
        did not wait.
        """
        waiting = self._waiting.pop(node, None)
        if waiting is None:
            return None
        self._left_at = now
        return now - waiting.since

    def overdue(self, now: float) -> list[Waiting]:
        """Return and remove the machines that have waited for too long."""
        limit_s = self._start_timeout_s
        if limit_s is None:
            return []
        overdue = [each for each in self._waiting.values() if now >= each.since + limit_s]
        for each in overdue:
            self.left(each.node, now)
        return overdue

    def wake_at(self) -> float | None:
        """Return the time at which ``overdue`` must be called; None: no machine has a time limit."""
        if self._start_timeout_s is None or not self._waiting:
            return None
        return next(iter(self._waiting.values())).since + self._start_timeout_s

    def holds(self, now: float) -> bool:
        """Return whether a machine waits, or has stopped waiting just now. If so, the time limit of each wait for a
        node starts again.
        """
        return self.without_s(now) == 0.0

    def without_s(self, now: float) -> float | None:
        """Return the number of seconds for which no machine has waited; 0: a machine waits now; None: no machine has
        ever waited.
        """
        if self._waiting:
            return 0.0
        return None if self._left_at is None else now - self._left_at
