"""The log socket for processes that a task has started: one datagram per record, as JSON.

It is a unix datagram socket of one worker, in the node's private folder and accessible to this user only. An
environment variable of the worker's tasks contains its path. Forked children use it because they must not use the
worker's pipe.
"""

from __future__ import annotations

import array
import fcntl
import functools
import os
import socket
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from . import limits

VARIABLE = "OUTRIDER_LOG"  # the environment variable that contains the socket's path
# size limit of a record; a larger receive buffer would be mapped anew for each datagram: 16 us
DATAGRAM_BYTES = 126 * 1024
PATIENCE_S = 5.0  # how long a logging process waits for a node that does not read
_AT_ONCE = 64  # datagrams received in one turn of the loop
_JOINED_BYTES = 64 * 1024
_NO_RECORD = b"{}"  # replaces a line that is not a JSON object: one unreadable record that does not affect the others
_QUEUE = Path("/proc/sys/net/unix/max_dgram_qlen")
_PATH_BYTES = 107  # <linux/un.h>: UNIX_PATH_MAX without the terminating zero


class LogSocket:
    """The node's end of a worker's log socket."""

    def __init__(self, path: Path) -> None:
        """Create the socket. Raises OSError if that fails."""
        self.path, self._folder = str(path), -1
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            # use a shorter path to the same folder, valid while its descriptor is open
            if len(os.fsencode(self.path)) > _PATH_BYTES:
                self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self.path = f"/proc/{os.getpid()}/fd/{self._folder}/{path.name}"
            # set before bind, so that the socket's file has this mode from the beginning
            os.fchmod(self.sock.fileno(), 0o600)
            Path(self.path).unlink(missing_ok=True)
            self.sock.bind(self.path)
        except BaseException:
            self.close()
            raise

    def receive(self, *, rest: bool = False) -> Iterator[tuple[bytes, list[int]]]:
        """Yield received records: several joined ones, or one record with its descriptor, which the caller must close.

        Args:
            rest: receive all records in the socket, for an attempt that has ended; else only one turn's share.
        """
        lines: list[bytes] = []
        size_bytes = 0
        for _ in range(_queue_length() if rest else _AT_ONCE):
            try:
                line, fds = limits.receive(self.sock, DATAGRAM_BYTES, 1)
            except (BlockingIOError, ConnectionError):
                break
            line = line.replace(b"\n", b" ").strip()  # a line break inside the JSON would end the record
            if not line.startswith(b"{"):
                line = _NO_RECORD
            if not fds and fds is not None:
                lines.append(line)
                size_bytes += len(line)
            if lines and (fds or size_bytes > _JOINED_BYTES):
                yield b"\n".join(lines), []
                lines, size_bytes = [], 0
            if fds:
                yield line, fds
        if lines:
            yield b"\n".join(lines), []

    def close(self) -> None:
        with suppress(OSError):
            Path(self.path).unlink()
        self.sock.close()
        if self._folder >= 0:
            os.close(self._folder)


@functools.cache
def _queue_length() -> int:
    """Return how many datagrams a socket holds before writers block. The kernel's default is 10; systemd sets 512."""
    try:
        return max(_AT_ONCE, int(_QUEUE.read_text()) + 1)
    except (OSError, ValueError):
        return 1024


class LogEnd:
    """The worker's end of its log socket: the path, and whether the socket holds unread records."""

    def __init__(self, fd: int) -> None:
        with socket.socket(fileno=os.dup(fd)) as sock:
            self.path: str = sock.getsockname()
        self._fd = fd
        self._waiting = array.array("i", [0])

    def pending(self) -> bool:
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        except OSError:  # the task has closed the descriptor
            return False
        return bool(self._waiting[0])


class LogClient:
    """The log socket's end in a process that a task has started. ``path``: the value of the environment variable."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sock: socket.socket | None = None
        self._patience_s = PATIENCE_S  # 0 after a wait without success, until the node reads again

    def send(self, line: bytes, fds: list[int] | None = None) -> None:
        """Send a record. If the node does not read, wait up to `PATIENCE_S`.

        After a wait without success, later calls do not wait until the node reads again.

        Raises:
            OSError: the node has ended, or does not read.
            ValueError: the record is too large.
        """
        if len(line) > DATAGRAM_BYTES:
            raise ValueError(f"a process that a task has started may log {DATAGRAM_BYTES} bytes at a time")
        sock = self._sock
        if sock is None:
            sock = self._sock = self._connected()
        try:
            socket.send_fds(sock, [line], fds or [])
        except OSError as error:
            self._sock = None
            sock.close()
            if isinstance(error, TimeoutError):
                self._patience_s = 0.0
            raise
        if not self._patience_s:
            self._patience_s = PATIENCE_S
            sock.settimeout(PATIENCE_S)

    def close(self) -> None:
        if self._sock is not None:
            self._sock.close()

    def _connected(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            sock.settimeout(self._patience_s)
            sock.connect(self.path)
        except BaseException:
            sock.close()
            raise
        return sock
