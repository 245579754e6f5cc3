"""EC2's request limits as client-side token buckets, as documented by EC2. No clock: callers pass the time."""

from __future__ import annotations

from dataclasses import field

from ...lazy_dataclass import dataclass
from .api_retries import READS

# "Request throttling for the Amazon EC2 API", EC2 Developer Guide: each action has its own bucket.
NON_MUTATING = (100.0, 20.0)  # (capacity in tokens, tokens refilled per second)
UNFILTERED = (50.0, 10.0)  # the same actions without filters
MUTATING = (50.0, 5.0)  # also for those that the page calls resource-intensive
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


@dataclass(slots=True)
class Bucket:
    """A token bucket for one action. A caller that comes too early waits for a token that is reserved for it."""

    capacity: float
    per_s: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Take a token; return the seconds until it is there. Later callers wait behind it."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self) -> None:
        """Return a token that was not used, because the caller gave up waiting."""
        self._tokens = min(self.capacity, self._tokens + 1)

    def throttled(self, now: float) -> None:
        """Empty this bucket like EC2's own, which other users of the account share."""
        self._refill(now)
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)


def bucket_for(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """The bucket for an EC2 action (``"DescribeInstances"``), and the key under which callers share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(READS) else MUTATING)
    return operation, Bucket(*size)
