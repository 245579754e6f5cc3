"""How often a call may be made."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.cloud.calls import Bucket


@given(st.integers(1, 100), st.floats(0.1, 50), st.lists(st.floats(0, 0.2), min_size=1, max_size=200))
def test_a_bucket_never_lets_more_through_than_ec2s_own(capacity: int, per_s: float, gaps: list[float]) -> None:
    ours, now, ec2, at = Bucket(capacity, per_s), 0.0, float(capacity), 0.0
    for gap in gaps:
        now += gap
        due = now + ours.take(now)
        ec2 = min(capacity, ec2 + (due - at) * per_s) - 1
        at = due
        assert ec2 > -1e-6


@given(st.integers(1, 20), st.floats(0.1, 50), st.integers(1, 30))
def test_waiting_callers_get_tokens_in_order(capacity: int, per_s: float, calls: int) -> None:
    ours = Bucket(capacity, per_s)
    waits = [ours.take(0.0) for _ in range(calls)]
    assert waits == sorted(waits)
    assert waits[:capacity] == [0.0] * min(calls, capacity)


def test_a_throttled_call_slows_all_that_share_the_bucket() -> None:
    ours = Bucket(100, 20)
    ours.throttled(0.0)
    assert [ours.take(0.0) for _ in range(3)] == [0.05, 0.1, 0.15]


def test_a_token_given_back_is_the_next_ones() -> None:
    ours = Bucket(1, 2)
    assert [ours.take(0.0), ours.take(0.0)] == [0.0, 0.5]
    ours.give_back()
    assert ours.take(0.0) == 0.5


@given(st.floats(0.1, 50), st.lists(st.floats(0, 30), min_size=1, max_size=50))
def test_a_request_that_waited_for_another_limit_makes_the_next_ones_as_late(per_s: float, late: list[float]) -> None:
    ours, now, sent = Bucket(1, per_s), 0.0, []
    for by in late:
        due = now + ours.take(now)
        now = due + by
        ours.used(due, now)
        sent.append(now)
    assert all(later - earlier >= 1 / per_s - 1e-6 for earlier, later in pairwise(sent))
