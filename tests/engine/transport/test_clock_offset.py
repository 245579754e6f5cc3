"""A node's clock is known within half of a ping's round trip, whatever the network does to it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outrider.engine.transport import diagnostics
from outrider.engine.transport.diagnostics import DRIFT, KEPT_PINGS, UNANSWERED_PINGS, ClockOffset

SLACK_S = 1e-5  # of floats as large as unix times
delays = st.floats(1e-5, 3.0)
pings = st.lists(st.tuples(st.floats(0.0, 30.0), delays, delays), min_size=1, max_size=20)


def played(clock: ClockOffset, trips: list[tuple[float, float, float]], offset_s: float, drift: float) -> float:
    """Send pings, each some time after the answer to the last; return when the last answer has come. ``offset_s``: of
    the node's clock at 0, from where on it gains ``drift`` seconds in each second.
    """
    now = 0.0
    for pause, there, back in trips:
        sent = now + pause
        number = clock.ping(sent)
        now = sent + there + back
        clock.pong(number, sent + there + offset_s + drift * (sent + there), now)
    return now


@given(pings, st.floats(-1e9, 2e9), st.floats(-DRIFT, DRIFT), st.floats(0.0, 600.0))
def test_the_true_offset_lies_within_the_error(
    trips: list[tuple[float, float, float]], offset_s: float, drift: float, later_s: float
) -> None:
    """CLOCK-1."""
    clock = ClockOffset()
    now = played(clock, trips, offset_s, drift) + later_s
    estimate = clock.estimate(now)
    assert estimate is not None
    assert abs(estimate.seconds - (offset_s + drift * now)) <= estimate.error_s + SLACK_S


@given(pings, st.floats(-100, 100), st.floats(20, 1e6))
def test_a_step_of_the_clock_is_followed(
    trips: list[tuple[float, float, float]], offset_s: float, step_s: float
) -> None:
    """CLOCK-2."""
    clock = ClockOffset()
    now = played(clock, trips, offset_s, 0.0)
    number = clock.ping(now)
    clock.pong(number, now + 0.01 + offset_s + step_s, now + 0.02)
    estimate = clock.estimate(now + 0.02)
    assert estimate is not None
    assert abs(estimate.seconds - (offset_s + step_s)) <= 0.011


def test_the_first_invariant_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK-1: an error that does not grow with time."""
    monkeypatch.setattr(diagnostics, "DRIFT", 0.0)
    with pytest.raises(AssertionError):
        test_the_true_offset_lies_within_the_error.hypothesis.inner_test([(0, 1e-3, 1e-3)], 0.0, DRIFT, 600.0)  # type: ignore[attr-defined]


def test_the_second_invariant_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK-2: pings from before a step count on, and had a shorter way."""
    monkeypatch.setattr(diagnostics, "_agree", lambda *_: True)
    with pytest.raises(AssertionError):
        test_a_step_of_the_clock_is_followed.hypothesis.inner_test([(0, 1e-3, 1e-3)], 0.0, 20.0)  # type: ignore[attr-defined]


def test_of_several_pings_the_shortest_counts() -> None:
    clock = ClockOffset()
    assert clock.estimate(0.0) is None
    now = played(clock, [(0, 1.0, 0.0), (0, 0.001, 0.001), (0, 0.0, 1.0)], 5.0, 0.0)
    estimate = clock.estimate(now)
    assert estimate is not None
    assert estimate.seconds == pytest.approx(5.0, abs=1e-6)
    assert estimate.error_s == pytest.approx(0.001 + DRIFT * 1.002)


def test_pings_of_one_millisecond_have_numbers_of_their_own() -> None:
    clock = ClockOffset()
    assert len({clock.ping(1.0) for _ in range(10)}) == 10


def test_an_answer_to_nothing_and_one_without_a_time_say_nothing() -> None:
    clock = ClockOffset()
    clock.pong(7, 100.0, 1.0)
    clock.pong(clock.ping(1.0), 0.0, 1.1)
    assert clock.estimate(2.0) is None


def test_it_keeps_no_more_than_it_needs() -> None:
    clock = ClockOffset()
    for at in range(2 * UNANSWERED_PINGS):
        clock.ping(float(at))
    assert len(clock._sent) == UNANSWERED_PINGS
    for at in range(
        1000, 1000 + 2 * KEPT_PINGS
    ):  # each takes longer than the one before, which so may be the best for long
        took_s = (at - 999) * 0.001
        clock.pong(clock.ping(float(at)), at + took_s / 2, at + took_s)
    assert len(clock._seen) == KEPT_PINGS
    assert not clock._sent, "those before a ping that was answered are lost"


@given(pings, st.floats(-1e9, 2e9), st.floats(0.0, 600.0))
def test_what_is_forgotten_would_not_have_been_the_best(
    trips: list[tuple[float, float, float]], offset_s: float, later_s: float
) -> None:
    clock, all_of_them, now = ClockOffset(), list[tuple[float, float]](), 0.0
    for trip in trips:
        sent, there, back = now + trip[0], *trip[1:]
        number, now = clock.ping(sent), sent + there + back
        assume(sent + there + offset_s)  # 0 is the time of a node that does not say it
        clock.pong(number, sent + there + offset_s, now)
        all_of_them.append((sent, (now - sent) / 2))
        estimate = clock.estimate(now + later_s)
        assert estimate is not None
        best = min(error_s + (now + later_s - at) * DRIFT for at, error_s in all_of_them)
        assert estimate.error_s == pytest.approx(best)


def test_pings_that_are_as_good_as_each_other_are_not_all_kept() -> None:
    clock = ClockOffset()
    for at in range(1000):
        clock.pong(clock.ping(float(at)), at + 0.001, at + 0.002)
    assert len(clock._seen) == 1
