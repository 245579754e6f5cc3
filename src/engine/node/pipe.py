"""The pipe between executor server and worker: one message per datagram of a SOCK_SEQPACKET pair.

File descriptors travel beside a message. A datagram is a message's body as `wire.codec` makes it, or a mark. A body
that is too large for a socket buffer goes into a memfd that travels along.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import limits

SPILLED = b"\x00"  # the body is in the first descriptor (no body begins so: msgpack arrays begin with 0x9_)
PAUSE = b"\x01"  # from a worker: read the task's output; from the executor server: it is read, go on
OUTPUT_CREDIT = b"\x02"  # from a worker of threads: may they print more? from the executor server: they may
READY = b"\x03"  # from a worker: it is ready to read

_DATAGRAM_BYTES = 96 * 1024  # the usual net.core.wmem_default, 208 KiB, is charged twice the size and more
LOCK_TRIES, LOCK_PAUSE_S = 50, 0.001  # a worker has the lock for microseconds, unless it is stopped then
DO_NOT_WAIT = int(socket.MSG_DONTWAIT)  # an enumeration's | costs 1 us
_RECEIVE_BYTES = 128 * 1024 - 1024  # below malloc's mmap threshold: 0.25 us instead of 17

Datagram = tuple[bytes, list[int] | None]  # None: the descriptors are lost, see `limits.receive`


def send(pipe: socket.socket, body: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
    """Send a message, whole or not at all. The caller keeps ``fds`` and closes them."""
    if len(body) <= _DATAGRAM_BYTES:
        if fds:
            socket.send_fds(pipe, [body], list(fds), flags)
        else:
            pipe.send(body, flags)
        return
    spill = os.memfd_create("spill", os.MFD_CLOEXEC)
    try:
        write_all(spill, [body])
        socket.send_fds(pipe, [SPILLED], [spill, *fds], flags)
    finally:
        os.close(spill)


def receive(pipe: socket.socket, flags: int = 0) -> Datagram:
    """Return one message's body (empty: the other end is closed) and its descriptors, now the caller's.

    Raises:
        BlockingIOError: there is none, and ``flags`` or the socket say not to wait.
    """
    body, fds = limits.receive(pipe, _RECEIVE_BYTES, 4, flags)
    if not fds or body != SPILLED:
        return body, fds
    spill = fds.pop(0)
    try:
        return _read_all(spill), fds
    finally:
        os.close(spill)


def receive_next(pipe: socket.socket) -> Datagram:
    """Wait for a message and receive it, except while the executor server takes messages back: see `taking_back`."""
    while True:
        pipe.recv(1, socket.MSG_PEEK)
        fcntl.lockf(pipe, fcntl.LOCK_EX)
        try:
            return receive(pipe, DO_NOT_WAIT)
        except BlockingIOError:  # all of it has been taken back
            continue
        finally:
            fcntl.lockf(pipe, fcntl.LOCK_UN)


@contextmanager
def taking_back(far: socket.socket) -> Iterator[bool]:
    """Keep the worker from receiving meanwhile: it gets a definition and the task that needs it, or neither.

    ``far`` is the worker's end, whose lock is a record lock, which the kernel takes from a process that ends. False:
    the worker was stopped while it had the lock, and keeps its messages.
    """
    for _ in range(LOCK_TRIES):
        try:
            fcntl.lockf(far, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            time.sleep(LOCK_PAUSE_S)
        else:
            break
    else:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.lockf(far, fcntl.LOCK_UN)


def write_all(fd: int, parts: Sequence[bytes | memoryview]) -> None:
    """Write all parts by plain writes, however large: the kernel fills the pages without a fault each."""
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            view = view[os.write(fd, view) :]


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
