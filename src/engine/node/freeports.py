"""TCP ports reserved for ranks of this node: sockets that are bound, so that no other process gets the ports.

The sockets do not listen. A port is released shortly before its rank starts, and the rank listens on it only seconds
later, after its imports. In that time the kernel could give an ephemeral port to a connection of another process; or
another rank that connects to the port could get the same port as its own, and be connected to itself. Therefore the
reserved ports are outside of the kernel's range of ephemeral ports.

`PortBook` is the record of these ports, without I/O: it offers ports to the client, which assigns them to ranks. Ports
are numbered in the order in which the node opens them. The client assigns (takes) them in this order, so one number
says which ports it has taken: all with a lower number. Both sides send this number, never a difference. If a message is
lost, late, or handled twice, the next message corrects the record, so that the node does not keep a port that the
client has forgotten.

    PORTS-1  a port is offered, or kept for one attempt, or awaits its attempt, or is closed
    PORTS-2  a port is closed when its attempt is delivered or over, or when the client reports that none will use it
    PORTS-3  after each turn (the handling of a message) more than `few` ports are offered, whatever was taken
"""

from __future__ import annotations

import os
import resource
import socket
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import msgpack

from ..wire.messages import Ports, PortsTaken, Run, RunFlag


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


# a range below the ephemeral ports of Linux (32768 to 60999) and below the node ports of Kubernetes (from 30000)
PORTS = range(20000, 30000)
TRIES = 64
KEPT = 32  # ports that the node offers; at most an eighth of this process's descriptor limit
_LISTENS = int(RunFlag.LISTENS)
# with so few ports left, the node opens and offers more in one message; a broadcast takes at most so many per node
FEW = 16


class FreePorts:
    """The sockets that keep the ports of a `PortBook` reserved."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._others = _ephemeral_ports()
        most = max(2, min(KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
        self._is_requested = False  # whether the client waits for a `Ports` message
        self.book = PortBook(self._keep, self._close, most=most, few=FEW * most // KEPT)

    def open(self) -> tuple[int, ...]:
        """Return the ports that the node offers; the first call opens them."""
        if not self._sockets:
            self.book.fill()
        return tuple(self.book.offered)

    def named(self, run: Run) -> None:
        """Reserve the port that a rank's `Run` message names, until a worker gets the attempt or the attempt ends."""
        if run.world is None or not run.flags & _LISTENS:
            return
        fields = msgpack.unpackb(run.world)
        try:
            port = fields["peers"][fields["rank"]]["port"] if "peers" in fields else fields["head_port"]
        except (LookupError, TypeError):  # the client names no port
            return
        if isinstance(port, int):
            self.book.named(run.attempt, port)

    def compare(self, message: PortsTaken) -> None:
        self.book.compare(message.taken, message.unsent)
        self._is_requested = True

    def offer(self) -> Ports | None:
        """Return a `Ports` message if the client has requested one, or if few ports are left; None otherwise."""
        if not self._is_requested and not self.book.is_short:
            return None
        self._is_requested = False
        self.book.fill()
        return Ports(self.book.taken, tuple(self.book.offered))

    def close(self) -> None:
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()

    def _close(self, port: int) -> None:
        self._sockets.pop(port).close()

    def _keep(self) -> int:
        """Reserve a free port, and return its number. Raises OSError if this host has no free port left."""
        sock = socket.socket()
        try:
            self._bind(sock)
        except OSError:
            sock.close()
            raise
        # without this option, nobody could bind the port for a minute after a connection to it was closed
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = sock.getsockname()[1]
        self._sockets[port] = sock
        return port

    def _bind(self, sock: socket.socket) -> None:
        for _ in range(TRIES):
            port = PORTS[int.from_bytes(os.urandom(2)) % len(PORTS)]
            if port not in self._others:
                with suppress(OSError):  # OSError: the port is in use
                    sock.bind(("", port))
                    return
        sock.bind(("", 0))  # no port found: let the kernel choose an ephemeral port


def _ephemeral_ports() -> range:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        low, high = "32768", "60999"
    return range(int(low), int(high) + 1)
