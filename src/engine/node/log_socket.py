"""The log socket of a worker: processes that its tasks start send log records to it, one JSON datagram each.

The log socket is a unix datagram socket in the node's private folder, accessible to this user only. Tasks have its path
in an environment variable. Forked children send their records to this socket because they must not use the worker's
pipe.
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

VARIABLE = "OUTRIDER_LOG"  # environment variable with the path of the log socket
# maximum size of a record. With a larger receive buffer, each receive would take 16 us longer, for an mmap.
DATAGRAM_BYTES = 126 * 1024
PATIENCE_S = 5.0  # longest wait of a logging process while the node does not read
_AT_ONCE = 64  # maximum number of datagrams that one callback of the event loop receives
_JOINED_BYTES = 64 * 1024
_NO_RECORD = b"{}"  # an empty record, which replaces a line that is no JSON object
_QUEUE = Path("/proc/sys/net/unix/max_dgram_qlen")
_PATH_BYTES = 107  # longest path of a unix socket (UNIX_PATH_MAX in <linux/un.h>, without the final zero)


class LogSocket:
    """The node's end of a worker's log socket."""

    def __init__(self, path: Path) -> None:
        """Create the socket. Raises OSError if that fails."""
        self.path, self._folder = str(path), -1
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            # too long for a socket: use /proc/..., a shorter path to the same folder, valid while it is open
            if len(os.fsencode(self.path)) > _PATH_BYTES:
                self._folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                self.path = f"/proc/{os.getpid()}/fd/{self._folder}/{path.name}"
            # before `bind`, so that the socket's file has this mode from its creation on
            os.fchmod(self.sock.fileno(), 0o600)
            Path(self.path).unlink(missing_ok=True)
            self.sock.bind(self.path)
        except BaseException:
            self.close()
            raise

    def receive(self, *, rest: bool = False) -> Iterator[tuple[bytes, list[int]]]:
        """Receive records. Yield several of them as joined lines, and each record that has a descriptor by itself.

        The caller must close the descriptors.

        Args:
            rest: receive all records in the socket, because the attempt has ended; if False, at most `_AT_ONCE`.
        """
        lines: list[bytes] = []
        size_bytes = 0
        for _ in range(_queue_length() if rest else _AT_ONCE):
            try:
                line, fds = limits.receive(self.sock, DATAGRAM_BYTES, 1)
            except (BlockingIOError, ConnectionError):
                break
            line = line.replace(b"\n", b" ").strip()  # a line break would end the record
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
    """Return a number above that of datagrams that fit into a socket (the kernel's default is 10; systemd sets 512)."""
    try:
        return max(_AT_ONCE, int(_QUEUE.read_text()) + 1)
    except (OSError, ValueError):
        return 1024


class LogEnd:
    """The log socket as its worker sees it: the socket's path, and whether the node has still to read records."""

    def __init__(self, fd: int) -> None:
        with socket.socket(fileno=os.dup(fd)) as sock:
            self.path: str = sock.getsockname()
        self._fd = fd
        self._waiting = array.array("i", [0])

    def pending(self) -> bool:
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, self._waiting)
        except OSError:  # a task has closed the descriptor
            return False
        return bool(self._waiting[0])


class LogClient:
    """A sender of log records to the log socket at ``path``, for a process that a task has started."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._sock: socket.socket | None = None
        self._patience_s = PATIENCE_S  # 0 after a timeout, until a send succeeds

    def send(self, line: bytes, fds: list[int] | None = None) -> None:
        """Send a record. If the node does not read, wait up to `PATIENCE_S`.

        After a timeout, the next calls raise at once instead of waiting, until a send succeeds again.

        Raises:
            OSError: the node has ended, or does not read.
            ValueError: the record is larger than `DATAGRAM_BYTES`.
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
