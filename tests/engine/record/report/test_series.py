"""Curves with fewer points look the same: their extremes stay, and no value is invented."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.report import charts
from outrider.engine.record.report.charts import band, thinned

values = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])
steps = st.lists(st.integers(0, 5000), min_size=1, max_size=400).map(sorted)


def check(xs: Sequence[float], ys: Sequence[float], buckets: int, kept: Sequence[int]) -> None:
    """SERIES-1, SERIES-2 and SERIES-3, of any way to choose points."""
    assert list(kept) == sorted(set(kept)), "SERIES-2: in their order, each once"
    assert {0, len(xs) - 1} <= set(kept), "SERIES-1: both ends"
    width = (xs[-1] - xs[0]) or 1.0
    if len(xs) <= 2 * buckets + 2:
        assert len(kept) == len(xs)
        return
    by_bucket: dict[int, list[int]] = {}
    for place, x in enumerate(xs):
        by_bucket.setdefault(min(buckets - 1, int((x - xs[0]) / width * buckets)), []).append(place)
    for places in by_bucket.values():
        here = [place for place in places if place in set(kept)]
        inner = [place for place in here if place not in (0, len(xs) - 1)]
        assert len(inner) <= 3, "SERIES-2: at most three of a bucket"
        numbers = [ys[place] for place in places if math.isfinite(ys[place])]
        if numbers:
            shown = [ys[place] for place in here if math.isfinite(ys[place])]
            assert (min(shown), max(shown)) == (min(numbers), max(numbers)), "SERIES-1: the extremes"
        if len(numbers) < len(places):
            assert any(not math.isfinite(ys[place]) for place in here), "SERIES-3: a gap stays one"


@given(steps, st.data(), st.integers(1, 40))
def test_extremes_ends_and_gaps_stay(xs: list[int], data: st.DataObject, buckets: int) -> None:
    ys = data.draw(st.lists(values, min_size=len(xs), max_size=len(xs)))
    check(xs, ys, buckets, thinned(xs, ys, buckets))


XS = list(range(100))
BROKEN = {
    "SERIES-1": ([math.sin(x) for x in XS], "kept.update((low, high, gap))", "kept.update((low, gap))"),
    "SERIES-2": ([math.sin(x) for x in XS], "kept.update((low, high, gap))", "kept.update(range(place + 1))"),
    "SERIES-3": ([math.nan if x % 7 else 1.0 for x in XS], "kept.update((low, high, gap))", "kept.update((low, high))"),
}


@pytest.mark.parametrize("invariant", BROKEN)
def test_the_check_falls_without_its_guard(invariant: str) -> None:
    ys, guard, broken = BROKEN[invariant]
    text = Path(charts.__file__).read_text()
    assert guard in text
    module: dict[str, Any] = {
        "__name__": "outrider.engine.record.report.broken_series",
        "__package__": "outrider.engine.record.report",
    }
    exec(
        compile(text.replace(guard, broken).replace("@dataclass(frozen=True, slots=True)\n", ""), "broken", "exec"),
        module,
    )
    check(XS, ys, 10, thinned(XS, ys, 10))
    with pytest.raises(AssertionError, match=invariant):
        check(XS, ys, 10, module["thinned"](XS, ys, 10))


def test_one_bucket_of_equal_xs_has_its_extremes() -> None:
    assert thinned([3.0] * 9, [1, 5, 2, 0, 4, 3, 2, 2, 1], 1) == [0, 1, 3, 8]


def test_a_band_has_all_values_within_it() -> None:
    lines = [(list(range(100)), [rank + x / 100 for x in range(100)]) for rank in range(20)]
    made, distances = band(lines, 10)
    assert len(made.xs) == 10
    assert made.low[0] == 0.0
    assert made.high[-1] == pytest.approx(19.99)
    for low, tenth, middle, ninetieth, high in zip(
        made.low, made.tenth, made.middle, made.ninetieth, made.high, strict=True
    ):
        assert low <= tenth <= middle <= ninetieth <= high
    assert max(range(20), key=distances.__getitem__) in (0, 19)


def test_a_band_of_nothing_is_empty() -> None:
    assert band([([], [])], 10)[0].xs == []
    assert band([([1, 2], [math.nan, math.inf])], 10) == (charts.Band([], [], [], [], [], []), [0.0])
