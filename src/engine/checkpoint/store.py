"""The storage of checkpoints: what it must do, and which one a path or URL means."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path
from threading import Event
from typing import Protocol

from ..api.errors import SpecError
from .records import Piece

VARIABLE = "OUTRIDER_CHECKPOINTS"  # in the environment of tasks: the root of ``Pool(checkpoints=...)``

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


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


def open_store(root: str, run: str) -> Store:
    """The storage of ``run`` below ``root``, a path or a URL; raises `SpecError` where there cannot be one."""
    if not _NAME.fullmatch(run):
        raise SpecError(
            f"checkpoint: the name is part of a path: letters, digits, dots, dashes and slashes, not {run!r}."
        )
    root = checked_root("checkpoint: root", root)
    if root.startswith("file://"):
        from .files import FileStore

        return FileStore(f"{root}/{run}")
    try:
        from .objects import ObjectStore
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
    if not isinstance(root, str | PathLike) or not fspath(root):
        raise SpecError(f'{name} takes a folder or a URL such as "s3://bucket/folder", not {root!r}.')
    text = str(root)
    parts = _SCHEME.fullmatch(text)
    if parts is None:
        return f"file://{Path(text).expanduser().absolute()}".rstrip("/")
    scheme, rest = parts.groups()
    if scheme == "file" and not rest.startswith("/"):
        raise SpecError(f"{name}: a file URL holds an absolute path, as in file:///data/checkpoints, not {text!r}.")
    if not rest.strip("/"):
        raise SpecError(f"{name}: {text!r} names no place: add a bucket or a folder.")
    return text.rstrip("/")
