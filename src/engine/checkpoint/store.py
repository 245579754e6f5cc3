"""Where checkpoints are kept: what a storage must be able to do, and which one a URL means."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from threading import Event
from typing import Protocol

from ..api.errors import SpecError

VARIABLE = "OUTRIDER_CHECKPOINTS"  # in the environment of tasks: the root that ``Pool(checkpoints=...)`` has

Piece = bytes | bytearray | memoryview

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=-]*(/[A-Za-z0-9][A-Za-z0-9._=-]*)*")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


class Store(Protocol):
    """The storage of one run. Keys are relative, with slashes. All but the below raises `CheckpointError`."""

    url: str
    poll_s: float  # how often at the most it is asked for what others write

    def put(self, key: str, pieces: Iterable[Piece]) -> None:
        """Write or replace a file: nobody ever sees a part of it."""
        ...

    def create(self, key: str, data: bytes) -> bool:
        """The same, but False where there is one already with another content: of several writers one wins."""
        ...

    def get(self, key: str) -> bytes:
        """Raises: FileNotFoundError"""
        ...

    def read(self, key: str, start: int, length: int) -> Piece:
        """Raises: FileNotFoundError"""
        ...

    def names(self, folder: str = "") -> list[str]:
        """The keys of all files below a folder."""
        ...

    def folders(self) -> list[str]:
        """The names of those directly in the run's that `names` may show nothing of: empty, or with half of a file."""
        ...

    def delete(self, key: str) -> None:
        """Also where there is none."""
        ...

    def remove(self, folder: str) -> None:
        """Everything below it, half-written files too."""
        ...


def open_store(root: str, run: str) -> Store:
    """The storage of ``run`` below ``root``: a path, or a URL.

    Raises:
        SpecError
    """
    if not _NAME.fullmatch(run):
        raise SpecError(
            f"checkpoint: the name is part of a path: letters, digits, dots, dashes and slashes, not {run!r}."
        )
    root = checked_root("checkpoint: root", root)
    if root.startswith("file://"):
        from .files import FileStore

        return FileStore(f"{root}/{run}")
    from .objects import ObjectStore

    return ObjectStore(f"{root}/{run}")


def checked_root(name: str, root: object) -> str:
    """A root as a URL without a slash at its end; a path becomes absolute here.

    Raises:
        SpecError
    """
    from os import PathLike, fspath
    from pathlib import Path

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


def polls(store: Store, within_s: float, wake: Event | None = None) -> Iterator[None]:
    """Once now, then after pauses that grow, until ``within_s`` have passed or ``wake`` is set."""
    wake = wake or Event()
    end = time.monotonic() + within_s
    pause = store.poll_s / 16
    yield
    while (left := end - time.monotonic()) > 0 and not wake.wait(min(pause, left)):
        pause = min(2 * pause, store.poll_s)
        yield
