"""The times at which tasks have waited in the queue for too long, by their ``queue_timeout``. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from .retries import Entry
from .task_queue import FEW


class Expiries:
    """The times at which waits in the queue end. An entry is valid only if its time equals ``expires_at`` of the
    task.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._ties = count()
        self._forgotten = 0  # upper bound of the number of obsolete entries

    def add(self, entry: Entry, at: float) -> None:
        entry.expires_at = at
        heappush(self._heap, (at, next(self._ties), entry))

    def ended(self, entry: Entry) -> None:
        """Remove an entry. Obsolete heap entries are cleared before they are many."""
        if entry.expires_at is None:
            return
        entry.expires_at = None
        self._forgotten += 1
        if self._forgotten > FEW and 2 * self._forgotten > len(self._heap):
            self._heap = [each for each in self._heap if each[2].expires_at == each[0]]
            heapify(self._heap)
            self._forgotten = 0

    def first_at(self) -> float | None:
        heap = self._heap
        while heap and heap[0][2].expires_at != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: float) -> list[Entry]:
        over = list[Entry]()
        while self._heap and self._heap[0][0] <= now:
            at, _, entry = heappop(self._heap)
            if entry.expires_at == at:
                over.append(entry)
        return over
