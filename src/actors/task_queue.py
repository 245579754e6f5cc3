"""A queue of tasks in which those that are over stay where they are, and are forgotten before they are many. Pure."""

from __future__ import annotations

from collections import deque

from .retries import QUEUED, Entry

FEW = 64  # entries that are over, and stay until their turn


class TaskQueue(deque[Entry]):
    """A queue whose reader passes over entries that are no longer queued. It is told of each that ends in it: when half
    of it may be over, it is gone through once.
    """

    over = 0  # at most so many entries

    def ended(self) -> None:
        self.over += 1
        if self.over > FEW and 2 * self.over > len(self):
            waiting = [entry for entry in self if entry.state == QUEUED]
            self.clear()
            self.extend(waiting)
            self.over = 0
