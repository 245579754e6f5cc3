"""EC2's request limits as client-side token buckets, as documented by EC2. No clock: callers pass the time."""

from __future__ import annotations

from ..cloud.token_bucket import Bucket
from .api_retries import READS

# "Request throttling for the Amazon EC2 API", EC2 Developer Guide: each action has its own bucket.
NON_MUTATING = (100.0, 20.0)  # (capacity in tokens, tokens refilled per second)
UNFILTERED = (50.0, 10.0)  # the same actions without filters
MUTATING = (50.0, 5.0)  # also for those that the page calls resource-intensive
_UNCATEGORIZED = {"RunInstances": (5.0, 2.0), "TerminateInstances": (100.0, 5.0)}  # others are not called
_UNFILTERED_ACTIONS = frozenset({"DescribeInstances", "DescribeSecurityGroups", "DescribeVolumes"})


def bucket_for(operation: str, *, filtered: bool) -> tuple[str, Bucket]:
    """The bucket for an EC2 action (``"DescribeInstances"``), and the key under which callers share it."""
    if not filtered and operation in _UNFILTERED_ACTIONS:
        return f"{operation}, unfiltered", Bucket(*UNFILTERED)
    size = _UNCATEGORIZED.get(operation) or (NON_MUTATING if operation.startswith(READS) else MUTATING)
    return operation, Bucket(*size)
