"""The free ports of a node, numbered in the order in which the node opens them.

No I/O: the owner of the book opens and closes the ports.
The client takes ports in this order, so one number describes which ports it has taken: all with a lower number. Both
sides send absolute numbers, never differences. If a message was lost, late, or handled twice, the next message corrects
the effect, and no port can be kept by the node and forgotten by the client.

    PORTS-1  a port is offered, or kept for one attempt, or awaits its attempt, or is closed
    PORTS-2  a port is closed when its attempt is delivered or over, or when the client reports that none will use it
    PORTS-3  after each turn more than `few` ports are offered, whatever the client has taken
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection


class PortBook:
    """The ports that a node offers and keeps.

    Args:
        open_port: opens a port and returns it.
        close_port: closes a port.
        most: the number of ports on offer after `fill`.
        few: with at most so many ports on offer, more must be opened: see `is_short`.
    """

    def __init__(self, open_port: Callable[[], int], close_port: Callable[[int], None], *, most: int, few: int) -> None:
        self._open_port, self._close_port = open_port, close_port
        self._most, self._few = most, few
        self.taken = 0  # the number of the first offered port: the client has taken all ports before it
        self.offered: deque[int] = deque()
        self.awaiting: dict[int, None] = {}  # taken ports whose attempt has not arrived yet
        self.kept: dict[int, int] = {}  # attempt -> its port, until the attempt is delivered or over

    @property
    def is_short(self) -> bool:
        return len(self.offered) <= self._few

    def fill(self) -> None:
        """Open ports until `most` are on offer. Raises OSError if this host has no free port left."""
        while len(self.offered) < self._most:
            self.offered.append(self._open_port())

    def named(self, attempt: int, port: int) -> None:
        """Keep the port on which an attempt will listen. A port that was not offered here is ignored."""
        if port in self.offered:
            self._take(self.taken + self.offered.index(port) + 1)
        if port in self.awaiting:
            del self.awaiting[port]
            self.kept[attempt] = port

    def close_for(self, attempt: int) -> None:
        """Close the port of an attempt that is being delivered, or has ended."""
        port = self.kept.pop(attempt, None)
        if port is not None:
            self._close_port(port)

    def compare(self, taken: int, unsent: Collection[int]) -> None:
        """Handle the client's count of taken ports. All attempts that the client sent before this message have arrived.

        Args:
            taken: how many ports the client has taken.
            unsent: the taken ports whose attempts are not sent yet.
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
