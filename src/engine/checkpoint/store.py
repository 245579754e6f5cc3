"""Where checkpoints are kept: what a storage must be able to do."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Event
from typing import Protocol

Piece = bytes | bytearray | memoryview


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


def polls(store: Store, within_s: float, wake: Event | None = None) -> Iterator[None]:
    """Once now, then after pauses that grow, until ``within_s`` have passed or ``wake`` is set."""
    wake = wake or Event()
    end = time.monotonic() + within_s
    pause = store.poll_s / 16
    yield
    while (left := end - time.monotonic()) > 0 and not wake.wait(min(pause, left)):
        pause = min(2 * pause, store.poll_s)
        yield
