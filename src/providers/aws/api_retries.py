"""Decide when AWS may be called, and when a call is repeated: rate limits, transient failures, idempotency. No I/O."""

from __future__ import annotations

from ..cloud.retries import Trouble
from ..cloud.token_bucket import Bucket

THROTTLED = frozenset({
    "EC2ThrottledException", "PriorRequestNotComplete", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
    "TooManyRequestsException",
})  # fmt: skip
# Class names of exceptions of botocore and this package: without a connection, no request was sent ...
UNREACHED = frozenset({"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ConnectionError"})
# ... or the request was sent, and may have been carried out, but the response is missing.
LOST = frozenset({"ConnectionClosedError", "HTTPClientError", "IncompleteReadError", "ReadTimeoutError",
                  "ResponseParserError", "ResponseStreamingError", "TimedOut",
                  "UnreadableAnswer"})  # fmt: skip
BROKEN = frozenset({"InternalError", "InternalFailure", "InternalServerError", "RequestTimeout", "ServiceUnavailable",
                    "ServiceUnavailableException", "Unavailable"})  # fmt: skip

READS = ("Describe", "Get", "Head", "List", "Lookup", "Search", "Simulate", "DecodeAuthorizationMessage")
_SETS = ("Authorize", "Cancel", "Delete", "Modify", "Revoke", "CreateTags", "StopInstances", "TerminateInstances")

# "Request throttling for the Amazon EC2 API", EC2 Developer Guide: each action has its own bucket.
NON_MUTATING = (100.0, 20.0)  # (capacity in tokens, tokens refilled per second)
UNFILTERED = (50.0, 10.0)  # the same actions without filters
MUTATING = (50.0, 5.0)  # also for the actions that the page calls resource-intensive
# Outrider calls no other uncategorized actions.
_UNCATEGORIZED = {"RunInstances": (5.0, 2.0), "TerminateInstances": (100.0, 5.0)}
_UNFILTERED_ACTIONS = frozenset({"DescribeInstances", "DescribeSecurityGroups", "DescribeVolumes"})


def bucket_for(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """Return the bucket for an EC2 action (``"DescribeInstances"``), and the key under which callers share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(READS) else MUTATING)
    return operation, Bucket(*size)


def idempotent(operation: str, *, token: bool) -> bool:
    """Return whether the call is idempotent. ``token``: it has a ClientToken, which is an idempotency key."""
    return token or operation.startswith(READS + _SETS)


def trouble(code: str, status: int) -> Trouble | None:
    """Return the kind of a transient failure; None: a permanent failure."""
    if code in THROTTLED or status == 429:
        return "throttled"
    if code in UNREACHED:
        return "unreached"
    if code in LOST:
        return "lost"
    # Missing capacity has status 500 or 503 too, but lasts longer than a transient failure.
    if code in BROKEN or (status >= 500 and "Capacity" not in code):
        return "broken"
    return None
