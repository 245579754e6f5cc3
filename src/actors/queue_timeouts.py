"""The times at which tasks have waited in the queue for too long: their ``queue_timeout``. Pure."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from .retries import Entry


class Expiries:
    """The times at which waits in the queue are over. Of an entry only the time in its ``expires_at`` counts."""

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
        over = list[Entry]()
        while self._heap and self._heap[0][0] <= now:
            at, _, entry = heappop(self._heap)
            if entry.expires_at == at:
                over.append(entry)
        return over
