"""TCP ports kept free for ranks that run on this node: bound, so that nobody else gets them, not listening.

They are none of those that the kernel gives to whoever wants any. Between letting one go and the rank's listening there
lie seconds (an import of torch), in which another process's connection could get it; or that of a peer of the rank who
tries to connect to it all the while, and would be connected to itself.
"""

from __future__ import annotations

import os
import resource
import socket
from contextlib import suppress
from pathlib import Path

import msgpack

PORTS = range(20000, 30000)  # below Linux's own, 32768 to 60999, and Kubernetes' from 30000 on
TRIES = 64
KEPT = 32  # and no more than an eighth of the descriptors that this process may have
FEW = 16  # so many are left, and more are told: one message for many generations. None takes more of one node


class FreePorts:
    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}
        self._others = _given_by_the_kernel()
        self._most = max(2, min(KEPT, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 8))

    def open(self) -> tuple[int, ...]:
        while len(self._kept) < self._most:
            self._keep()
        return tuple(self._kept)

    def release_for(self, world: bytes) -> tuple[int, ...]:
        """Release the port of a rank that is about to run here; return the ports that are kept instead."""
        fields = msgpack.unpackb(world)
        try:
            port = fields["peers"][fields["rank"]]["port"] if "peers" in fields else fields["head_port"]
            sock = self._kept.pop(port, None)
        except (LookupError, TypeError):  # a client of another kind, that names none
            return ()
        if sock is None:
            return ()
        sock.close()
        if len(self._kept) > FEW * self._most // KEPT:
            return ()
        return tuple(self._keep() for _ in range(self._most - len(self._kept)))

    def close(self) -> None:
        for sock in self._kept.values():
            sock.close()
        self._kept.clear()

    def _keep(self) -> int:
        """Keep a port that is free, and return it. Raises OSError where this host has none left."""
        sock = socket.socket()
        try:
            self._bind(sock)
        except OSError:
            sock.close()
            raise
        # Or whoever it is kept for could not bind it for a minute after it has served a connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port: int = sock.getsockname()[1]
        self._kept[port] = sock
        return port

    def _bind(self, sock: socket.socket) -> None:
        for _ in range(TRIES):
            port = PORTS[int.from_bytes(os.urandom(2)) % len(PORTS)]
            if port not in self._others:
                with suppress(OSError):  # somebody has it
                    sock.bind(("", port))
                    return
        sock.bind(("", 0))  # any that the kernel has


def _given_by_the_kernel() -> range:
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    except OSError:
        low, high = "32768", "60999"
    return range(int(low), int(high) + 1)
