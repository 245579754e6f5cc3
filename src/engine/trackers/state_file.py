"""The file of a tracker's progress in a record, and the lock of its sender."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..runs.reader import read_json
from .cursor import Cursor

FOLDER = "trackers"  # below the record
LOG = "process.log"  # there: the output of the sending process


class Busy(Exception):
    """Another process sends to this tracker."""


class StateFile:
    """``trackers/NAME.json``. It holds no secret: only ids, positions, and answers of a tracker."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / FOLDER / f"{name}.json"

    def load(self) -> Cursor:
        return Cursor.read(read_json(self.path))

    def save(self, cursor: Cursor) -> None:
        """Replace the state as a whole. A kill leaves the old one or the new one.

        Raises:
            OSError
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self.path.with_suffix(".new")
        with suppress(FileNotFoundError):
            new.unlink()
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(file, "w") as stream:  # noqa: PTH123  a file descriptor
            json.dump(cursor.facts(), stream)
        new.rename(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the only sender. The kernel releases it with the process.

        Raises:
            Busy
            OSError
        """
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Busy from None
            yield
        finally:
            os.close(file)


def trackers_in(directory: Path) -> list[str]:
    """Return the names of the trackers that the record has states of."""
    return sorted(path.stem for path in (directory / FOLDER).glob("*.json"))
