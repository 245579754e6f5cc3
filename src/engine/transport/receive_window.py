"""The bytes of a blob that a host may send before an acknowledgement. No I/O, no clock.

The window must be large enough for the network, and small enough as a queue: other data on the connection, such as the
result of a short task, waits behind data that was sent before it. The window follows the rate; `send_ahead` is the
counterpart for the other direction.

AHEAD-4: once the rate is known, the window is the number of bytes that arrive in `QUEUED_S` and two round trips, at
    least the initial window, and at most `MOST_BYTES` unless the initial window is larger.
"""

from __future__ import annotations

from .send_ahead import Rate

QUEUED_S = 0.004
MOST_BYTES = 4 << 20  # equal to `ssh.WINDOW_BYTES`, for the same reason: sshd copies its buffer whenever it grows


class ReceiveWindow:
    def __init__(self, window_bytes: int, round_trip_s: float | None) -> None:
        """Begin with ``window_bytes``, which the host may send at first. ``round_trip_s`` None: unknown."""
        self.bytes = self._least = window_bytes
        self._left = window_bytes  # bytes of the window that the host may still send
        self._round_trip_s = round_trip_s
        self._rate = Rate()

    def taken(self, count: int, now: float) -> int:
        """Handle that ``count`` bytes were read. Return the number of bytes to grant the host now; 0: none yet."""
        self._left -= count
        self._follow_rate(count, now)
        if 2 * self._left >= self.bytes:
            return 0
        more, self._left = self.bytes - self._left, self.bytes
        return more

    def _follow_rate(self, count: int, now: float) -> None:
        if self._round_trip_s is None:
            return
        rate = self._rate.taken(count, now)
        if rate is not None:
            wanted = int(rate * (QUEUED_S + 2 * self._round_trip_s))
            self.bytes = max(self._least, min(wanted, MOST_BYTES))
