"""TCP ports reserved for ranks that run on this node: bound, so that no other process gets them, but not listening.

None of them is an ephemeral port of the kernel. Seconds pass (an import of torch) between the release of a port and the
moment when the rank listens on it. In that time the kernel could give an ephemeral port to another process's
connection; or a peer of the rank that connects to the port could be connected to itself.
"""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from pathlib import Path

import msgpack

from ..wire.messages import Ports, PortsTaken, Run, RunFlag
from .port_book import PortBook

# below the ephemeral ports of Linux, 32768 to 60999, and the node ports of Kubernetes, from 30000
PORTS = range(20000, 30000)
TRIES = 64
KEPT = 32  # ports on offer; the limit is also an eighth of this process's descriptors
_LISTENS = int(RunFlag.LISTENS)
# if so few are left, more are opened: one message serves many generations, each with at most this many ports per node
FEW = 16


class FreePorts:
    """The sockets for the ports of a `PortBook`."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._others = _ephemeral_ports()
        most = max(2, min(KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
        self._is_requested = False  # whether the client waits for an offer
        self.book = PortBook(self._keep, self._close, most=most, few=FEW * most // KEPT)

    def open(self) -> tuple[int, ...]:
        """Open the first ports at the first call; return the ports on offer."""
        if not self._sockets:
            self.book.fill()
        return tuple(self.book.offered)

    def named(self, run: Run) -> None:
        """Reserve the port on which a rank will listen, until the rank's attempt is delivered or has ended."""
        if run.world is None or not run.flags & _LISTENS:
            return
        fields = msgpack.unpackb(run.world)
        try:
            port = fields["peers"][fields["rank"]]["port"] if "peers" in fields else fields["head_port"]
        except (LookupError, TypeError):  # another kind of client, which sends no port
            return
        if isinstance(port, int):
            self.book.named(run.attempt, port)

    def compare(self, message: PortsTaken) -> None:
        self.book.compare(message.taken, message.unsent)
        self._is_requested = True

    def offer(self) -> Ports | None:
        """Return an offer if the client has requested one or few ports are left; None otherwise."""
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
        """Bind a free port, and return its number. Raises OSError if this host has no free port left."""
        sock = socket.socket()
        try:
            self._bind(sock)
        except OSError:
            sock.close()
            raise
        # Without this option, the rank could not bind the port for a minute after a connection to it was closed.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = sock.getsockname()[1]
        self._sockets[port] = sock
        return port

    def _bind(self, sock: socket.socket) -> None:
        for _ in range(TRIES):
            port = PORTS[int.from_bytes(os.urandom(2)) % len(PORTS)]
            if port not in self._others:
                with suppress(OSError):  # the port is in use
                    sock.bind(("", port))
                    return
        sock.bind(("", 0))  # an ephemeral port that the kernel chooses


def _ephemeral_ports() -> range:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        low, high = "32768", "60999"
    return range(int(low), int(high) + 1)
