"""TCP ports kept free for ranks that run on this node: bound, so that no other process gets them, not listening.

None is an ephemeral port of the kernel: between the release of a port and the rank's listening there lie seconds (an
import of torch), in which another process's connection could get an ephemeral port; or a peer of the rank, which tries
to connect to the port meanwhile, could be connected to itself.
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

PORTS = range(20000, 30000)  # below Linux's ephemeral ports, 32768 to 60999, and Kubernetes' from 30000 on
TRIES = 64
KEPT = 32  # and at most an eighth of this process's descriptors
_LISTENS = int(RunFlag.LISTENS)
FEW = 16  # at so few, more are opened: one message for many generations. A generation takes no more of one node


class FreePorts:
    """The sockets of the ports that a `PortBook` offers and keeps."""

    def __init__(self) -> None:
        self._sockets: dict[int, socket.socket] = {}
        self._others = _ephemeral_ports()
        most = max(2, min(KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))
        self._is_requested = False  # whether the client has requested an offer
        self.book = PortBook(self._keep, self._close, most=most, few=FEW * most // KEPT)

    def open(self) -> tuple[int, ...]:
        """Open the first ports, unless that was done before; return the ports that are offered."""
        if not self._sockets:
            self.book.fill()
        return tuple(self.book.offered)

    def named(self, run: Run) -> None:
        """Keep the port on which a rank is to listen until its attempt is delivered, or over."""
        if run.world is None or not run.flags & _LISTENS:
            return
        fields = msgpack.unpackb(run.world)
        try:
            port = fields["peers"][fields["rank"]]["port"] if "peers" in fields else fields["head_port"]
        except (LookupError, TypeError):  # another kind of client, which names no port
            return
        if isinstance(port, int):
            self.book.named(run.attempt, port)

    def compare(self, message: PortsTaken) -> None:
        self.book.compare(message.taken, message.unsent)
        self._is_requested = True

    def offer(self) -> Ports | None:
        """Return the offer that is due, as the client has requested one or few ports were left; None: none is due."""
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
        """Keep a free port, and return it. Raises OSError if this host has none left."""
        sock = socket.socket()
        try:
            self._bind(sock)
        except OSError:
            sock.close()
            raise
        # Else the rank could not bind it for a minute after it has served a connection.
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
        sock.bind(("", 0))  # any port of the kernel's


def _ephemeral_ports() -> range:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        low, high = "32768", "60999"
    return range(int(low), int(high) + 1)
