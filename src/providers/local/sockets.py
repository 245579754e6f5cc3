"""Unix sockets in the machines' private directories, at paths of any length, although ``sun_path`` has 107 bytes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EXECUTOR_SOCKET, SSH_SOCKET = "executor.sock", "ssh.sock"


def listening(path: Path) -> socket.socket:
    """Return a listening socket at the path, to which only this user can connect.

    Raises:
        OSError: It cannot be created; for example, the path exists already.
    """
    sock = socket.socket(socket.AF_UNIX)
    try:
        with short_name(path) as name:
            sock.bind(name)
            Path(name).chmod(0o600)
        sock.listen(64)
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a short name for the path that fits a socket address and is valid within the block."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
