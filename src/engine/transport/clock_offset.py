"""Estimate how far a node's clock is from this program's, by the pings that its connection has anyway. No I/O.

A ping that was sent at ``s`` and answered at ``r`` has met the node in between. So the node's time in the answer, less
the middle of the two, is the difference of the clocks, and wrong by half of the round trip at most, however much longer
one way took than the other (RFC 5905, section 8, says so of NTP). Of several pings the one with the shortest round trip
is the most exact, as long as it is new. A ping that is less exact than a later one is forgotten: errors grow alike, so
it will never be better. So few are kept, and a heartbeat compares no more than these.
"""

from __future__ import annotations

from ...lazy_named_tuple import NamedTuple

KEPT = 64  # pings back that are looked at: two minutes when there is one each 2 s
UNANSWERED = 256  # most pings without an answer that are remembered
DRIFT = 100e-6  # largest drift between two clocks: NTP assumes 15 ppm for a clock that is not set, and slews by 500


class Offset(NamedTuple):
    """The node's unix time is the client's monotonic time plus ``seconds``, within ``error_s`` either way."""

    seconds: float
    error_s: float


class _Seen(NamedTuple):
    offset: Offset
    at: float  # when the ping was sent
    turn: int  # how many were answered before it


class ClockOffset:
    """The offset of one node's clock. Times are the client's monotonic ones, in seconds; the node's are unix times.

    CLOCK-1: the true offset lies within the error of the estimate, if the node's clock is right by `DRIFT` since the
    ping that the estimate is from.
    CLOCK-2: after a step of the node's clock, estimates are from pings after it as soon as one shows the step.
    """

    def __init__(self) -> None:
        self._sent: dict[int, float] = {}  # number of a ping -> when it was sent
        self._last = 0
        self._turns = 0  # pings that were answered
        self._seen: list[_Seen] = []  # newest last; each is more exact than the later ones

    def ping(self, now: float) -> int:
        """Note a ping that is sent now; return its number, which no other has."""
        self._last = max(self._last + 1, int(now * 1000))
        self._sent[self._last] = now
        while len(self._sent) > UNANSWERED:
            del self._sent[next(iter(self._sent))]
        return self._last

    def pong(self, number: int, clock_s: float, now: float) -> None:
        """Handle the answer to a ping, with the node's time; an answer to a ping that was not sent is ignored."""
        sent = self._sent.pop(number, None)
        if sent is None or not clock_s:
            return
        for earlier in [each for each in self._sent if each < number]:  # their answers were lost with a connection
            del self._sent[earlier]
        self._turns += 1
        seen = _Seen(Offset(clock_s - (sent + now) / 2, (now - sent) / 2), sent, self._turns)
        aged, oldest = _aged(seen, now), self._turns - KEPT
        self._seen = [each for each in self._seen if each.turn > oldest and _says_more(_aged(each, now), aged)]
        self._seen.append(seen)

    def estimate(self, now: float) -> Offset | None:
        """Return the offset as it is known now; None: no ping was answered yet."""
        aged = [_aged(each, now) for each in self._seen]
        return min(aged, key=lambda each: each.error_s, default=None)


def _aged(seen: _Seen, now: float) -> Offset:
    return Offset(seen.offset.seconds, seen.offset.error_s + max(0.0, now - seen.at) * DRIFT)


def _says_more(one: Offset, newer: Offset) -> bool:
    """Return whether a ping is worth keeping beside a newer one: it is not from before a step of the clock."""
    return one.error_s < newer.error_s and _agree(one, newer)


def _agree(one: Offset, other: Offset) -> bool:
    """Return whether there is an offset within the errors of both."""
    return abs(one.seconds - other.seconds) <= one.error_s + other.error_s
