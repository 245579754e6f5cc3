"""The protocol of a storage for checkpoints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from threading import Event
from typing import Protocol

Piece = bytes | bytearray | memoryview


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
