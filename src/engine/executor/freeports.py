"""TCP ports kept free for ranks that run on this node: bound, so that nobody else gets them, not listening."""

from __future__ import annotations

import socket

import msgpack

KEPT = 32
FEW = 16  # so many are left, and more are told: one message for many generations. None takes more of one node


class FreePorts:
    def __init__(self) -> None:
        self._kept: dict[int, socket.socket] = {}

    def open(self) -> tuple[int, ...]:
        while len(self._kept) < KEPT:
            self._keep()
        return tuple(self._kept)

    def release_for(self, world: bytes) -> tuple[int, ...]:
        """A rank of a generation is about to run here: its port is let go.

        Returns what is kept instead.
        """
        fields = msgpack.unpackb(world)
        try:
            port = fields["peers"][fields["rank"]]["port"] if "peers" in fields else fields["head_port"]
            sock = self._kept.pop(port, None)
        except (LookupError, TypeError):  # a client of another kind, that names none
            return ()
        if sock is None:
            return ()
        sock.close()
        if len(self._kept) > FEW:
            return ()
        return tuple(self._keep() for _ in range(KEPT - len(self._kept)))

    def close(self) -> None:
        for sock in self._kept.values():
            sock.close()
        self._kept.clear()

    def _keep(self) -> int:
        sock = socket.socket()
        # Or whoever it is kept for could not bind it for a minute after it has served a connection.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        self._kept[port] = sock
        return port
