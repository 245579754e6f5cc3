"""The newest metrics that tasks have logged, for a display that is updated from time to time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ...lazy_named_tuple import NamedTuple
from ..wire.log_records import Metrics, unpacked

if TYPE_CHECKING:
    from ..api.sink import Origin

WAITING = 64  # maximum number of unread messages that are kept; if there are more, the oldest are dropped
NAMES = 100  # maximum number of different metrics
JOBS = 1000  # maximum number of jobs for which the lowest rank is remembered


class Newest(NamedTuple):
    """The newest values of all metrics.

    ``origin`` and ``step``: the task and the step of the last log record. ``values``: metric -> value, in order of
    arrival.
    """

    origin: Origin
    step: int | None
    values: dict[str, float]


class NewestMetrics:
    """The newest value of each metric.

    Of the ranks of a broadcast, only the lowest one that logs counts, usually rank 0.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Origin, bytes]] = deque(maxlen=WAITING)
        self._lowest: dict[int, int] = {}  # job of a broadcast -> lowest rank that has logged
        self._newest: Newest | None = None

    def add(self, origin: Origin, records: bytes) -> None:
        """Store a message of log records without decoding it. Called on the event loop."""
        if origin.rank is not None:
            lowest = self._lowest.get(origin.job)
            if lowest is not None and origin.rank > lowest:
                return
            if lowest is None and len(self._lowest) >= JOBS:
                del self._lowest[next(iter(self._lowest))]
            self._lowest[origin.job] = origin.rank
        self._waiting.append((origin, records))

    def read(self) -> Newest | None:
        """Decode the stored messages, and return the newest values; None: there are none yet.

        Called by the thread that draws.
        """
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
