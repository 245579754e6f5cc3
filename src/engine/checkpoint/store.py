"""The storage of checkpoints: its interface, the choice by path or URL, and the implementation for a folder."""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from pathlib import Path
from threading import Event
from typing import Protocol

from ...providers.shared.paths import expanded, half_url
from ...providers.shared.pool_lock import flush
from ..api.checks import shown
from ..api.errors import CheckpointError, SpecError
from .records import Piece

VARIABLE = "OUTRIDER_CHECKPOINTS"  # environment variable of tasks with the root from ``Pool(checkpoints=...)``

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_UNFINISHED = ".unfinished-"
_AGAIN = 100  # attempts to create a file; an attempt fails only if another rank removes its folder at that very moment
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Store(Protocol):
    """The storage of one run. Keys are relative paths with slashes. Failures raise `CheckpointError`, except where
    noted.
    """

    url: str
    poll_s: float  # shortest pause in seconds between two polls for files of other ranks

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """Write or replace a file. No reader ever sees a partial file."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a file unless it exists. If several ranks write the same file, the first one wins.

        Return False if the file exists with other content.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the content of a file, or raise a FileNotFoundError."""
        ...

    def read(self, key: str, start: int, length: int) -> Piece:
        """Return ``length`` bytes of a file from ``start`` on, or raise a FileNotFoundError."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """Return the keys of all files below a folder."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the run's folders, including those without a finished file; [] in object storage."""
        ...

    def delete(self, key: str) -> None:
        """Delete a file if it exists."""
        ...

    def remove(self, folder: str) -> None:
        """Delete everything below a folder, including partial files."""
        ...


def polls(store: Store, within_s: float, wake: Event | None = None) -> Iterator[None]:
    """Yield at once, then after growing pauses, until ``within_s`` seconds have passed or ``wake`` is set."""
    wake = wake or Event()
    end = time.monotonic() + within_s
    pause = store.poll_s / 16
    yield
    while (left := end - time.monotonic()) > 0 and not wake.wait(min(pause, left)):
        pause = min(2 * pause, store.poll_s)
        yield


def open_store(root: str | os.PathLike[str], run: str) -> Store:
    """Return the storage of ``run`` below ``root``, a path or a URL. Raise a `SpecError` if that is not possible."""
    if not isinstance(run, str) or not _NAME.fullmatch(run):
        raise SpecError(
            f"checkpoint: the name is part of a path: letters, digits, dots, dashes and slashes, not {shown(run)}."
        )
    root = checked_root("checkpoint: root", root)
    if root.startswith("file://"):
        return FileStore(f"{root}/{run}")
    try:
        from .object_store import ObjectStore
    except ImportError:
        raise SpecError(
            f"Checkpoints at {root.partition(':')[0]}:// need the package obstore where tasks run: install "
            'outrider[storage], or give the pool Image(pip=["obstore"]).'
        ) from None
    return ObjectStore(f"{root}/{run}")


def checked_root(name: str, root: object) -> str:
    """Return ``root`` as a URL without a slash at its end; a path is made absolute.

    Raises:
        SpecError: ``root`` is neither a folder nor a bucket. The error calls the option ``name``.
    """
    text = os.fspath(root) if isinstance(root, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text:
        raise SpecError(f'{name} takes a folder or a URL such as "s3://bucket/folder", not {shown(root)}.')
    parts = _SCHEME.fullmatch(text)
    if meant := half_url(text):
        raise SpecError(f"{name}: {text!r} is neither a URL nor a folder's usual name: did you mean {meant!r}?")
    if parts is None:
        return f"file://{expanded(text).absolute()}".rstrip("/")
    scheme, rest = parts.groups()
    if scheme == "file" and not rest.startswith("/"):
        raise SpecError(f"{name}: a file URL holds an absolute path, as in file:///data/checkpoints, not {text!r}.")
    if not rest.strip("/"):
        raise SpecError(f"{name}: {text!r} names no place: add a bucket or a folder.")
    return text.rstrip("/")


class FileStore:
    """A `Store` in a folder. Each file is written under a temporary name, flushed to the disk, and then renamed."""

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
                os.link(written, path)  # unlike a rename, a link fails if the file exists, on NFS too
            except FileExistsError:
                return path.read_bytes() == data
        return True

    def get(self, key: str) -> bytes:
        with self._translated("read"):
            return (self._folder / key).read_bytes()

    def read(self, key: str, start: int, length: int) -> Piece:
        data = bytearray(length)
        with self._translated("read"), (self._folder / key).open("rb") as file:
            file.seek(start)
            return memoryview(data)[: file.readinto(data)]

    def names(self, folder: str = "") -> list[str]:
        """Return the keys of all files.

        Raise an error rather than omit a key: a checkpoint with an omitted file would count as never saved.
        """
        with self._translated("listed"):
            try:
                paths = list(_files(self._folder / folder))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                # NFS reports ESTALE if another host removed a folder: list again
                paths = list(_files(self._folder / folder))
            return [f"{folder}/{name}" if folder else name for name in paths]

    def folders(self) -> list[str]:
        with self._translated("listed"), suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        return []

    def delete(self, key: str) -> None:
        """Delete a file, and also its folder if the folder is empty then. A rank that writes there creates the folder
        again.
        """
        path = self._folder / key
        with self._translated("deleted"):
            path.unlink(missing_ok=True)
        if path.parent != self._folder:
            with suppress(OSError):  # the folder is not empty
                path.parent.rmdir()

    def remove(self, folder: str) -> None:
        shutil.rmtree(self._folder / folder, ignore_errors=True)  # another rank may remove the folder at the same time

    @contextmanager
    def _written(self, key: str, pieces: Iterable[Piece]) -> Iterator[tuple[Path, Path]]:
        """Write ``pieces`` to a temporary file. Yield (path of the temporary file, final path)."""
        path = self._folder / key
        written = path.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
        try:
            with _begun(written) as file:
                for piece in pieces:
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            yield written, path
            flush(path.parent)  # after a power cut, the new name must exist too, not only the content
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
            if full:
                hint = "free some space there, or keep fewer checkpoints; those that are complete stay loadable"
            elif error.errno in _NO_LINKS:
                hint = (
                    "where its file system has no hard links, which keep worlds apart, take another folder, or the URL "
                    "of the object storage behind it"
                )
            else:
                hint = "see that every node may read and write there"
            raise CheckpointError(
                f"A checkpoint could not be {done} in {self.url}: {error.strerror or error}: {hint}.",
                url=self.url,
                full=full,
            ) from error


def _files(folder: Path) -> Iterator[str]:
    """Yield the paths of all files in ``folder``, relative to it. Files that disappear during the walk are omitted."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for path, _, names in os.walk(folder, onerror=failed):
        below = Path(path).relative_to(folder)
        yield from (str(below / name) for name in names if not name.startswith(_UNFINISHED))


def _begun(path: Path) -> BufferedWriter:
    """Open a new file for writing, and create its folder if needed.

    It tries several times, as a rank whose save failed may remove the folder while the folder is empty.
    """
    for _ in range(_AGAIN):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return path.open("xb")
    return path.open("xb")
