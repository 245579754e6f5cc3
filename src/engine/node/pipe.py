"""The pipe between executor server and worker: one message per datagram of a SOCK_SEQPACKET pair.

File descriptors are sent along with a message. A datagram is a message body as encoded by `wire.codec`, or a mark (one
byte). A body that is too large for a socket buffer is written to a memfd, which is sent instead.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import limits

SPILLED = b"\x00"  # mark: the body is in the first descriptor. Message bodies begin with 0x9_ (msgpack arrays)
PAUSE = b"\x01"  # mark from a worker: read the task's output; as the executor server's reply: it is read, continue
# mark from a thread worker: requests permission to print more; from the executor server: the permission
OUTPUT_CREDIT = b"\x02"
READY = b"\x03"  # mark from a worker: it is ready to receive

_DATAGRAM_BYTES = 96 * 1024  # the usual net.core.wmem_default, 208 KiB, is charged more than twice the datagram's size
# tries to get the worker's lock, and pause between them; a worker holds the lock for microseconds, unless stopped
LOCK_TRIES, LOCK_PAUSE_S = 50, 0.001
DO_NOT_WAIT = int(socket.MSG_DONTWAIT)  # a plain integer, because `|` of an enumeration costs 1 us
_RECEIVE_BYTES = 128 * 1024 - 1024  # below malloc's mmap threshold: a receive takes 0.25 us instead of 17

Datagram = tuple[bytes, list[int] | None]  # (body, descriptors); None: the descriptors are lost, see `limits.receive`


def send(pipe: socket.socket, body: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
    """Send a message completely or not at all. The caller keeps ``fds`` and closes them."""
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
    """Return one message's body (empty: the other end is closed) and its descriptors, which the caller must close.

    Raises:
        BlockingIOError: there is no message, and ``flags`` or the socket are non-blocking.
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
    """Wait for a message and receive it. While the executor server takes messages back, wait: see `taking_back`."""
    while True:
        pipe.recv(1, socket.MSG_PEEK)
        fcntl.lockf(pipe, fcntl.LOCK_EX)
        try:
            return receive(pipe, DO_NOT_WAIT)
        except BlockingIOError:  # the executor server has taken the message back
            continue
        finally:
            fcntl.lockf(pipe, fcntl.LOCK_UN)


@contextmanager
def taking_back(far: socket.socket) -> Iterator[bool]:
    """Keep the worker from receiving during the block, so that it gets a function and its task, or neither.

    ``far`` is the worker's end of the pipe. Its lock is a record lock, which the kernel releases when the worker ends.
    Yields False if the worker was stopped while it held the lock: then the worker keeps its messages.
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
    """Write all parts, however large, by plain writes, which cause no page fault per page."""
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            view = view[os.write(fd, view) :]


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
