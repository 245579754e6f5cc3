"""A token bucket on the client's side, which keeps the client within a cloud's rate limit."""

from __future__ import annotations

from dataclasses import field

import anyio

from ...lazy_dataclass import dataclass


@dataclass(slots=True)
class Bucket:
    """A token bucket without a clock: callers pass the time.

    If no token is available, the caller reserves the next token and waits until it is available.
    """

    capacity: float
    per_s: float
    _tokens: float = field(init=False)
    _at: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self._tokens = self.capacity

    def take(self, now: float) -> float:
        """Reserve a token. Return the seconds until the token is available. Later callers get later tokens."""
        self._refill(now)
        self._tokens -= 1
        return max(0.0, -self._tokens / self.per_s)

    def give_back(self) -> None:
        """Return a token that was not used, because the caller has stopped waiting."""
        self._tokens = min(self.capacity, self._tokens + 1)

    def used(self, taken: float, now: float) -> None:
        """Record that a token of the time ``taken`` was used only at ``now``, because its request waited for another
        limit.

        Otherwise, the next request could follow this request too soon.
        """
        self._refill(now)
        self._tokens -= min((now - taken) * self.per_s, 1.0)

    def throttled(self, now: float) -> None:
        """Remove the available tokens after the cloud refused a request: other users of the account have used the
        cloud's limit.
        """
        self._refill(now)
        self._tokens = min(self._tokens, 0.0)

    def _refill(self, now: float) -> None:
        self._tokens = min(self.capacity, self._tokens + max(0.0, now - self._at) * self.per_s)
        self._at = max(self._at, now)


async def wait_for_token(bucket: Bucket) -> None:
    """Wait until a token is available for the caller. On cancellation, the token is given back."""
    wait_s = bucket.take(anyio.current_time())
    if wait_s > 0:
        try:
            await anyio.sleep(wait_s)
        except BaseException:  # the wait was cancelled
            bucket.give_back()
            raise
