"""When a call is made again, and when not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.providers.aws.api_retries import Trouble, idempotent, retry, trouble

kinds = st.sampled_from(["throttled", "unreached", "broken", "lost"])
lucks = st.floats(0, 1, exclude_max=True)


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
def test_only_idempotent_calls_are_repeated(operation: str, token: bool, safe: bool) -> None:
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
def test_create_without_an_answer_is_not_repeated(attempt: int, luck: float) -> None:
    assert retry("lost", attempt, safe=False, luck=luck) is None
    assert retry("broken", attempt, safe=False, luck=luck) is None
    assert retry(None, attempt, safe=True, luck=luck) is None


@given(lucks)
def test_call_that_was_not_carried_out_is_repeated(luck: float) -> None:
    assert retry("throttled", 1000, safe=False, luck=luck) is not None
    assert retry("unreached", 1, safe=False, luck=luck) is not None
    assert retry("unreached", 4, safe=True, luck=luck) is None
