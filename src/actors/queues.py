"""The queues of waiting tasks. Pure. One queue holds tasks for any node, one holds tasks for each rank, and the line
holds tasks that need amounts of a node.
"""

from __future__ import annotations

from sys import maxsize

from .interfaces import Task
from .retries import QUEUED, Entry
from .task_queue import TaskQueue
from .waiting_line import WaitingLine


class Queues:
    def __init__(self, line: WaitingLine) -> None:
        self.anywhere = TaskQueue()
        self.pinned: dict[int, TaskQueue] = {}  # tasks that are bound to a rank (``on=``), by rank
        self.line = line  # the line of tasks that need amounts, including those that are also bound to a rank
        self.ranks = maxsize  # number of ranks (ready nodes) that the pool is to have

    def has_place_for(self, task: Task) -> bool:
        """Return whether the pool is to have the rank that the task is bound to; True for a task without a rank."""
        return task.on is None or task.on < self.ranks

    def add(self, entry: Entry) -> None:
        if entry.task.needs is not None:
            self.line.add(entry)
        elif entry.task.on is None:
            self.anywhere.append(entry)
        else:
            self.pinned.setdefault(entry.task.on, TaskQueue()).append(entry)

    def put_back(self, entry: Entry) -> None:
        """Queue a task whose attempt was lost or taken back, in front of the tasks that have not begun."""
        if entry.task.needs is not None:
            self.line.add(entry)
        elif entry.task.on is None:
            self.anywhere.appendleft(entry)
        else:
            self.pinned.setdefault(entry.task.on, TaskQueue()).appendleft(entry)

    def ended(self, entry: Entry) -> None:
        """Handle the end of a task that waits in one of the queues."""
        task = entry.task
        if task.needs is not None:
            self.line.ended(entry)
        elif queue := self.anywhere if task.on is None else self.pinned.get(task.on):
            queue.ended()

    def missed(self, ranks: int) -> list[int]:
        """Return the ranks >= ``ranks`` for which tasks wait. If ``ranks`` is 0, tasks for any node count as waiting
        for rank 0.
        """
        if ranks and not self.pinned and not self.line:
            return []
        missed = {rank for rank in (*self.pinned, *self.line.ranks) if rank >= ranks}
        return sorted(missed | {0} if (self.anywhere or self.line) and not ranks else missed)

    def take(self, rank: int) -> list[Entry]:
        """Remove and return the tasks that wait for ``rank``; for rank 0, also the tasks that wait for any node."""
        waiting = [*self.pinned.pop(rank, ()), *self.line.drop(self.line.lanes({rank} if rank else {0, None}))]
        if rank == 0:
            waiting += self.anywhere
            self.anywhere.clear()
        return [entry for entry in waiting if entry.state == QUEUED]

    def clear(self) -> None:
        self.anywhere.clear()
        self.pinned.clear()
        self.line.drop(self.line.lanes())
