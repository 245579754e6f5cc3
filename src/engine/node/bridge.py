"""Joins this process's stdin and stdout to the executor's socket, for servers that do not forward to sockets."""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Sequence

BEGINS = b"\0outrider bridge\0"  # what came before it on stdout, a login shell said

_CHUNK_BYTES = 1 << 18
_AHEAD_BYTES = 4 << 20  # read from one side and not taken by the other


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``bridge <socket>`` until the executor or the client hangs up. Return the exit status."""
    (path,) = sys.argv[1:] if arguments is None else arguments
    with socket.socket(socket.AF_UNIX) as sock:
        try:
            sock.connect(path)
        except OSError as error:
            print(f"outrider: the executor's socket {path} cannot be connected to: {error.strerror}", file=sys.stderr)
            return 1
        os.write(1, BEGINS)
        sock.setblocking(False)
        for fd in (0, 1):
            os.set_blocking(fd, False)
        _join(sock)
    return 0


def _join(sock: socket.socket) -> None:
    """Copy in both directions at once; a side that does not take what the other gives stops only that direction."""
    inward, outward = bytearray(), bytearray()
    while True:
        poll = select.poll()
        events = (select.POLLIN if len(outward) < _AHEAD_BYTES else 0) | (select.POLLOUT if inward else 0)
        poll.register(sock, events)
        if len(inward) < _AHEAD_BYTES:
            poll.register(0, select.POLLIN)
        poll.register(1, select.POLLOUT if outward else 0)
        for fd, event in poll.poll():
            if fd == 0:
                if (data := _read(0)) == b"":
                    return  # the client hung up: the channel is closed both ways, as a forwarded one would be
                inward += data or b""
            elif fd == 1:
                if event & (select.POLLERR | select.POLLNVAL):
                    return
                del outward[: _write(1, outward)]
            else:
                if event & select.POLLOUT:
                    del inward[: _write(sock.fileno(), inward)]
                if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    if (data := _read(sock.fileno())) == b"":
                        _drain(outward)
                        return
                    outward += data or b""


def _drain(outward: bytearray) -> None:
    os.set_blocking(1, True)
    while outward:
        try:
            del outward[: os.write(1, outward)]
        except OSError:
            return


def _read(fd: int) -> bytes | None:
    """Read what is there. None: nothing now; empty: the source has ended."""
    try:
        return os.read(fd, _CHUNK_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _write(fd: int, data: bytearray) -> int:
    try:
        return os.write(fd, data[:_CHUNK_BYTES])
    except BlockingIOError:
        return 0
    except OSError:
        data.clear()
        return 0
