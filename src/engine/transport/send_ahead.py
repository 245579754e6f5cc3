"""The part of a blob that is on its way to a host at a time: enough for the network, and short as a queue.

Other data on the connection, such as the start of a short task, waits behind data that was sent before it. An SSH
server reports how much of a channel's data it has passed on, as it grows its window again; that window alone, 2 MiB
with sshd, is 4 ms at 500 MB/s, and 160 ms at 100 Mbit/s. No I/O, and no clock.

AHEAD-1: once the rate is known, what waits is `QUEUED_S` of it, and twice the round trip; but at least `LEAST_BYTES`,
    for less a server may report nothing, and at most `MOST_BYTES` for a round trip of 0.
AHEAD-2: for a server that reports nothing for `SILENT_S` it is twice as much, and so on: it never stops for this.
"""

from __future__ import annotations

import struct

QUEUED_S = 0.002
LEAST_BYTES, MOST_BYTES = 128 << 10, 512 << 10  # for a round trip of 0
FASTEST = 600e6  # bytes per second, assumed until the rate is known
MEASURED_S = 0.02
SILENT_S = 0.02
_MIN_RTT_AT = 148  # <linux/tcp.h>: struct tcp_info, tcpi_min_rtt, microseconds


class Rate:
    """A meter of the rate at which bytes are taken, over `MEASURED_S` at a time."""

    def __init__(self) -> None:
        self._taken, self._since = 0, -1.0

    def taken(self, count: int, now: float) -> float | None:
        """Return the bytes in a second, if they have been measured for long enough."""
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
        """Handle a pause that is not to count."""
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
        """Handle that the server has passed on so many bytes, or at first that its window has so many."""
        count = min(count, self.under_way)
        self.under_way -= count
        rate = self._rate.taken(count, now)
        if rate is not None:
            queued = min(max(rate * QUEUED_S, LEAST_BYTES), MOST_BYTES)
            self.most_bytes = int(queued + 2 * rate * self._round_trip_s)

    def silent(self) -> None:
        """Handle that nothing was passed on for `SILENT_S` while there was no room."""
        self.most_bytes *= 2
        self._rate.restart()


def window(near_bytes: int, round_trip_s: float) -> int:
    """Return the bytes on their way at once over a connection of which only the round trip is known."""
    return int(near_bytes + 2 * FASTEST * round_trip_s)


def least_round_trip_s(tcp_info: bytes) -> float | None:
    """Return the shortest round trip of a TCP connection, as the kernel's ``TCP_INFO`` has it; None: it has none."""
    if len(tcp_info) < _MIN_RTT_AT + 4:
        return None
    (microseconds,) = struct.unpack_from("I", tcp_info, _MIN_RTT_AT)
    return None if microseconds in {0, 0xFFFFFFFF} else float(microseconds) / 1e6
