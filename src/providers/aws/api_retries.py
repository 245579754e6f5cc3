"""Decide whether a call of AWS may be repeated: which failures are transient, which calls are idempotent."""

from __future__ import annotations

from ..cloud.retries import Trouble

THROTTLED = frozenset({
    "EC2ThrottledException", "PriorRequestNotComplete", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
    "TooManyRequestsException",
})  # fmt: skip
# Names of classes of botocore and ours: there was no connection, so nothing was asked ...
UNREACHED = frozenset({"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ConnectionError"})
# ... or the call was sent, perhaps carried out, and the answer is missing.
LOST = frozenset({"ConnectionClosedError", "HTTPClientError", "IncompleteReadError", "ReadTimeoutError",
                  "ResponseParserError", "ResponseStreamingError", "TimedOut",
                  "UnreadableAnswer"})  # fmt: skip
BROKEN = frozenset({"InternalError", "InternalFailure", "InternalServerError", "RequestTimeout", "ServiceUnavailable",
                    "ServiceUnavailableException", "Unavailable"})  # fmt: skip

READS = ("Describe", "Get", "Head", "List", "Lookup", "Search", "Simulate", "DecodeAuthorizationMessage")
_SETS = ("Authorize", "Cancel", "Delete", "Modify", "Revoke", "CreateTags", "StopInstances", "TerminateInstances")


def idempotent(operation: str, *, token: bool) -> bool:
    """Return whether the call is idempotent. ``token``: it has a ClientToken, an idempotency key."""
    return token or operation.startswith(READS) or operation.startswith(_SETS)


def trouble(code: str, status: int) -> Trouble | None:
    """The kind of transient failure of an answer; None: it is a real answer."""
    if code in THROTTLED or status == 429:
        return "throttled"
    if code in UNREACHED:
        return "unreached"
    if code in LOST:
        return "lost"
    if code in BROKEN or (status >= 500 and not _is_no_capacity(code)):
        return "broken"
    return None


def _is_no_capacity(code: str) -> bool:
    """Return whether the code is one for missing capacity, which has status 500 or 503, but does not pass soon."""
    return "Capacity" in code
