"""The newest value of each metric, of one rank of a broadcast."""

from __future__ import annotations

from outrider.engine.api.sink import Origin
from outrider.engine.record.display.notebook import NAMES, WAITING, NewestMetrics
from outrider.engine.wire import log_records


def records(step: int, **values: float) -> bytes:
    return log_records.packed([log_records.metrics(1.0, step, values)])[0]


def test_newer_values_replace_older_ones_and_names_stay() -> None:
    metrics = NewestMetrics()
    assert metrics.read() is None
    metrics.add(Origin("fit", 1, 0, 0), records(1, loss=0.5, accuracy=0.1))
    metrics.add(Origin("fit", 1, 0, 0), records(2, loss=0.4))
    newest = metrics.read()
    assert newest is not None
    assert (newest.step, newest.values) == (2, {"loss": 0.4, "accuracy": 0.1})


def test_of_a_broadcast_the_lowest_rank_that_logs_counts() -> None:
    metrics = NewestMetrics()
    for rank in (2, 1, 3, 2):
        metrics.add(Origin("fit", 1, rank, rank), records(1, loss=float(rank)))
    newest = metrics.read()
    assert newest is not None
    assert (newest.origin.rank, newest.values) == (1, {"loss": 1.0})


def test_what_is_kept_is_bounded_and_garbage_is_skipped() -> None:
    metrics = NewestMetrics()
    metrics.add(Origin("fit", 1), b"\xff\xff")
    for number in range(10 * WAITING):
        metrics.add(Origin("fit", number), records(number, **{f"metric {number}": 1.0}))
    newest = metrics.read()
    assert newest is not None
    assert list(newest.values) == [f"metric {number}" for number in range(9 * WAITING, 10 * WAITING)]
    for number in range(2 * NAMES):
        metrics.add(Origin("fit", number), records(number, **{f"other {number}": 1.0}))
        metrics.read()
    assert newest is not None
    assert len(newest.values) == NAMES
