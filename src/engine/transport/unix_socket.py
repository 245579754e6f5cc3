"""Connections to the unix sockets of machines that are on this computer."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable

from ...providers.base import Machine
from ..node.channels import peer_uid

Interpose = Callable[[Machine, socket.socket], Awaitable[socket.socket]]  # puts a proxy between: see `testing.chaos`


def connected(path: str) -> socket.socket:
    """Return a socket that is connected to the one there, if it is this program's user who listens.

    Its path may be longer than the 107 bytes of ``sun_path``: the directory's descriptor leads to it.

    Raises:
        OSError: also at once, where nobody takes connections at present: nobody is kept waiting.
    """
    sock = socket.socket(socket.AF_UNIX)
    sock.setblocking(False)
    try:
        anchor = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)  # noqa: PTH120
        try:
            sock.connect(f"/proc/self/fd/{anchor}/{os.path.basename(path)}")  # noqa: PTH119
        finally:
            os.close(anchor)
        if (uid := peer_uid(sock)) != os.geteuid():
            raise PermissionError(f"user {uid} listens at {path}, and not the user of this program")
    except BaseException:
        sock.close()
        raise
    return sock
