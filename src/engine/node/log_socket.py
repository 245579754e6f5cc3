"""The log socket for processes that a task has started: a datagram for each record, as JSON.

It is a unix datagram socket of one worker, in the node's private folder and for this user alone. Its path is in the
environment of the worker's tasks. A forked child must not use the worker's own pipe, and needs none.
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

VARIABLE = "OUTRIDER_LOG"  # the environment variable with the socket's path
DATAGRAM_BYTES = 126 * 1024  # of one record; larger buffers are mapped anew for each: 16 us
PATIENCE_S = 5.0  # of a logging process, for a node that does not read
_AT_ONCE = 64  # datagrams in one turn
_JOINED_BYTES = 64 * 1024
_NO_RECORD = b"{}"  # stands for a line that is no JSON object: one unreadable record, without harm to the others
_QUEUE = Path("/proc/sys/net/unix/max_dgram_qlen")
_PATH_BYTES = 107  # <linux/un.h>: UNIX_PATH_MAX, and its end


class LogSocket:
    """The node's end of one worker's socket."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there can be none."""
        self.path, self._folder = str(path), -1
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            if len(os.fsencode(self.path)) > _PATH_BYTES:  # another name of the same folder, as long as this is open
                self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self.path = f"/proc/{os.getpid()}/fd/{self._folder}/{path.name}"
            os.fchmod(self.sock.fileno(), 0o600)  # which the file has from its beginning
            Path(self.path).unlink(missing_ok=True)
            self.sock.bind(self.path)
        except BaseException:
            self.close()
            raise

    def receive(self, *, rest: bool = False) -> Iterator[tuple[bytes, list[int]]]:
        """Yield received records: as many as may go together, or one with a descriptor, now the caller's.

        ``rest``: all records in the socket, for an attempt that has ended; else one turn's share.
        """
        lines: list[bytes] = []
        size_bytes = 0
        for _ in range(_queue_length() if rest else _AT_ONCE):
            try:
                line, fds = limits.receive(self.sock, DATAGRAM_BYTES, 1)
            except (BlockingIOError, ConnectionError):
                break
            line = line.replace(b"\n", b" ").strip()  # a line break inside JSON would end the record
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
    """Return how many datagrams a socket holds before writers wait. Kernels have 10, and systemd 512."""
    try:
        return max(_AT_ONCE, int(_QUEUE.read_text()) + 1)
    except (OSError, ValueError):
        return 1024


class LogEnd:
    """The worker's end of its socket: the path, and whether unread records are there."""

    def __init__(self, fd: int) -> None:
        with socket.socket(fileno=os.dup(fd)) as sock:
            self.path: str = sock.getsockname()
        self._fd = fd
        self._waiting = array.array("i", [0])

    def pending(self) -> bool:
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        except OSError:  # the task has closed it
            return False
        return bool(self._waiting[0])


class LogClient:
    """The end of a process that a task has started. ``path``: what its environment has."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sock: socket.socket | None = None
        self._patience_s = PATIENCE_S  # 0 after a wait in vain, until the node reads again

    def send(self, line: bytes, fds: list[int] | None = None) -> None:
        """Send a record. Wait for a node that does not read, up to `PATIENCE_S`, and then no more until it does.

        Raises:
            OSError: the node has ended, or does not read.
            ValueError: it is too large.
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
