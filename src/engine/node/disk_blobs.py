"""A mover of blobs from a node's memory into unnamed files in the node's folder, one blob at a time, in a thread."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Thread

from ..wire.messages import NotMoved
from .blobs import BlobStore

FREE_SHARE = 0.1  # share of the disk that must stay free
_PIECE_BYTES = 1 << 24


class DiskBlobs:
    """The mover of blobs from memory to disk.

    Args:
        moved: called with the name of each blob whose descriptor now refers to a file.
        send: called with a message for each blob that could not be moved.
    """

    def __init__(
        self,
        store: BlobStore,
        folder: Path,
        *,
        moved: Callable[[str], object],
        send: Callable[[NotMoved], object],
    ) -> None:
        self._store, self._folder, self._moved, self._send = store, folder, moved, send
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[str] = deque()
        self._busy = False

    def move(self, names: Iterable[str]) -> None:
        self._waiting += names
        self._next()

    def _next(self) -> None:
        while self._waiting and not self._busy:
            name = self._waiting.popleft()
            fd = self._store.fd(name)
            if fd is None:  # the blob was dropped while it waited
                continue
            try:
                source = os.dup(fd)
            except OSError as error:
                self._send(NotMoved(name, str(error.strerror)))
                continue
            self._busy = True
            Thread(target=self._copy, args=(name, source), daemon=True, name="outrider-disk").start()

    def _copy(self, name: str, source: int) -> None:
        try:
            file, reason = copied(source, self._folder), ""
        except OSError as error:
            file, reason = -1, str(error.strerror or error)
        finally:
            os.close(source)
        try:
            self._loop.call_soon_threadsafe(self._copied, name, file, reason)
        except RuntimeError:  # the event loop is closed: the executor is ending
            if file >= 0:
                os.close(file)

    def _copied(self, name: str, file: int, reason: str) -> None:
        self._busy = False
        if file < 0:
            self._send(NotMoved(name, reason))
        elif self._store.replace(name, file):
            self._moved(name)
        self._next()


def copied(source: int, folder: Path) -> int:
    """Copy a blob into a new unnamed file in ``folder``; return its descriptor.

    Raises:
        OSError: less than `FREE_SHARE` of the disk would stay free, or the file cannot be written.
    """
    size_bytes, disk = os.fstat(source).st_size, os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize - size_bytes < FREE_SHARE * disk.f_blocks * disk.f_frsize:
        raise OSError(errno.ENOSPC, "its disk is full")
    path = folder / f"object-{os.urandom(8).hex()}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        path.unlink()
        at = 0
        while at < size_bytes:
            at += os.sendfile(file, source, at, min(_PIECE_BYTES, size_bytes - at))
    except BaseException:
        os.close(file)
        raise
    return file
