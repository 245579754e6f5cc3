"""Unix sockets in the machines' private directories. Their paths may be of any length, although a socket address
(``sun_path``) has only 107 bytes.
"""

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
        OSError: The socket cannot be created; for example, the path exists already.
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
    """Yield a second, short name of the path that fits into a socket address. The name is valid only within the
    ``with`` block.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
