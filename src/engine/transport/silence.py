"""The silence of a node: for how long it could have answered, and did not. Pure.

What a node says by itself proves that it runs, not that it hears: where nothing arrives at it any more, a line that a
task prints every few seconds still comes through. Two things prove that it hears. It answers a ping; or it sends much,
for TCP stops after a window that nobody has acknowledged. The second counts because an answer waits behind whatever
was written before it, and on a slow network that takes long. So does a ping behind what this program has written: while
that is much, whatever the node says counts.

An event loop that stands still, as while a value of gigabytes is unpickled, hears nobody. It shows by a timer that is
late: for so long nothing was read, and no ping was sent that could have been answered.

HEARD-1: time for which a timer was late is no silence: a node that would be heard is not given up for it.
HEARD-2: all other time is: a node that is heard no more is given up after `SILENCE_S` of time in which the loop ran.
HEARD-3: a node that does not hear is given up as soon, however often it says a little.
HEARD-4: a node that says anything is not given up while it has yet to receive much that was sent before the ping.
"""

from __future__ import annotations

LATE_S = 0.1  # below this it is noise
MUCH_BYTES = 16 << 10  # more than TCP's first window, 10 segments of 1,460 bytes (RFC 6928); later ones are larger

BACKLOG_BYTES = 256 << 10  # takes 2 s at 1 Mbit/s, with which a ping is sent every other second


class SilenceClock:
    def __init__(self) -> None:
        self.heard_at = 0.0  # when the node was last known to hear
        self._said_bytes = 0  # since then
        self._due_at: float | None = None

    def expect(self, at: float) -> None:
        """Say when the next timer is due."""
        self._due_at = at

    def answered(self, now: float) -> None:
        """Handle the node's answer to a greeting or to a ping."""
        self.heard_at, self._said_bytes = now, 0

    def said(self, size_bytes: int, sent_bytes: float = 0) -> bool:
        """Count what the node has sent, on a hot path, and return whether that is taken for a sign that it hears.

        ``sent_bytes``: what it was sent and has not acknowledged.
        """
        self._said_bytes += size_bytes
        return self._said_bytes >= MUCH_BYTES or sent_bytes >= BACKLOG_BYTES

    def lasts(self, now: float) -> float:
        """Return the seconds of silence up to ``now``. To be called when the timer rings, and whenever it is asked."""
        late_s = 0.0 if self._due_at is None else now - self._due_at
        if late_s > LATE_S:
            self.heard_at = min(now, self.heard_at + late_s)
            self._due_at = now
        return now - self.heard_at
