"""One task of the `ledger`, its waits that are bounded, and the decisions that the ledger leaves for its caller."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING

from .ports import AttemptId, Ending, JobId, NodeId, Order, Settle, Task

if TYPE_CHECKING:
    from .placement import Function, Host

QUEUED, LEASED, OVER = 0, 1, 2


class Entry:
    """A task that has not ended, or an ended one whose attempt its node has not yet reported as over."""

    __slots__ = (
        *("attempt", "began", "blamed", "expires_at", "failures", "function", "host"),
        *("losses", "number", "recalled", "settle", "slow", "stacks", "state", "task"),
    )

    def __init__(self, task: Task, settle: Settle, function: Function) -> None:
        self.task = task
        self.settle = settle
        self.function = function
        self.state = QUEUED
        self.number = 0  # attempts that count
        self.failures = 0  # attempts that failed by themselves and were followed by another
        self.losses: tuple[tuple[NodeId, str], ...] = ()
        self.blamed = 0  # unannounced losses of its node, in a row
        self.host: Host | None = None
        self.attempt: AttemptId | None = None
        self.slow = False
        self.stacks = task.retries > 0  # may wait behind others on a node, whose loss leaves unknown whether it began
        self.began = False
        self.recalled = False  # whether this attempt was recalled, so that its node may give it back
        self.expires_at: float | None = None


class Decisions:
    """The decisions to be carried out now. The caller empties these lists."""

    __slots__ = ("emptied", "endings", "kills", "recalls", "retries", "runs", "seats")

    def __init__(self) -> None:
        self.runs: list[tuple[NodeId, Order]] = []
        self.endings: deque[tuple[Task, Settle, Ending, float]] = deque()  # the float: seconds it ran
        self.kills: list[tuple[NodeId, AttemptId]] = []
        self.recalls: list[tuple[NodeId, tuple[AttemptId, ...]]] = []
        self.retries: list[tuple[Task, NodeId, int, str]] = []  # task, node, number of the attempt, cause
        self.seats: list[tuple[JobId, tuple[NodeId, ...]]] = []  # a claim was granted
        self.emptied: list[NodeId] = []  # closed nodes that have become empty; one may be listed more than once


class Expiries:
    """The times at which waits in the queue are over. Of an entry only the time in its ``expires_at`` counts."""

    __slots__ = ("_heap", "_ties")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._ties = count()

    def add(self, entry: Entry, at: float) -> None:
        entry.expires_at = at
        heappush(self._heap, (at, next(self._ties), entry))

    def first_at(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].expires_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> list[Entry]:
        """Remove and return the entries whose wait is over."""
        over = list[Entry]()
        while self._heap and self._heap[0][0] <= now:
            at, _, entry = heappop(self._heap)
            if entry.expires_at == at:
                over.append(entry)
        return over
