"""A tracker's position in a run's record: how it moves, and the file that stores it.

`Cursor` chooses the next part of the record to send, also after a kill of the sending process (no clock, no I/O). The
state (position, mark and more) is saved on each change. The position is the end of the data that was sent; the mark is
the end of the part that is being sent. `StateFile` stores the state, and has a lock so that only one process sends to
the tracker.

CURSOR-1: the part that is being sent lies between the position and the mark; both are saved before the part is sent.
CURSOR-2: after a kill the same part is sent again, with the same key: it ends at the mark, however long the file is.
CURSOR-3: the position only grows, and never passes data that was neither accepted nor rejected.
CURSOR-4: the end of the run is sent when no other data is left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import Any

from ....lazy_dataclass import dataclass
from ..runs.metrics import METRICS
from ..runs.reader import read_json

CHUNK_BYTES = 256 * 1024  # most bytes of a file that are sent at once
CHUNK_LINES = 1000
REASONS_KEPT = 20  # most reasons for rejections that the state keeps; the number of rejections is always exact
REST = "rest"  # last word of the key of points that are sent only after the run's end


def cut(content: bytes) -> int:
    """Return how many bytes of ``content`` to send at once: complete lines; 0: the first line is still incomplete.

    If a line is longer than `CHUNK_BYTES`, cut it there; the receiver skips it as invalid.
    """
    content = content[:CHUNK_BYTES]
    at = 0
    for _ in range(CHUNK_LINES):
        end = content.find(b"\n", at)
        if end < 0:
            break
        at = end + 1
    return at or (CHUNK_BYTES if len(content) == CHUNK_BYTES else 0)


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


@dataclass(slots=True)
class Cursor:
    """The saved progress of sending a run to one tracker.

    ``at``: file -> number of its bytes that are sent. ``until``: the end of the part of `metrics.jsonl` that is being
    sent; None: no part is being sent. ``selection``: the value of `Selection.state` at the position ``at``.
    """

    at: dict[str, int] = field(default_factory=dict)
    until: int | None = None
    selection: dict[str, Any] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)  # name -> digest of the value that was sent
    ids: dict[str, str] = field(default_factory=dict)
    begun: bool = False
    ended: bool = False
    points: int = 0  # number of points that the tracker accepted
    rejected: int = 0  # number of deliveries that the tracker will never accept
    reasons: list[str] = field(default_factory=list)
    problem: str = ""  # why the tracker accepts no data at present; "": it accepts data

    @classmethod
    def read(cls, facts: Mapping[str, Any]) -> Cursor:
        """Return the cursor that ``facts`` describe. Values that are missing or invalid are as in a new cursor."""
        cursor = cls()
        for each in fields(cls):
            value = facts.get(each.name)
            if type(value) is (int if each.name == "until" else type(getattr(cursor, each.name))):
                setattr(cursor, each.name, value)
        return cursor

    def facts(self) -> dict[str, Any]:
        return asdict(self)

    def position(self, file: str) -> int:
        return self.at.get(file, 0)

    def mark(self, size: int) -> None:
        """Record that the next ``size`` bytes of `metrics.jsonl` are being sent."""
        self.until = self.position(METRICS) + size if size else None

    def marked(self) -> int:
        """Return the size of the part that an earlier process was sending when it was killed; 0: none."""
        return 0 if self.until is None else max(0, self.until - self.position(METRICS))

    def done(self, file: str, size: int) -> None:
        """Record that the next ``size`` bytes of ``file`` were accepted or rejected.

        For `metrics.jsonl`, this also resets ``until``, the end of the part that was being sent.
        """
        self.at[file] = self.position(file) + size
        if file == METRICS:
            self.until = None

    def new_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in params.items() if self.params.get(name) != digest(value)}

    def params_done(self, sent: Mapping[str, Any]) -> None:
        self.params |= {name: digest(value) for name, value in sent.items()}

    def reject(self, why: str) -> None:
        self.rejected += 1
        self.reasons = [*self.reasons, why][-REASONS_KEPT:]


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
