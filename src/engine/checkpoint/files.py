"""Checkpoints in a folder of a local disk, or of one that all nodes share. Needs the standard library alone."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from ..api.errors import CheckpointError
from .store import Piece

_UNFINISHED = ".unfinished-"
_AGAIN = 100  # attempts; for each to fail another rank must remove the folder in that very moment
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class FileStore:
    """A `store.Store` in a folder. A file is written beside its place, flushed to the disk, and renamed."""

    poll_s = 0.1

    def __init__(self, url: str) -> None:
        self.url = url
        self._folder = Path(url.removeprefix("file://"))

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        with self._translated("written"), self._written(key, pieces) as (written, path):
            written.rename(path)

    def create(self, key: str, data: bytes) -> bool:
        with self._translated("written"), self._written(key, [data]) as (written, path):
            try:
                os.link(written, path)  # unlike a rename, a link fails where the file exists: on NFS too
            except FileExistsError:
                return path.read_bytes() == data
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise CheckpointError(
                        f"{self.url} is on a file system without hard links, which keep worlds apart: take another "
                        "folder, or the URL of the object storage behind it.",
                        url=self.url,
                    ) from error
                raise
        return True

    def get(self, key: str) -> bytes:
        with self._translated("read"):
            return (self._folder / key).read_bytes()

    def read(self, key: str, start: int, length: int) -> Piece:
        with self._translated("read"), (self._folder / key).open("rb", buffering=0) as file:
            data = memoryview(bytearray(length))
            at = 0
            while at < length and (count := os.preadv(file.fileno(), [data[at:]], start + at)):
                at += count
            return data[:at]

    def names(self, folder: str = "") -> list[str]:
        """The keys of all files, or an error: a key that is left out would count as never saved."""
        path, below = self._folder / folder, f"{folder}/" if folder else ""
        with self._translated("listed"):
            try:
                return list(_files(path, below))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                return list(_files(path, below))  # another host removed a folder: NFS reports that as ESTALE

    def folders(self) -> list[str]:
        with self._translated("listed"):
            try:
                with os.scandir(self._folder) as entries:
                    return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except FileNotFoundError:
                return []

    def delete(self, key: str) -> None:
        """Delete a file, and its folder where that is empty then; a rank that writes there makes the folder again."""
        path = self._folder / key
        with self._translated("deleted"):
            path.unlink(missing_ok=True)
        if path.parent != self._folder:
            with suppress(OSError):  # the folder is not empty
                path.parent.rmdir()

    def remove(self, folder: str) -> None:
        shutil.rmtree(self._folder / folder, ignore_errors=True)  # another rank may remove it at the same time

    @contextmanager
    def _written(self, key: str, pieces: Iterable[Piece]) -> Iterator[tuple[Path, Path]]:
        """Write ``pieces`` to a temporary file; gives (its path, the path where it belongs)."""
        path = self._folder / key
        written = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        try:
            with _begun(written) as file:
                for piece in pieces:
                    _write_all(file.fileno(), piece)
                os.fsync(file.fileno())
            yield written, path
            _sync_folder(path.parent)
        finally:
            with suppress(OSError):
                written.unlink(missing_ok=True)

    @contextmanager
    def _translated(self, done: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = (
                "free some space there, or keep fewer checkpoints; those that are complete stay loadable"
                if full
                else "see that every node may read and write there"
            )
            raise CheckpointError(
                f"A checkpoint could not be {done} in {self.url}: {error.strerror or error}: {hint}.",
                url=self.url,
                full=full,
            ) from error


def _files(folder: os.PathLike[str] | str, below: str) -> Iterator[str]:
    """Yield the paths of all files in ``folder``, prefixed with ``below``. Files that vanish meanwhile are left out."""
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except FileNotFoundError:
        return
    for entry in found:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{below}{entry.name}/")
        elif not entry.name.startswith(_UNFINISHED):
            yield below + entry.name


def _begun(path: Path) -> FileIO:
    """Open a new file and make its folder, which a rank whose save failed may remove at any time while it is empty."""
    for _ in range(_AGAIN):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return path.open("xb", buffering=0)
    return path.open("xb", buffering=0)


def _write_all(fd: int, piece: Piece) -> None:
    view = memoryview(piece).cast("B")
    while view:
        view = view[os.write(fd, view) :]


def _sync_folder(folder: Path) -> None:
    """Flush a folder, so that a new file's name survives a power cut and not only its content."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
