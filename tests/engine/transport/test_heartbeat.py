"""When the beats of a pool's connections are made: at the same moments, and none too late."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.transport.heartbeat import HEARTBEAT_S, QUIET_S, SILENCE_S, TOGETHER_S, together

times = st.floats(0.0, 1e6)


@given(times, st.floats(0.0, HEARTBEAT_S))
def test_no_beat_is_later_than_it_is_due(now: float, in_s: float) -> None:
    assert now <= together(now + in_s, now) <= now + in_s


@given(times)
def test_the_beats_of_many_connections_are_made_together(now: float) -> None:
    first = together(now + HEARTBEAT_S, now)
    assert abs(first / TOGETHER_S - round(first / TOGETHER_S)) < 1e-6
    assert first > now + HEARTBEAT_S - TOGETHER_S - 1e-6


@given(times)
def test_the_limits_of_a_silence_are_met_exactly(now: float) -> None:
    """It is seen when it has lasted for so long, and after one early beat at most."""
    for limit_s in (QUIET_S, SILENCE_S):
        early = together(now + limit_s, now)
        assert together(now + limit_s, early) == now + limit_s
