"""Estimate the offset between a node's clock and the client's, from the heartbeat's pings. No I/O.

A ping is sent at ``s``, the node adds its time to the answer, and the answer arrives at ``r``. The offset is the node's
time less the middle of ``s`` and ``r``. Its error is at most half of the round trip, even if one direction took longer
than the other (RFC 5905, section 8, states this for NTP). Of several recent pings, the one with the shortest round trip
is the most exact. As the clocks drift, the errors of all pings grow at the same rate, so a ping that is less exact than
a later ping can be dropped for good. So only a few pings are kept, and a heartbeat compares only these.
"""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple

KEPT = 64  # only the last 64 answered pings are used: two minutes at one ping each 2 s
UNANSWERED = 256  # largest number of unanswered pings to remember
# largest drift between two clocks, in seconds per second. For comparison: NTP assumes a drift of 15 ppm, and corrects a
# clock by up to 500 ppm.
DRIFT = 100e-6


class Offset(NamedTuple):
    """The node's unix time is the client's monotonic time plus ``seconds``, within ``error_s`` either way."""

    seconds: float
    error_s: float


class _Seen(NamedTuple):
    offset: Offset
    at: float  # time of the client's clock when the ping was sent
    turn: int  # number of pings that were answered before this one


class ClockOffset:
    """The offset of one node's clock. Times in seconds: monotonic for the client, unix time for the node.

    CLOCK-1: the true offset lies within the error of the estimate, if the node's clock has drifted by at most `DRIFT`
    since the ping of the estimate.
    CLOCK-2: after a step of the node's clock, estimates use only pings after the step, as soon as a ping shows the
    step.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}  # number of a ping -> time when it was sent
        self._last = 0
        self._turns = 0  # number of answered pings
        self._seen: list[_Seen] = []  # newest last; each ping is more exact than all later pings

    def ping(self, now: float) -> int:
        """Record a ping that is sent now. Return its number, which is unique for this connection."""
        self._last = max(self._last + 1, int(now * 1000))
        self._sent[self._last] = now
        while len(self._sent) > UNANSWERED:
            del self._sent[next(iter(self._sent))]
        return self._last

    def pong(self, number: int, clock_s: float, now: float) -> None:
        """Handle the answer to a ping, with the node's time. An answer to an unknown ping is ignored."""
        sent = self._sent.pop(number, None)
        if sent is None or not clock_s:
            return
        # the answers to earlier pings were lost with a connection
        for earlier in [each for each in self._sent if each < number]:
            del self._sent[earlier]
        self._turns += 1
        seen = _Seen(Offset(clock_s - (sent + now) / 2, (now - sent) / 2), sent, self._turns)
        aged, oldest = _aged(seen, now), self._turns - KEPT
        self._seen = [each for each in self._seen if each.turn > oldest and _says_more(_aged(each, now), aged)]
        self._seen.append(seen)

    def estimate(self, now: float) -> Offset | None:
        """Return the best estimate of the offset at time ``now``; None: no ping was answered yet."""
        aged = [_aged(each, now) for each in self._seen]
        return min(aged, key=lambda each: each.error_s, default=None)


def _aged(seen: _Seen, now: float) -> Offset:
    return Offset(seen.offset.seconds, seen.offset.error_s + max(0.0, now - seen.at) * DRIFT)


def _says_more(one: Offset, newer: Offset) -> bool:
    """Return whether an older ping is still useful: it is more exact than ``newer``, and the clock was not set in
    between.
    """
    return one.error_s < newer.error_s and _agree(one, newer)


def _agree(one: Offset, other: Offset) -> bool:
    """Return whether both estimates can be right: their error ranges overlap."""
    return abs(one.seconds - other.seconds) <= one.error_s + other.error_s
