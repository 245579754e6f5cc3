"""Measure the silence of a node: the time in which it could have answered, and did not. Pure.

Data from a node proves that the node runs, but not that it receives data: if nothing reaches the node, the lines that a
task prints every few seconds still arrive here. Two things prove that the node receives data: an answer to a ping, or
much data from the node, as TCP stops sending when a window of data is not acknowledged. Much data counts as a proof
because, on a slow network, the answer to a ping may wait behind earlier data for long. In the other direction, a ping
may wait behind data of this process. While much data waits here, any data from the node counts as a proof.
While the event loop is blocked, for example by unpickling gigabytes, it reads nothing. A timer that fires late reveals
this: during the delay, no data was read, and no ping was sent that the node could have answered.

HEARD-1: time by which a timer was late does not count as silence: no node is given up for it.
HEARD-2: all other time counts: a node without data is given up after `SILENCE_S` in which the loop ran.
HEARD-3: a node that does not receive data is given up just as soon, however often it sends small data.
HEARD-4: a node that sends anything is not given up while much data from before the ping is still in flight to it.
"""

from __future__ import annotations

LATE_S = 0.1  # a smaller delay of a timer is noise
# Received data of this size proves that the node receives data, too: it is more than TCP's first window, 10 segments of
# 1,460 bytes (RFC 6928). Later windows are larger.
MUCH_BYTES = 16 << 10

# Unacknowledged data of this size delays a ping: it takes 2 s at 1 Mbit/s, the time between two pings.
BACKLOG_BYTES = 256 << 10


class SilenceClock:
    def __init__(self) -> None:
        self.heard_at = 0.0  # when the node last proved that it receives data
        self._received_bytes = 0  # bytes received since `heard_at`
        self._due_at: float | None = None

    def expect(self, at: float) -> None:
        """Set when the next timer is due."""
        self._due_at = at

    def answered(self, now: float) -> None:
        """Handle the node's answer to a greeting or to a ping."""
        self.heard_at, self._received_bytes = now, 0

    def received(self, size_bytes: int, sent_bytes: float = 0) -> bool:
        """Count received bytes, and return whether they prove that the node also receives data. This is a hot path.

        ``sent_bytes``: bytes that were sent to the node and are not acknowledged.
        """
        self._received_bytes += size_bytes
        return self._received_bytes >= MUCH_BYTES or sent_bytes >= BACKLOG_BYTES

    def lasts(self, now: float) -> float:
        """Return the seconds of silence up to ``now``. Call it from the timer, and whenever the silence is needed."""
        late_s = 0.0 if self._due_at is None else now - self._due_at
        if late_s > LATE_S:
            self.heard_at = min(now, self.heard_at + late_s)
            self._due_at = now
        return now - self.heard_at
