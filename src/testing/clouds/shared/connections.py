"""A mixin for the servers of test clouds: closing the server also closes the server's connections."""

from __future__ import annotations

import socket
from socketserver import TCPServer
from typing import Any


class ClosesConnections(TCPServer):
    """The mixin. It comes before the server class: ``class Server(ClosesConnections, ThreadingHTTPServer)``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for each in list(self._open):
            try:
                each.shutdown(socket.SHUT_RDWR)
            except OSError:  # the connection is already closed
                pass
        super().server_close()
