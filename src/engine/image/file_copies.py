"""Copies of files as they were when a pool began, so that later machines get the same files as the first ones."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

_CHUNK_BYTES = 1 << 20


class FileCopies:
    """Copies in one unnamed temporary file, which is gone with its last user, even a killed one. Not thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Make it in ``folder``, which exists on a disk with room for the copies."""
        with tempfile.TemporaryFile(dir=folder) as nameless:
            self._fd = os.dup(nameless.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._end = 0
        self._kept: dict[str, Copy] = {}

    def keep(self, fd: int) -> Copy:
        """Copy the rest of an open file.

        Raises:
            OSError: it cannot be read, or the disk is full.
        """
        digest, end = hashlib.sha256(), self._end
        while data := os.read(fd, _CHUNK_BYTES):
            digest.update(data)
            while data:
                written = os.pwrite(self._fd, data, end)
                data, end = data[written:], end + written
        sha256 = digest.hexdigest()
        if sha256 not in self._kept:
            self._kept[sha256] = Copy(self, sha256, self._end, end - self._end)
            self._end = end
        return self._kept[sha256]

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self._fd, size, offset)


class Copy(NamedTuple):
    copies: FileCopies
    sha256: str
    begins: int
    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        """Read at most ``size`` bytes of the copy from ``offset``."""
        return self.copies.read(self.begins + offset, min(size, self.size_bytes - offset))
