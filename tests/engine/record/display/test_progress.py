"""A map's rate and the time that it will still take follow from what has been done, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.display.pool_view import STEP_S, WINDOW_S, Progress


def steady(rate: float, until_s: float, *, total: int | None = None, began_at: float = 0.0) -> Progress:
    """A map that does ``rate`` items a second, one by one."""
    progress = Progress("f", total, began_at)
    for number in range(1, int(rate * until_s) + 1):
        progress.reached(number, began_at + number / rate)
    return progress


def test_before_anything_is_done_nothing_is_known() -> None:
    progress = Progress("f", 10, 5.0)
    progress.reached(0, 5.0)
    assert (progress.rate(6.0), progress.left_s(6.0)) == (0.0, None)


def test_the_rate_is_that_of_late() -> None:
    progress = steady(1.0, 100)
    for number in range(101, 301):
        progress.reached(number, 100 + (number - 100) / 10)
    assert progress.rate(120.0) == pytest.approx(10.0, rel=0.05)


def test_after_a_long_silence_the_rate_falls() -> None:
    progress = steady(10.0, 20)
    assert progress.rate(20.0) == pytest.approx(10.0, rel=0.05)
    assert progress.rate(200.0) == pytest.approx(1.0, rel=0.05)


def test_items_that_are_more_than_they_said_have_no_total() -> None:
    progress = steady(1.0, 3, total=2)
    assert (progress.total, progress.left_s(4.0)) == (None, None)


@given(st.floats(0.5, 50), st.floats(WINDOW_S, 40), st.floats(0, 1e9))
def test_a_steady_map_ends_when_it_says(rate: float, until_s: float, began_at: float) -> None:
    total = int(rate * until_s) * 3
    progress = steady(rate, until_s, total=total, began_at=began_at)
    now = began_at + progress.done / rate
    assert progress.rate(now) == pytest.approx(rate, rel=0.1 + 1 / (rate * WINDOW_S))
    assert progress.left_s(now) == pytest.approx((total - progress.done) / progress.rate(now))


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 1000)), max_size=50), st.floats(0, 100))
def test_any_progress_has_a_rate_and_keeps_little(steps: list[tuple[float, int]], later: float) -> None:
    progress, now, done = Progress("f", 20_000, 0.0), 0.0, 0
    for pause, items in steps:
        now, done = now + pause, done + items
        progress.reached(done, now)
        assert len(progress._points) <= WINDOW_S / STEP_S + 2
    assert progress.rate(now + later) >= 0
    left_s = progress.left_s(now + later)
    assert left_s is None or left_s >= 0
