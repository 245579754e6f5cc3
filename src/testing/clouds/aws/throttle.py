"""EC2's request limits: each action has a token bucket; a call takes a token, or is refused without one.

Sizes and rates are those of "Request throttling for the Amazon EC2 API" in EC2's developer guide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from ....lazy_dataclass import dataclass
from .protocol import EC2Error

NON_MUTATING, UNFILTERED, MUTATING = (100.0, 20.0), (50.0, 10.0), (50.0, 5.0)
OWN = {"RunInstances": (5.0, 2.0), "StartInstances": (5.0, 2.0), "TerminateInstances": (100.0, 5.0)}
READS = ("Describe", "Get", "List", "Search")


@dataclass(slots=True)
class Bucket:
    size: float
    per_s: float
    tokens: float
    at: float

    def take(self, now: float) -> bool:
        self.tokens = min(self.size, self.tokens + (now - self.at) * self.per_s)
        self.at = now
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass(slots=True)
class Buckets:
    """The token buckets of one account in one region."""

    now: Callable[[], float]
    _buckets: dict[tuple[str, float], Bucket] = field(default_factory=dict)

    def take(self, action: str, *, narrowed: bool) -> None:
        """Take a token. ``narrowed``: the call has filters, ids or pages.

        Raises:
            EC2Error: RequestLimitExceeded
        """
        if action in OWN:
            size, per_s = OWN[action]
        elif not action.startswith(READS):
            size, per_s = MUTATING
        else:
            size, per_s = NON_MUTATING if narrowed else UNFILTERED
        now = self.now()
        bucket = self._buckets.setdefault((action, size), Bucket(size, per_s, size, now))
        if not bucket.take(now):
            raise limit_exceeded()


def limit_exceeded() -> EC2Error:
    return EC2Error("RequestLimitExceeded", "Request limit exceeded.", 503)
