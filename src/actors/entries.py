"""The ledger's records of tasks, of functions, and of the nodes that take tasks. Pure.

`Entry` is a task: its state, its attempts (tries to run it), and whether it runs again. A task runs again after the
loss of its node (at-least-once delivery), after a failure of its own, or after a stall, as its options allow.
`TaskQueue` is a queue of entries in which ended tasks stay in place until there are many of them. `Function` has the
average time of a function's attempts. `Host` has the attempts of a node, and what is reserved there.
"""

from __future__ import annotations

from collections import deque
from dataclasses import field

from ..lazy_dataclass import dataclass
from .amounts import NOTHING, Amounts
from .interfaces import AttemptId, GaveUp, JobId, NodeId, Reason, Settle, Task, Verdict

QUEUED, LEASED, OVER = 0, 1, 2
# words for the verdicts of attempts that failed by themselves
FAILURES = {Verdict.RAISED: "raised", Verdict.DIED: "died", Verdict.TERMINATED: "was killed"}
FUNCTIONS_KEPT = 4096
# seconds; a stack (attempts that a node holds beyond its slots) has as many attempts per slot as finish in this time
STACK_S = 0.020
STACK_OF_SHORT = 255  # largest number of attempts in a stack (attempts that a node holds beyond its slots)
WEIGHT = 0.25  # weight of the newest duration in the function's average duration


@dataclass(slots=True)
class Function:
    average_s: float | None = None
    stack: int = 0  # number of the function's attempts that a node may hold beyond its slots

    def ran(self, busy_s: float, slots: int) -> None:
        average = self.average_s
        self.average_s = average = busy_s if average is None else average + WEIGHT * (busy_s - average)
        per_slot = int(STACK_S / average) if average > 0 else STACK_OF_SHORT
        self.stack = min(slots * per_slot, STACK_OF_SHORT)


class Functions(dict[bytes, Function]):
    """The functions of tasks, by digest. When there are more than `FUNCTIONS_KEPT`, the oldest entry is removed."""

    def new(self, digest: bytes) -> Function:
        if len(self) >= FUNCTIONS_KEPT:
            del self[next(iter(self))]
        self[digest] = function = Function()
        return function


@dataclass(slots=True, eq=False)
class Host:
    """A ready node, and what is in use on it: by attempts to run tasks, and by seats (slots kept for broadcasts)."""

    id: NodeId
    progress_at: float
    has: Amounts = NOTHING
    left: Amounts = NOTHING  # the node's free processors, memory and accelerators
    # attempts on the node, in the order in which they were sent
    attempts: dict[AttemptId, Entry] = field(default_factory=dict)
    seats: int = 0  # number of slots that are kept for ranks of broadcasts
    # for each broadcast with a seat (a slot kept for it) here: the processors, memory and accelerators of the seat
    seated: dict[JobId, Amounts] = field(default_factory=dict)
    # number of slots (0 or 1) kept for the first of the tasks that wait for processors, memory or accelerators
    keeps: int = 0
    # True: of the tasks that wait for processors, memory or accelerators, only the first in line may begin here
    saved: bool = False
    slow: int = 0  # number of attempts that may take long, so that no other attempt is sent to wait behind them
    open: bool = True  # whether the node takes new work
    noticed: bool = False
    # number of attempts and seats on the host: `pick` groups hosts by this number; -1: the host takes no attempt now
    level: int = -1
    stacked: bool = False  # whether the host holds more attempts than it has slots
    recalling: bool = False
    # whether the broadcast that is first in line for seats (slots kept for its ranks) may use this node
    candidate: bool = False
    # whether this node can give a seat now to the broadcast that is first in line for seats (slots kept for its ranks)
    free: bool = False

    @property
    def load(self) -> int:
        return len(self.attempts) + self.seats


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
    # number of younger tasks that began while this task was first in line for processors, memory or accelerators
    overtaken: int = 0

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


FEW = 64  # number of ended entries that may always stay in the queue


class TaskQueue(deque[Entry]):
    """A queue whose reader skips tasks that are no longer queued.

    The owner calls ``ended`` for each task that ends. When half of the entries may have ended, all ended ones are
    removed in one pass.
    """

    over = 0  # number of entries that may have ended

    def ended(self) -> None:
        self.over += 1
        if self.over > FEW and 2 * self.over > len(self):
            waiting = [entry for entry in self if entry.state == QUEUED]
            self.clear()
            self.extend(waiting)
            self.over = 0
