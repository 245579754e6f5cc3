"""The rules for repeating a call: which trouble passes, what may be done twice, back-off with full jitter. Pure."""

from __future__ import annotations

from typing import Literal

Trouble = Literal["throttled", "unreached", "broken", "lost"]

THROTTLED = frozenset({
    "EC2ThrottledException", "PriorRequestNotComplete", "RequestLimitExceeded", "RequestThrottled",
    "RequestThrottledException", "SlowDown", "Throttling", "ThrottlingException", "ThrottledException",
    "TooManyRequestsException",
})  # fmt: skip
# botocore's and ours, by the class: no connection came about, so nothing was asked ...
UNREACHED = frozenset({"EndpointConnectionError", "ConnectTimeoutError", "ProxyConnectionError", "ConnectionError"})
# ... or it was asked, perhaps done, and the answer is missing.
LOST = frozenset({"ConnectionClosedError", "HTTPClientError", "IncompleteReadError", "ReadTimeoutError",
                  "ResponseParserError", "ResponseStreamingError", "TimedOut",
                  "UnreadableAnswer"})  # fmt: skip
BROKEN = frozenset({"InternalError", "InternalFailure", "InternalServerError", "RequestTimeout", "ServiceUnavailable",
                    "ServiceUnavailableException", "Unavailable"})  # fmt: skip

# The longest pause of the first try (doubled with each one), the longest of all, and how many tries there are.
# A throttled call is tried until its time is up: it will go through, later.
_BACK_OFF: dict[Trouble, tuple[float, float, float]] = {
    "throttled": (1.0, 10.0, float("inf")),
    "unreached": (0.5, 2.0, 4),
    "broken": (0.5, 5.0, 6),
    "lost": (0.5, 5.0, 6),
}

READS = ("Describe", "Get", "Head", "List", "Lookup", "Search", "Simulate", "DecodeAuthorizationMessage")
_SETS = ("Authorize", "Cancel", "Delete", "Modify", "Revoke", "CreateTags", "StopInstances", "TerminateInstances")


def idempotent(operation: str, *, token: bool) -> bool:
    """Return whether the call is idempotent. ``token``: it carries a ClientToken of the caller's as idempotency key."""
    return token or operation.startswith(READS) or operation.startswith(_SETS)


def trouble(code: str, status: int) -> Trouble | None:
    """Return the kind of passing trouble that an answer is; None: it is a real answer."""
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
    """Seconds to wait before the next try; None: there is none.

    ``attempt`` counts from 1. ``safe``: the call is idempotent. One that was throttled or that never arrived was not
    carried out, so it is tried again in any case. ``luck``: from [0, 1), for full jitter ("Exponential Backoff And
    Jitter", AWS Architecture Blog).
    """
    if kind is None or (not safe and kind in {"broken", "lost"}):
        return None
    first, most, tries = _BACK_OFF[kind]
    if attempt >= tries:
        return None
    return luck * min(most, first * 2.0 ** min(attempt - 1, 30))


def _is_no_capacity(code: str) -> bool:
    """EC2 says these with status 500 or 503, and saying them again at once is what they will do."""
    return "Capacity" in code
