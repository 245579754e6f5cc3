"""A queue of tasks in which ended tasks stay in place until there are many of them. Pure."""

from __future__ import annotations

from collections import deque

from .retries import QUEUED, Entry

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
