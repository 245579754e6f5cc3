"""A bridge from stdin and stdout to a socket that only this host can reach: the executor's socket, or a TCP port."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress

from .pipe import write_all

BEGINS = b"\0outrider bridge\0"  # the first bytes written to stdout; any bytes before them come from a login shell

_CHUNK_BYTES = 1 << 18


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``bridge <path>`` or ``bridge <host> <port>`` until either side closes. Return the exit status.

    Each direction has its own thread, so that a blocked write in one direction does not stop the other direction.
    """
    to = sys.argv[1:] if arguments is None else arguments
    try:
        sock = _connected(*to)
    except OSError as error:
        what = f"the executor's socket {to[0]}" if len(to) == 1 else ":".join(to)
        print(f"outrider: {what} cannot be connected to: {error.strerror or error}", file=sys.stderr)
        return 1
    with sock:
        os.write(1, BEGINS)
        threading.Thread(target=_forward_stdin, args=(sock.fileno(),), daemon=True).start()
        with suppress(OSError):  # OSError: no process reads our stdout any more
            while data := _read(sock.fileno()):
                write_all(1, [data])
    return 0


def _connected(path: str, port: str = "") -> socket.socket:
    """Connect to the unix socket ``path``; with ``port``, connect by TCP to the host ``path``."""
    if port:
        return socket.create_connection((path, int(port)))
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock


def _forward_stdin(to: int) -> None:
    while data := _read(0):
        with suppress(OSError):  # the executor reads no more; its last output must still reach stdout
            write_all(to, [data])
    os._exit(0)  # the client closed stdin: close both directions, as ssh does with a forwarded socket


def _read(fd: int) -> bytes:
    """Return the next bytes of a descriptor; b"" at its end or after an error."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except OSError:
        return b""
