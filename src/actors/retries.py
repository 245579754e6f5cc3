"""Retries: whether a task runs again after the loss of its node (at-least-once delivery) or after a failure. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_dataclass import dataclass
from .interfaces import AttemptId, GaveUp, NodeId, Reason, Settle, Task, Verdict

if TYPE_CHECKING:
    from .placement import Function, Host

QUEUED, LEASED, OVER = 0, 1, 2
# words for the verdicts of attempts that failed by themselves
FAILURES = {Verdict.RAISED: "raised", Verdict.DIED: "died", Verdict.TERMINATED: "was killed"}


@dataclass(slots=True, eq=False)
class Entry:
    """A task that has not ended, or an ended task with an attempt that its node has not reported as over yet."""

    task: Task
    settle: Settle
    function: Function
    # True: the task may be sent to a node without a free slot; if the node is lost, nobody knows whether the task began
    stacks: bool
    state: int = QUEUED
    number: int = 0  # number of the task's attempts, without those that were taken back
    failures: int = 0  # number of attempts that failed by themselves and were followed by another attempt
    losses: tuple[tuple[NodeId, str], ...] = ()
    # number of times in a row that the task's node was lost without a preemption notice while it ran the task
    blamed: int = 0
    host: Host | None = None
    attempt: AttemptId | None = None
    slow: bool = False
    began: bool = False
    recalled: bool = False  # whether the present attempt was recalled, so that its node may give it back
    expires_at: float | None = None
    stalls: int = 0  # number of attempts that stalled and were followed by another attempt
    stalled: bool = False  # whether the present attempt is being ended because it stalled
    overtaken: int = 0  # number of younger tasks that began while this task was the first in the line for amounts

    def node_lost(
        self, node: NodeId, cause: str, *, ran: bool, announced: bool, quarantine_after: int
    ) -> GaveUp | None:
        """Handle the loss of the task's node; return how the task ends, or None if it may run again.

        The task is blamed for the loss only if it probably ``ran``, and no preemption notice ``announced`` the loss.
        """
        self.state = QUEUED
        self.stalled = False  # the task runs again because of the loss now, not because of the stall
        self.losses += ((node, cause),)
        self.stacks = False
        if not ran:
            return None
        self.blamed = 0 if announced else self.blamed + 1
        quarantined = self.blamed >= quarantine_after
        lost = self.number - self.failures - self.stalls  # number of attempts that ended with the loss of their nodes
        if not (quarantined or self.task.at_most_once or lost > self.task.retries):
            return None
        poison = quarantined or self.blamed == self.number > 1
        return GaveUp(Reason.QUARANTINED if poison else Reason.LOST, self.losses)

    def may_restart(self) -> bool:
        """Return whether another attempt may follow an attempt that stalled."""
        return not self.task.at_most_once and self.stalls < self.task.retries

    def failed(self, verdict: Verdict) -> bool:
        """Handle that an attempt ended with ``verdict``; return whether another attempt follows."""
        if self.stalled:
            self.stalled = False
            self.stalls += 1
            return True
        if verdict not in FAILURES or self.failures >= self.task.max_restarts:
            return False
        self.failures += 1
        self.blamed = 0
        return True
