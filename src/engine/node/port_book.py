"""The record of a node's reserved ports: it offers ports to the client, which assigns them to ranks.

No I/O: the record's owner opens and closes the ports. Ports are numbered in the order in which the node opens them. The
client assigns (takes) them in this order, so one number says which ports it has taken: all with a lower number. Both
sides send this number, never a difference. If a message is lost, late, or handled twice, the next message corrects the
record, so that the node does not keep a port that the client has forgotten.

    PORTS-1  a port is offered, or kept for one attempt, or awaits its attempt, or is closed
    PORTS-2  a port is closed when its attempt is delivered or over, or when the client reports that none will use it
    PORTS-3  after each turn (the handling of a message) more than `few` ports are offered, whatever was taken
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection


class PortBook:
    """The record of the ports that a node offers to the client or keeps for a rank.

    Args:
        open_port: opens a port and returns it.
        close_port: closes a port.
        most: number of offered ports after `fill`.
        few: `is_short` is true if so many ports or fewer are offered.
    """

    def __init__(self, open_port: Callable[[], int], close_port: Callable[[int], None], *, most: int, few: int) -> None:
        self._open_port, self._close_port = open_port, close_port
        self._most, self._few = most, few
        self.taken = 0  # how many ports the client has taken; also the number of the first offered port
        self.offered: deque[int] = deque()
        self.awaiting: dict[int, None] = {}  # taken ports whose attempt has not arrived yet
        self.kept: dict[int, int] = {}  # attempt -> its port, until the attempt is delivered to a worker or over

    @property
    def is_short(self) -> bool:
        return len(self.offered) <= self._few

    def fill(self) -> None:
        """Open ports until ``most`` are offered. Raises OSError if this host has no free port left."""
        while len(self.offered) < self._most:
            self.offered.append(self._open_port())

    def named(self, attempt: int, port: int) -> None:
        """Keep the port on which a rank's attempt will listen. A port that this record did not offer is ignored."""
        if port in self.offered:
            self._take(self.taken + self.offered.index(port) + 1)
        if port in self.awaiting:
            del self.awaiting[port]
            self.kept[attempt] = port

    def close_for(self, attempt: int) -> None:
        """Close the port of an attempt that is being delivered to a worker, or has ended."""
        port = self.kept.pop(attempt, None)
        if port is not None:
            self._close_port(port)

    def compare(self, taken: int, unsent: Collection[int]) -> None:
        """Compare this record with the client's: close the ports that no attempt will use.

        These are the ports for which an attempt is expected here but not by the client. (All attempts that the client
        sent before have arrived.)

        Args:
            taken: how many ports the client has taken.
            unsent: the taken ports whose attempts the client has not sent yet.
        """
        self._take(taken)
        self.taken = max(self.taken, taken)
        for port in [port for port in self.awaiting if port not in unsent]:
            del self.awaiting[port]
            self._close_port(port)

    def _take(self, taken: int) -> None:
        while self.offered and self.taken < taken:
            self.awaiting[self.offered.popleft()] = None
            self.taken += 1
