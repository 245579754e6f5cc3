"""When a call is made again, and when not."""

from __future__ import annotations

import pytest

from outrider.providers.aws.errors import idempotent, trouble
from outrider.providers.cloud.calls import Trouble


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
