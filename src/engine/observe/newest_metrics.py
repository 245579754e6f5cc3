"""The newest logged values of tasks, for a display that is drawn from time to time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...lazy_named_tuple import NamedTuple
from ..wire.log_records import Metrics, unpacked

if TYPE_CHECKING:
    from ..runs.logged import Origin

WAITING = 64  # most unread messages that are kept; beyond that, the oldest are dropped
NAMES = 100  # most names of metrics
JOBS = 1000  # most jobs whose lowest rank is remembered


class Newest(NamedTuple):
    """The newest values.

    ``origin`` and ``step`` are from the last record. ``values``: by metric, in order of arrival.
    """

    origin: Origin
    step: int | None
    values: dict[str, float]


class NewestMetrics:
    """The newest value of each metric. In a broadcast only the lowest logging rank counts, usually rank 0."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Origin, bytes]] = deque(maxlen=WAITING)
        self._lowest: dict[int, int] = {}  # job -> lowest rank that has logged
        self._newest: Newest | None = None

    def add(self, origin: Origin, records: bytes) -> None:
        """Keep a message of log records without reading it. Called on the event loop."""
        if origin.rank is not None:
            lowest = self._lowest.get(origin.job)
            if lowest is not None and origin.rank > lowest:
                return
            if lowest is None and len(self._lowest) >= JOBS:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[origin.job] = origin.rank
        self._waiting.append((origin, records))

    def read(self) -> Newest | None:
        """Read the kept messages, and return the newest values; None: no values yet. Called by the drawing thread."""
        while self._waiting:
            origin, records = self._waiting.popleft()
            for record in unpacked(records, 0.0):
                if isinstance(record, Metrics):
                    self._take(origin, record)
        return self._newest

    def _take(self, origin: Origin, record: Metrics) -> None:
        values = {} if self._newest is None else self._newest.values
        for name, value in record.values.items():
            if name in values or len(values) < NAMES:
                values[name] = value
        if values:
            self._newest = Newest(origin, record.step, values)
