"""Flow control of blobs over SSH: how many bytes may be in flight to a host, and from it. No I/O, no clock.

The bytes in flight must be enough for the network, but few enough as a queue: other data on the connection, such as the
start of a short task or its result, waits behind data that was sent before it. An SSH server extends a channel's window
when it has passed data on, which shows how much data it has passed on. The window alone is no useful limit: sshd's
window of 2 MiB takes 4 ms at 500 MB/s, but 160 ms at 100 Mbit/s.

AHEAD-1: once the rate is known, the limit of the bytes in flight is the sum of two numbers: the bytes that pass in
    `SENT_S`, at least `LEAST_BYTES` (a server may report nothing for less) and at most `MOST_BYTES`; and the bytes that
    pass in two round trips.
AHEAD-2: if a server reports nothing for `SILENT_S`, the limit doubles, again and again, so that the transfer never
    stops.
AHEAD-4: once the rate is known, the window is the number of bytes that arrive in `QUEUED_S` and two round trips, at
    least the initial window, and at most `MOST_WINDOW_BYTES` unless the initial window is larger.
"""

from __future__ import annotations

import struct

SENT_S = 0.002
LEAST_BYTES, MOST_BYTES = 128 << 10, 512 << 10  # least and most bytes in flight, without those of the round trips
FASTEST = 600e6  # rate in bytes per second that is assumed until it is measured
MEASURED_S = 0.02
SILENT_S = 0.02
_MIN_RTT_AT = 148  # offset of tcpi_min_rtt (microseconds) in struct tcp_info of <linux/tcp.h>


class Rate:
    """A meter of the rate at which bytes are passed on, in intervals of at least `MEASURED_S`."""

    def __init__(self) -> None:
        self._taken, self._since = 0, -1.0

    def taken(self, count: int, now: float) -> float | None:
        """Count bytes that were passed on. Return the rate in bytes per second if an interval ends now; else None."""
        if self._since < 0:
            self._since = now
            return None
        self._taken += count
        if (took_s := now - self._since) < MEASURED_S:
            return None
        rate = self._taken / took_s
        self._taken, self._since = 0, now
        return rate

    def restart(self) -> None:
        """Start a new interval after a pause, which must not count."""
        self._since = -1.0


class SendAhead:
    def __init__(self, round_trip_s: float) -> None:
        self._round_trip_s = round_trip_s
        self.most_bytes = window(MOST_BYTES, round_trip_s)
        self.under_way = 0
        self._rate = Rate()

    @property
    def room(self) -> bool:
        return self.under_way < self.most_bytes

    def sent(self, count: int) -> None:
        self.under_way += count

    def taken(self, count: int, now: float) -> None:
        """Handle a report of the server that it has passed on ``count`` bytes.

        The first report is larger: the server grants its initial window in it. So ``count`` is limited to the bytes
        that are in flight.
        """
        count = min(count, self.under_way)
        self.under_way -= count
        rate = self._rate.taken(count, now)
        if rate is not None:
            queued = min(max(rate * SENT_S, LEAST_BYTES), MOST_BYTES)
            self.most_bytes = int(queued + 2 * rate * self._round_trip_s)

    def silent(self) -> None:
        """Handle that the server passed nothing on for `SILENT_S` while the limit was reached."""
        self.most_bytes *= 2
        self._rate.restart()


def window(near_bytes: int, round_trip_s: float) -> int:
    """Return the number of bytes to have in flight over a connection of which only the round trip is known."""
    return int(near_bytes + 2 * FASTEST * round_trip_s)


def least_round_trip_s(tcp_info: bytes) -> float | None:
    """Return the shortest round trip of a TCP connection from the kernel's ``TCP_INFO``; None: it was not measured."""
    if len(tcp_info) < _MIN_RTT_AT + 4:
        return None
    (microseconds,) = struct.unpack_from("I", tcp_info, _MIN_RTT_AT)
    return None if microseconds in {0, 0xFFFFFFFF} else float(microseconds) / 1e6


QUEUED_S = 0.004
MOST_WINDOW_BYTES = (
    4 << 20
)  # equal to `ssh.WINDOW_BYTES`, for the same reason: sshd copies its buffer whenever it grows


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
            self.bytes = max(self._least, min(wanted, MOST_WINDOW_BYTES))
