"""When a call may be made, and when again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws.pace import Bucket, Trouble, bucket, idempotent, retry, trouble

kinds = st.sampled_from(["throttled", "unreached", "broken", "lost"])
lucks = st.floats(0, 1, exclude_max=True)


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
def test_who_waits_for_a_token_is_not_overtaken(capacity: int, per_s: float, calls: int) -> None:
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


@pytest.mark.parametrize(
    ("operation", "filtered", "size"),
    [
        ("DescribeInstances", True, (100, 20)),
        ("DescribeInstances", False, (50, 10)),
        ("DescribeInstanceTypes", False, (100, 20)),
        ("GetSpotPlacementScores", True, (100, 20)),
        ("CreateFleet", True, (50, 5)),
        ("RunInstances", True, (5, 2)),
        ("TerminateInstances", True, (100, 5)),
        ("AuthorizeSecurityGroupIngress", True, (50, 5)),
    ],
)
def test_buckets_are_as_ec2_documents_them(operation: str, filtered: bool, size: tuple[float, float]) -> None:
    _, ours = bucket(operation, filtered=filtered)
    assert (ours.capacity, ours.per_s) == size


def test_unfiltered_calls_have_a_bucket_of_their_own() -> None:
    assert bucket("DescribeVolumes", filtered=True)[0] != bucket("DescribeVolumes", filtered=False)[0]


@pytest.mark.parametrize(
    ("operation", "token", "safe"),
    [
        ("DescribeInstances", False, True),
        ("GetParameters", False, True),
        ("HeadObject", False, True),
        ("TerminateInstances", False, True),
        ("DeleteSecurityGroup", False, True),
        ("CreateTags", False, True),
        ("CreateFleet", False, False),
        ("CreateFleet", True, True),
        ("RunInstances", False, False),
        ("CreateSecurityGroup", False, False),
        ("PutParameter", False, False),
    ],
)
def test_only_what_may_be_done_twice_is(operation: str, token: bool, safe: bool) -> None:
    assert idempotent(operation, token=token) is safe


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("RequestLimitExceeded", 503, "throttled"),
        ("Throttling", 400, "throttled"),
        ("ThrottlingException", 400, "throttled"),
        ("EC2ThrottledException", 400, "throttled"),
        ("SlowDown", 503, "throttled"),
        ("429", 429, "throttled"),
        ("InternalError", 500, "broken"),
        ("503", 503, "broken"),
        ("Unavailable", 503, "broken"),
        ("EndpointConnectionError", 0, "unreached"),
        ("ConnectionClosedError", 0, "lost"),
        ("TimedOut", 0, "lost"),
        ("InsufficientInstanceCapacity", 500, None),
        ("InsufficientHostCapacity", 503, None),
        ("UnauthorizedOperation", 403, None),
        ("VcpuLimitExceeded", 400, None),
    ],
)
def test_passing_trouble_is_told_from_answers(code: str, status: int, kind: Trouble | None) -> None:
    assert trouble(code, status) == kind


@given(kinds, st.integers(1, 60), st.booleans(), lucks)
def test_pauses_are_bounded_and_grow_with_the_luck(kind: Trouble, attempt: int, safe: bool, luck: float) -> None:
    pause_s = retry(kind, attempt, safe=safe, luck=luck)
    if pause_s is not None:
        assert 0 <= pause_s <= 10
        assert retry(kind, attempt, safe=safe, luck=0.0) == 0.0


@given(st.integers(1, 60), lucks)
def test_what_may_have_been_done_is_not_done_again(attempt: int, luck: float) -> None:
    assert retry("lost", attempt, safe=False, luck=luck) is None
    assert retry("broken", attempt, safe=False, luck=luck) is None
    assert retry(None, attempt, safe=True, luck=luck) is None


@given(lucks)
def test_what_was_not_carried_out_is_tried_again(luck: float) -> None:
    assert retry("throttled", 1000, safe=False, luck=luck) is not None
    assert retry("unreached", 1, safe=False, luck=luck) is not None
    assert retry("unreached", 4, safe=True, luck=luck) is None
