"""The times at which queued tasks end because they have waited for their ``queue_timeout``. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count

from .retries import Entry
from .task_queue import FEW


class Expiries:
    """A heap of the times at which queued tasks time out. An entry is valid only if its time is the task's
    ``expires_at``.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Entry]] = []
        self._ties = count()
        self._forgotten = 0  # upper limit of the number of obsolete heap entries

    def add(self, entry: Entry, at: float) -> None:
        entry.expires_at = at
        heappush(self._heap, (at, next(self._ties), entry))

    def ended(self, entry: Entry) -> None:
        """Forget the time of ``entry``, whose wait in the queue is over. Many obsolete heap entries are removed in one
        pass.
        """
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
