"""The files of one record, and the lock that the writing program holds.

The kernel releases the lock if the program dies.

`WholeProgram` describes a process whose only job is one run (`outrider run`): its exit code becomes the exit code in
the run's record.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ....lazy_dataclass import dataclass
from ....providers.shared.paths import NotPrivate
from ....providers.shared.pool_lock import Lock, make_directory
from .lines import EVENTS, LOGS
from .names import new_id

TRIES = 8  # attempts to find an id that no other run has
# Space on the disk that records never use (on a small disk: 1/50 of the disk), so that they cannot fill the disk.
KEEP_FREE_BYTES = 512 * 1024 * 1024


class RecordFiles:
    """A record that this process writes.

    It never calls fsync: the data that a power failure may lose is not worth the wait.
    """

    def __init__(self, directory: Path, lock: Lock) -> None:
        self.directory, self._lock = directory, lock

    @classmethod
    def make(cls, folder: Path, name: str, began: float) -> RecordFiles:
        """Create a new record in ``folder``, with a new id.

        Raises:
            OSError: The folder cannot be written, or other users may write in it.
        """
        try:
            make_directory(folder)
        except NotPrivate as error:
            raise PermissionError(
                errno.EPERM, f"{error.why}, and they could change the records in it", error.filename
            ) from None
        for _ in range(TRIES):
            directory = folder / new_id(name, began)
            try:
                directory.mkdir(mode=0o700)
            except FileExistsError:
                continue
            lock = Lock.take(directory)
            if lock is not None:
                (directory / EVENTS).touch(mode=0o600)
                (directory / LOGS).mkdir(mode=0o700)
                return cls(directory, lock)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder / name))

    def append(self, text: Mapping[str, bytes]) -> None:
        """Append to files, with one write for each file. If a write is incomplete, undo it.

        Raises:
            OSError: The write failed, for example because the disk is nearly full.
        """
        if text:
            self._check_room()
        for path, lines in text.items():
            self._append(self.directory / path, lines)

    def replace(self, path: str, content: Mapping[str, Any] | bytes) -> None:
        """Replace a file atomically: a reader gets either the old content or the new content."""
        raw = content if isinstance(content, bytes) else json.dumps(content, indent=1, default=str).encode() + b"\n"
        new = self.directory / f"{path}.new"
        new.unlink(missing_ok=True)
        self._append(new, raw)
        new.rename(self.directory / path)

    def remove(self, paths: Iterable[str]) -> None:
        """Remove files of the record. Missing files are ignored."""
        for path in paths:
            (self.directory / path).unlink(missing_ok=True)

    def add(self, path: str, content: bytes | memoryview) -> None:
        """Write a new file, and create its folder. Any thread may call this.

        Raises:
            OSError: The write failed, for example because the disk would be nearly full.
        """
        self._check_room(len(content))
        (self.directory / path).parent.mkdir(mode=0o700, exist_ok=True)
        self._append(self.directory / path, content)

    def close(self) -> None:
        self._lock.give_back()

    def _check_room(self, size_bytes: int = 0) -> None:
        disk = os.statvfs(self.directory)
        if disk.f_bavail * disk.f_frsize - size_bytes < min(KEEP_FREE_BYTES, disk.f_blocks * disk.f_frsize // 50):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory))

    def _append(self, path: Path, lines: bytes | memoryview) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            file = os.open(path, flags, 0o600)
        except FileNotFoundError:  # the folder does not exist yet
            path.parent.mkdir(mode=0o700)
            file = os.open(path, flags, 0o600)
        try:
            before = os.fstat(file).st_size
            try:
                left = memoryview(lines)
                while left:
                    left = left[os.write(file, left) :]
            except OSError:
                os.ftruncate(file, before)
                raise
        finally:
            os.close(file)


@dataclass(frozen=True, slots=True)
class WholeProgram:
    """The description of a process whose only job is one run.

    ``exit_code``: returns the process's exit code for an error of the pool. ``files``: the record that it has created.
    """

    exit_code: Callable[[BaseException], int]
    files: RecordFiles | None = None
