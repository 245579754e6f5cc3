"""Files as they were when a pool began: later machines get what the first ones got, whatever was edited since."""

from __future__ import annotations

import hashlib
import os
import tempfile
import weakref
from pathlib import Path
from typing import NamedTuple

_CHUNK_BYTES = 1 << 20


class Snapshot:
    """Copies in one file without a name: gone with its last user, also when that is killed. Kept by one thread."""

    def __init__(self, folder: Path) -> None:
        """``folder``: one that is there, on a disk with room for them."""
        with tempfile.TemporaryFile(dir=folder) as nameless:
            self._fd = os.dup(nameless.fileno())
        weakref.finalize(self, os.close, self._fd)
        self._end = 0
        self._kept: dict[str, Copy] = {}

    def keep(self, fd: int) -> Copy:
        """A copy of what is left to read of an open file.

        Raises:
            OSError: it cannot be read, or there is no room.
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
    snapshot: Snapshot
    sha256: str
    begins: int
    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        """At most ``size`` bytes of it."""
        return self.snapshot.read(self.begins + offset, min(size, self.size_bytes - offset))
