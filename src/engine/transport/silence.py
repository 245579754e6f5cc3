"""The silence of a node: for how long it could have answered, and did not. Pure.

Data from a node proves that the node runs, not that it receives: where nothing reaches it any more, a line that a task
prints every few seconds still comes through. Two things prove that it receives: it answers a ping; or it sends much, as
TCP stops after an unacknowledged window. The second counts because an answer waits behind earlier data, which takes
long on a slow network. A ping waits behind this program's own data, too: while that is much, any data from the node
counts.

An event loop that stands still, for example to unpickle gigabytes, reads nothing. A late timer shows this: for so long
nothing was read, and no ping was sent that could have been answered.

HEARD-1: time by which a timer was late is no silence: no node is given up for it.
HEARD-2: all other time is: a node without data is given up after `SILENCE_S` of time in which the loop ran.
HEARD-3: a node that does not receive is given up as soon, however often it sends a little.
HEARD-4: a node that sends anything is not given up while much data from before the ping is still on its way to it.
"""

from __future__ import annotations

LATE_S = 0.1  # less is noise
MUCH_BYTES = 16 << 10  # more than TCP's first window, 10 segments of 1,460 bytes (RFC 6928); later ones are larger

BACKLOG_BYTES = 256 << 10  # takes 2 s at 1 Mbit/s, with which a ping is sent every other second


class SilenceClock:
    def __init__(self) -> None:
        self.heard_at = 0.0  # when the node last proved that it receives
        self._received_bytes = 0  # since then
        self._due_at: float | None = None

    def expect(self, at: float) -> None:
        """Set when the next timer is due."""
        self._due_at = at

    def answered(self, now: float) -> None:
        """Handle the node's answer to a greeting or to a ping."""
        self.heard_at, self._received_bytes = now, 0

    def received(self, size_bytes: int, sent_bytes: float = 0) -> bool:
        """Count received bytes (hot path); return whether they prove that the node receives, too.

        ``sent_bytes``: sent to the node and not acknowledged.
        """
        self._received_bytes += size_bytes
        return self._received_bytes >= MUCH_BYTES or sent_bytes >= BACKLOG_BYTES

    def lasts(self, now: float) -> float:
        """Return the seconds of silence up to ``now``. Call it on the timer, and whenever the silence is needed."""
        late_s = 0.0 if self._due_at is None else now - self._due_at
        if late_s > LATE_S:
            self.heard_at = min(now, self.heard_at + late_s)
            self._due_at = now
        return now - self.heard_at
