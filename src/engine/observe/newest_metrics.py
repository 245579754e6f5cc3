"""The newest values of what tasks log, for a display that is drawn now and then."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...lazy_named_tuple import NamedTuple
from ..wire.log_records import Metrics, unpacked

if TYPE_CHECKING:
    from ..runs.logged import Origin

WAITING = 64  # messages that are kept until they are read: where more come, the oldest of them are not read
NAMES = 100  # of metrics that are kept
JOBS = 1000  # whose lowest rank is known


class Newest(NamedTuple):
    """``origin`` and ``step``: of the record that came last. ``values``: of each metric, the first to come first."""

    origin: Origin
    step: int | None
    values: dict[str, float]


class NewestMetrics:
    """The newest value of each metric. Of a broadcast one rank counts: the lowest that logs any, rank 0 as a rule."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Origin, bytes]] = deque(maxlen=WAITING)
        self._lowest: dict[int, int] = {}  # rank, by job
        self._newest: Newest | None = None

    def add(self, origin: Origin, records: bytes) -> None:
        """Keep records as they came, unread. Called on the event loop."""
        if origin.rank is not None:
            lowest = self._lowest.get(origin.job)
            if lowest is not None and origin.rank > lowest:
                return
            if lowest is None and len(self._lowest) >= JOBS:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[origin.job] = origin.rank
        self._waiting.append((origin, records))

    def read(self) -> Newest | None:
        """Read what has come, and return the newest values; None: there are none. Called by the thread that draws."""
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
