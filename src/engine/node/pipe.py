"""The pipe between the executor server and a worker: a pair of SOCK_SEQPACKET sockets, one message per datagram.

A message may carry file descriptors. A datagram is the body of a message as encoded by `wire.codec`, or a single byte
(a mark). A body that is too large for the socket's buffer is written to a memfd, whose descriptor is sent instead.

The constants ``ORDER_...`` are the kinds of messages between the executor and its fork server: msgpack arrays on
another SOCK_SEQPACKET socket.
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from . import limits

# Requests of the executor server to the fork server.
# [SETUP, {env, cwd, address, hostname, threads, signals, preload}], once for all workers; with the descriptor of the
# notice page (shared memory for preemption notices)
ORDER_SETUP = 1
# [FORK, worker, slot, fresh, allotment]; with the descriptors of the worker's pipe, stdout, stderr, stack file, and log
# socket if there is one
ORDER_FORK = 2
ORDER_KILL = 3  # the request to kill a worker: [KILL, worker]
# The fork server's only message to the executor server: [worker, status, detail, died, held], sent when all processes
# of a worker have ended. status: from os.waitpid, -1 if the fork failed. detail: text for the error. died: time of
# death by time.monotonic(). held: memory in bytes if the worker was killed because it exceeded its limit, else 0.


SPILLED = b"\x00"  # mark: the body is in the memfd of the first descriptor
PAUSE = b"\x01"  # mark of a worker: "read the task's output"; of the executor server: "done, continue"
# mark of a thread worker: "may I print more?"; of the executor server: "yes"
OUTPUT_CREDIT = b"\x02"
READY = b"\x03"  # mark of a worker: "ready to receive"

_DATAGRAM_BYTES = 96 * 1024  # a datagram uses more than twice its size of the socket's buffer (usually 208 KiB)
# number of tries to get the pipe's lock, and the pause between tries; a worker holds the lock for microseconds, or as
# long as it is stopped
LOCK_TRIES, LOCK_PAUSE_S = 50, 0.001
DO_NOT_WAIT = int(socket.MSG_DONTWAIT)  # a plain integer, because `|` of an enumeration costs 1 us
_RECEIVE_BYTES = 128 * 1024 - 1024  # below the size at which malloc uses mmap: a receive takes 0.25 us instead of 17 us

Datagram = tuple[bytes, list[int] | None]  # (body, its descriptors, or None if they are lost as in `limits.receive`)


def send(pipe: socket.socket, body: bytes, fds: Sequence[int] = (), flags: int = 0) -> None:
    """Send a message, completely or not at all. The caller must close ``fds``."""
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
    """Wait for a message and receive it. While the executor server takes messages back (`taking_back`), wait."""
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
    """Keep a worker from receiving during the block, in which the executor server takes unread messages back.

    The lock keeps together a task and the message with its function: the worker receives both, or neither. The lock is
    a record lock, so the kernel releases it when the worker ends. Yields False if the worker was stopped while it held
    the lock: then take no messages back.

    Args:
        far: the worker's end of the pipe.
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
    """Write all parts to a file. Plain writes cause no page fault for each page, unlike writing to a mapping."""
    for part in parts:
        view = memoryview(part).cast("B")
        while view:
            view = view[os.write(fd, view) :]


def _read_all(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)
