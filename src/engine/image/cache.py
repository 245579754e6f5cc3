"""Files that this computer stores for hosts: wheels and uv binaries for later pools, and copies of included files."""

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

from ...providers.shared.paths import cache_root, make_private
from .hints import bootstrap_error

_CHUNK_BYTES = 1 << 20


def client_cache() -> Path:
    """Return the cache folder of this computer. Only this user can write to it, because nodes run programs from it.

    Raises BootstrapError if the folder cannot be used.
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
    """Yield a temporary path. If the ``with`` block succeeds, flush the file to disk and rename it to ``path``.

    Other processes may write the same file at the same time, even processes in containers that have the same process
    id.
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
    """Copies of files, made when a pool begins, so that machines that start later get the same contents.

    Not thread-safe.

    All copies are in one unnamed temporary file. It disappears with the last process that has it open, even if that
    process is killed.
    """

    def __init__(self, folder: Path) -> None:
        with tempfile.TemporaryFile(dir=folder) as nameless:
            self.fd = os.dup(nameless.fileno())
        weakref.finalize(self, os.close, self.fd)
        self._end = 0
        self._kept: dict[str, Copy] = {}

    def keep(self, fd: int) -> Copy:
        """Copy an open file from its current position to its end, and return the copy."""
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
