"""The free ports of a node, numbered in the order in which the node opens them. Pure: the owner opens and closes them.

The client takes ports in their order, so that one number says which it has taken: all below it. Both sides send
absolute numbers, never differences. The next message repairs the effect of one that was lost, late, or handled twice,
and no port can be kept by the node and forgotten by the client.

    PORTS-1  a port is offered, or kept for one attempt, or awaits its attempt, or is closed
    PORTS-2  a port is closed when its attempt is delivered or over, or when the client says that none will come for it
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
        most: how many ports are offered at most.
        few: at so few offered ports others are opened.
    """

    def __init__(self, open_port: Callable[[], int], close_port: Callable[[int], None], *, most: int, few: int) -> None:
        self._open_port, self._close_port = open_port, close_port
        self._most, self._few = most, few
        self.taken = 0  # the number of the first port that is offered: the client has taken those before it
        self.offered: deque[int] = deque()
        self.awaiting: dict[int, None] = {}  # taken ports whose attempt has not come yet
        self.kept: dict[int, int] = {}  # attempt -> its port, until the attempt is delivered or over

    @property
    def is_short(self) -> bool:
        return len(self.offered) <= self._few

    def fill(self) -> None:
        """Open ports until as many as possible are offered. Raises OSError where this host has none left."""
        while len(self.offered) < self._most:
            self.offered.append(self._open_port())

    def named(self, attempt: int, port: int) -> None:
        """Handle an attempt that will listen on ``port``. A port that is not kept here is ignored."""
        if port in self.offered:
            self._take(self.taken + self.offered.index(port) + 1)
        if port in self.awaiting:
            del self.awaiting[port]
            self.kept[attempt] = port

    def close_for(self, attempt: int) -> None:
        """Close the port of an attempt that is delivered now, or over."""
        port = self.kept.pop(attempt, None)
        if port is not None:
            self._close_port(port)

    def compare(self, taken: int, unsent: Collection[int]) -> None:
        """Handle the client's count of taken ports. Every attempt that it had sent before has arrived.

        Args:
            taken: how many ports the client has taken.
            unsent: those of them whose attempts will still come.
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
