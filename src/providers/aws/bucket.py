"""The limits on how often a call may be made: EC2's token buckets, as it documents them. Pure: it is told the time."""

from __future__ import annotations

from dataclasses import dataclass, field

from .retries import READS

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


def bucket_for(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """The bucket for an EC2 action (``"DescribeInstances"``), and the name under which its users share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(READS) else MUTATING)
    return operation, Bucket(*size)
