"""Decide whether a call is repeated: which failures are transient, which calls are idempotent, back-off with jitter."""

from __future__ import annotations

from typing import Literal

Trouble = Literal["throttled", "unreached", "broken", "lost"]

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

# (longest pause after the first try, doubled each time; longest pause of all; number of tries).
# A throttled call is tried until its time is up, as it will go through at some time.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}

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


def retry(kind: Trouble | None, attempt: int, *, safe: bool, luck: float) -> float | None:
    """Seconds to wait before the next try; None: do not retry.

    ``attempt`` counts from 1. ``safe``: the call is idempotent. A call that was throttled or never arrived was not
    carried out, so it is retried in any case. ``luck``: in [0, 1), for full jitter ("Exponential Backoff And Jitter",
    AWS Architecture Blog).
    """
    if kind is None or (not safe and kind in {"broken", "lost"}):
        return None
    first, most, tries = _BACK_OFF[kind]
    if attempt >= tries:
        return None
    return luck * min(most, first * 2.0 ** min(attempt - 1, 30))


def _is_no_capacity(code: str) -> bool:
    """Return whether the code is one for missing capacity, which has status 500 or 503, but does not pass soon."""
    return "Capacity" in code
