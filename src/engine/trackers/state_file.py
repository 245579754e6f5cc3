"""The file with a tracker's position in a run's record, and a lock so that only one process sends to the tracker."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..runs.reader import read_json
from .cursor import Cursor

FOLDER = "trackers"  # folder in the run's record
LOG = "process.log"  # file in `FOLDER` with the output of the sending process


class Busy(Exception):
    """The error for a tracker to which another process is sending."""


class StateFile:
    """The file ``trackers/NAME.json`` of a run's record.

    The file holds no secret: only ids, positions, and replies of a tracker.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / FOLDER / f"{name}.json"

    def load(self) -> Cursor:
        return Cursor.read(read_json(self.path))

    def save(self, cursor: Cursor) -> None:
        """Replace the whole content of the file. After a kill the file has either the old or the new content.

        Raises:
            OSError: The file cannot be written.
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
        """Hold the lock that only one sending process can hold. The kernel releases it when the process ends.

        Raises:
            Busy: Another process holds the lock.
            OSError: The lock file cannot be opened.
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
    """Return the names of the trackers that have a state file in the record."""
    return sorted(path.stem for path in (directory / FOLDER).glob("*.json"))
