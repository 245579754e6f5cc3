"""The storage of checkpoints: its interface, the choice by path or URL, and the implementation in a folder."""

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

from ...providers.given_paths import expanded, half_url
from ...providers.pool_lock import flush
from ..api.checks import shown
from ..api.errors import CheckpointError, SpecError
from .records import Piece

VARIABLE = "OUTRIDER_CHECKPOINTS"  # in the environment of tasks: the root of ``Pool(checkpoints=...)``

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_UNFINISHED = ".unfinished-"
_AGAIN = 100  # attempts; for each to fail another rank must remove the folder in that very moment
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


class Store(Protocol):
    """The storage of one run. Keys are relative, with slashes. Failures raise `CheckpointError`, unless noted."""

    url: str
    poll_s: float  # the shortest pause between two reads for what other ranks write

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """Write or replace a file. No reader ever sees a part of it."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """Write a file unless it exists. False where it exists with another content: of several writers one wins."""
        ...

    def get(self, key: str) -> bytes:
        """The content of a file; raises FileNotFoundError."""
        ...

    def read(self, key: str, start: int, length: int) -> Piece:
        """``length`` bytes of a file from ``start``; raises FileNotFoundError."""
        ...

    def names(self, folder: str = "") -> list[str]:
        """The keys of all files below a folder."""
        ...

    def folders(self) -> list[str]:
        """The names of the run's folders, also of those without a finished file. [] in object storage."""
        ...

    def delete(self, key: str) -> None:
        """Delete a file, which need not exist."""
        ...

    def remove(self, folder: str) -> None:
        """Delete everything below a folder, half-written files too."""
        ...


def polls(store: Store, within_s: float, wake: Event | None = None) -> Iterator[None]:
    """Yield at once, then after growing pauses, until ``within_s`` have passed or ``wake`` is set."""
    wake = wake or Event()
    end = time.monotonic() + within_s
    pause = store.poll_s / 16
    yield
    while (left := end - time.monotonic()) > 0 and not wake.wait(min(pause, left)):
        pause = min(2 * pause, store.poll_s)
        yield


def open_store(root: str | os.PathLike[str], run: str) -> Store:
    """The storage of ``run`` below ``root``, a path or a URL; raises `SpecError` where there cannot be one."""
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
    """``root`` as a URL without a slash at its end; a path is made absolute.

    Raises `SpecError`, which calls the option ``name``, where ``root`` names no folder or bucket.
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
    """A `Store` in a folder. A file is written beside its place, flushed to the disk, and renamed."""

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
        """The keys of all files, or an error: a key that is left out would count as never saved."""
        with self._translated("listed"):
            try:
                paths = list(_files(self._folder / folder))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                paths = list(_files(self._folder / folder))  # another host removed a folder: NFS says ESTALE then
            return [f"{folder}/{name}" if folder else name for name in paths]

    def folders(self) -> list[str]:
        with self._translated("listed"), suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
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
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            yield written, path
            flush(path.parent)  # the new name is to survive a power cut, and not only the content
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
    """Yield the paths of all files in ``folder``, relative to it. Files that vanish meanwhile are left out."""

    def failed(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for path, _, names in os.walk(folder, onerror=failed):
        below = Path(path).relative_to(folder)
        yield from (str(below / name) for name in names if not name.startswith(_UNFINISHED))


def _begun(path: Path) -> BufferedWriter:
    """Open a new file and make its folder, which a rank whose save failed may remove at any time while it is empty."""
    for _ in range(_AGAIN):
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            return path.open("xb")
    return path.open("xb")
