"""Files that this computer keeps for hosts: wheels and uv binaries for later pools, and copies of included files."""

from __future__ import annotations

import hashlib
import os
import secrets
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ...providers.private import cache_root, make_private
from .hints import bootstrap_error

_CHUNK_BYTES = 1 << 20


def client_cache() -> Path:
    """Return the cache's folder, private to this user, as nodes run programs from it.

    Raise an error if it is not usable.
    """
    folder = cache_root()
    try:
        make_private(folder)
    except OSError as error:
        raise bootstrap_error(
            "packages",
            f"the cache of this computer, {folder}, cannot be used: {error.strerror}",
            hint=f"remove {folder}, or set OUTRIDER_CACHE here to a folder in which only you can write",
            systematic=True,
        ) from error
    return folder


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def written(path: Path) -> Iterator[Path]:
    """Yield a temporary path that is renamed to ``path``, complete and flushed, if the block ends without an error.

    Other writers may do the same concurrently, in this process or in a container with the same process ids.
    """
    make_private(path.parent)
    beside = path.with_name(f".{secrets.token_hex(8)}-{path.name}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


class FileCopies:
    """Copies of files as they were when a pool began, so that later machines get the same contents. Not thread-safe.

    They are in one unnamed temporary file, which disappears with the last process that uses it, even a killed one.
    """

    def __init__(self, folder: Path) -> None:
        with tempfile.TemporaryFile(dir=folder) as nameless:
            self.fd = os.dup(nameless.fileno())
        weakref.finalize(self, os.close, self.fd)
        self._end = 0
        self._kept: dict[str, Copy] = {}

    def keep(self, fd: int) -> Copy:
        """Copy the rest of an open file, and return the copy."""
        digest, end = hashlib.sha256(), self._end
        while data := os.read(fd, _CHUNK_BYTES):
            digest.update(data)
            while data:
                count = os.pwrite(self.fd, data, end)
                data, end = data[count:], end + count
        name = digest.hexdigest()
        if name not in self._kept:
            self._kept[name] = Copy(self, name, self._end, end - self._end)
            self._end = end
        return self._kept[name]


class Copy(NamedTuple):
    copies: FileCopies
    sha256: str
    begins: int
    size_bytes: int

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.copies.fd, min(size, self.size_bytes - offset), self.begins + offset)
