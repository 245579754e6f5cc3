"""Heartbeats of a connection: ping the node, measure its silence, and react to it.

After `QUIET_S` of silence, a second connection is tried while the current one stays open; after `SILENCE_S`, the
current one is cut. `actors.failure_detector` decides what a cut connection means for the node.

The silence of a node is time in which it could have answered, and did not. Data from a node proves that the node runs,
but not that it receives data: if nothing reaches the node, the lines that a task prints every few seconds still arrive
here. Two things prove that the node receives data: an answer to a ping, or much data from the node, as TCP stops
sending when a window of data is not acknowledged. Much data counts as a proof because, on a slow network, the answer to
a ping may wait behind earlier data for long. In the other direction, a ping may wait behind data of this process. While
much data waits here, any data from the node counts as a proof. While the event loop is blocked, for example by
unpickling gigabytes, it reads nothing. A timer that fires late reveals this: during the delay, no data was read, and no
ping was sent that the node could have answered.

HEARD-1: time by which a timer was late does not count as silence: no node is given up for it.
HEARD-2: all other time counts: a node without data is given up after `SILENCE_S` in which the loop ran.
HEARD-3: a node that does not receive data is given up just as soon, however often it sends small data.
HEARD-4: a node that sends anything is not given up while much data from before the ping is still in flight to it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from .route import Route

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
        """Record the time at which the next timer is due."""
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


HEARTBEAT_S = 2.0  # seconds between two pings
# seconds of silence before a second connection is tried: TCP doubles the pauses between retransmissions, so a new
# connection may work before the old one does
QUIET_S = 3.5
# seconds of silence before the connection is cut: with the reconnect, a dead network is detected in 9 s, and a stall of
# 3 s has no effect
SILENCE_S = 6.0
# Heartbeats of all nodes are due at multiples of this time, so for 1,000 nodes the loop wakes up eight times a second.
TOGETHER_S = 0.125


class Pinged(Protocol):
    """The interface of a connection that a heartbeat pings and cuts."""

    def ping(self) -> None: ...

    def cut(self, cause: str, *, silent: bool = ..., early_s: float = ...) -> None: ...


class Heartbeat:
    """The heartbeat of one connection.

    ``same_host``: the node is on this computer, so no network can cause its silence.
    """

    def __init__(self, route: Route, connection: Pinged, *, same_host: bool, beats: Beats) -> None:
        self.silence = SilenceClock()
        self._route, self._connection, self._same_host, self._beats = route, connection, same_host, beats
        self._ping_at = 0.0
        self.beats_at: float | None = None  # time of the next beat; None: the heartbeat is stopped

    def start(self) -> None:
        now = time.monotonic()
        self._ping_at = now + HEARTBEAT_S
        self._beat_in(HEARTBEAT_S, now)

    def stop(self) -> None:
        self.beats_at = None

    def beat(self) -> None:
        now = time.monotonic()
        silent_s = self.silence.lasts(now)
        if silent_s >= SILENCE_S:
            self._connection.cut(f"silent for {SILENCE_S:g} s", silent=not self._same_host)
            return
        if silent_s < QUIET_S:
            self._route.begin_no_other()
        else:
            self._route.begin_another(self._reached_anew)
        if now + TOGETHER_S > self._ping_at:  # otherwise it is too early for a ping: this beat only checks the silence
            self._connection.ping()
            self._ping_at = now + HEARTBEAT_S
        limit_s = QUIET_S if silent_s < QUIET_S else SILENCE_S
        self._beat_in(min(self._ping_at - now, limit_s - silent_s), now)

    def _beat_in(self, seconds: float, now: float) -> None:
        self.beats_at = at = together(now + seconds, now)
        self.silence.expect(at)
        self._beats.add(self, at)

    def _reached_anew(self) -> None:
        """Switch to the new connection, unless the current one received data again or was cut."""
        silent_s = self.silence.lasts(time.monotonic())
        if silent_s < QUIET_S:
            self._route.begin_no_other()
        elif self.beats_at is not None:
            self._connection.cut(f"silent for {silent_s:.0f} s, and reached anew", early_s=SILENCE_S - silent_s)


class Beats:
    """The due beats of all connections of a pool. Beats that are due at the same time share one timer of the loop."""

    def __init__(self) -> None:
        self._due: dict[float, list[Heartbeat]] = {}

    def add(self, heartbeat: Heartbeat, at: float) -> None:
        """Schedule a heartbeat for time ``at`` of the loop. It does nothing if its `beats_at` has changed by then."""
        if (due := self._due.get(at)) is None:
            self._due[at] = due = []
            asyncio.get_running_loop().call_later(at - time.monotonic(), self._ring, at)
        due.append(heartbeat)

    def _ring(self, at: float) -> None:
        for heartbeat in self._due.pop(at):
            if heartbeat.beats_at != at:
                continue
            try:
                heartbeat.beat()
            except Exception as error:  # noqa: BLE001  other heartbeats must still run
                context = {"message": "a heartbeat of a connection failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


def together(at: float, now: float) -> float:
    """Return ``at``, the time of a beat, rounded down to a multiple of `TOGETHER_S` unless the beat is due soon."""
    return at if at - now < 2 * TOGETHER_S else at - at % TOGETHER_S
