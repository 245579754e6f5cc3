"""When a call may be made, and when again: EC2's own buckets as they are documented, and back-off with full jitter.

Pure: it is told the time and the luck.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
                  "ResponseParserError", "ResponseStreamingError", "TimedOut"})  # fmt: skip
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

# "Request throttling for the Amazon EC2 API", EC2 Developer Guide: each action has its own bucket.
NON_MUTATING = (100.0, 20.0)  # tokens it holds, and what comes back in a second
UNFILTERED = (50.0, 10.0)  # the same actions when asked for everything at once
MUTATING = (50.0, 5.0)  # and those the page calls resource-intensive
_UNCATEGORIZED = {
    "CreateTags": (100.0, 10.0),
    "DeleteTags": (100.0, 10.0),
    "DeleteVolume": (100.0, 5.0),
    "DescribeInstanceTopology": (1.0, 1.0),
    "ModifyInstanceMetadataOptions": (100.0, 5.0),
    "RunInstances": (5.0, 2.0),
    "StartInstances": (5.0, 2.0),
    "TerminateInstances": (100.0, 5.0),
}
_UNFILTERED_ACTIONS = frozenset({
    "DescribeInstances", "DescribeInstanceStatus", "DescribeNetworkInterfaces", "DescribeSecurityGroups",
    "DescribeSnapshots", "DescribeSpotInstanceRequests", "DescribeVolumes",
})  # fmt: skip
_READS = ("Describe", "Get", "Head", "List", "Lookup", "Search", "Simulate", "DecodeAuthorizationMessage")
_SETS = ("Authorize", "Cancel", "Delete", "Modify", "Revoke", "CreateTags", "StopInstances", "TerminateInstances")


@dataclass(slots=True)
class Bucket:
    """Tokens for one action. One call takes one; who comes too early is told how long to wait, and has it then."""

    capacity: float
    per_s: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Seconds until the token is there. Below zero, tokens are promised: nobody overtakes."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self) -> None:
        """A token that was taken and not used: whoever took it gave up waiting."""
        self._tokens = min(self.capacity, self._tokens + 1)

    def throttled(self, now: float) -> None:
        """EC2's own bucket is empty: others of the account use it, too. So is this one, for all who share it."""
        self._refill(now)
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)


def bucket(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """The bucket for an EC2 action (``"DescribeInstances"``), and the name under which its users share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(_READS) else MUTATING)
    return operation, Bucket(*size)


def idempotent(operation: str, *, token: bool) -> bool:
    """Whether doing it twice is as doing it once. ``token``: the call carries a ClientToken of the caller's."""
    return token or operation.startswith(_READS) or operation.startswith(_SETS)


def trouble(code: str, status: int) -> Trouble | None:
    """What kind of passing trouble an answer is; None: it is a real answer."""
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
