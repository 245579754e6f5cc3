"""A client-side token bucket that keeps to a cloud's limit on requests."""

from __future__ import annotations

from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass


@dataclass(slots=True)
class Bucket:
    """A token bucket, without a clock: callers pass the time.

    If no token is available, the caller reserves the next one and waits for it.
    """

    capacity: float
    per_s: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Take a token; return the seconds until it is available. Later callers get later tokens."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self) -> None:
        """Return an unused token, because the caller stopped waiting."""
        self._tokens = min(self.capacity, self._tokens + 1)

    def used(self, taken: float, now: float) -> None:
        """Record that a token, available at ``taken``, was used only at ``now``, since its request waited for another
        limit.

        Without this, the next request could follow sooner than the limit allows, by the delay of this one.
        """
        self._refill(now)
        self._tokens -= min((now - taken) * self.per_s, 1.0)

    def throttled(self, now: float) -> None:
        """Empty this bucket after the cloud refused a request: other users of the account share the cloud's own
        bucket.
        """
        self._refill(now)
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)


async def wait_for_token(bucket: Bucket) -> None:
    """Wait until the caller's token is available. On cancellation, return the token."""
    wait_s = bucket.take(anyio.current_time())
    if wait_s > 0:
        try:
            await anyio.sleep(wait_s)
        except BaseException:  # on cancellation
            bucket.give_back()
            raise
