"""A tracker that writes runs as lines of JSON to another folder, such as a shared disk: one file per run.

`ExactFiles`, which other trackers use too, appends each delivery (the data of one call of a sender) to files exactly
once, even if the process is killed. After each append the record notes the sizes of all files and the delivery's key.
If a file is longer than its noted size, the further bytes belong to a delivery that was not reported as accepted: they
are cut off, and sent again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from ....lazy_dataclass import dataclass
from ....providers.shared.paths import expanded
from ...api.checks import checks_options
from .base import READY, Artifact, Away, End, Point, Ranks, Sender, Text, TrackedRun, Tracker, check_name, check_ranks

_NOTE = "files"


class ExactFiles:
    """Files in ``folder`` and its subfolders, to which deliveries are appended.

    ``more``: JSON values of the caller that are stored together with the latest delivery.
    """

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        self.folder, self._run = folder, run
        noted = _read(run.ids.get(_NOTE, ""))
        self._sizes: dict[str, int] = noted.get("sizes", {})
        self._keys: dict[str, str] = noted.get("keys", {})  # kind of delivery -> its newest key
        self.more: dict[str, Any] = noted.get("more", {})

    def recover(self, there: Iterable[Path]) -> None:
        """Cut off bytes that an interrupted append has left. ``there``: all existing files of this run.

        Raises:
            Away: The disk cannot be written.
        """
        try:
            for path in there:
                size = self._sizes.get(str(path.relative_to(self.folder)), 0)
                if path.stat().st_size > size:
                    os.truncate(path, size)
        except OSError as error:
            raise _away(error) from error

    def has(self, key: str) -> bool:
        """Return whether the delivery with this key was already appended."""
        return self._keys.get(_kind(key)) == key

    def append(self, key: str, contents: Mapping[str, bytes], more: dict[str, Any] | None = None) -> None:
        """Append to files, and record the delivery.

        Args:
            key: The key of the delivery.
            contents: Path in the folder -> bytes to append.
            more: JSON values to store; None: keep the present ones.

        Raises:
            Away: The disk cannot be written; nothing has changed.
        """
        if self.has(key):
            return
        try:
            for name, content in contents.items():
                self._append(name, content)
        except OSError as error:
            raise _away(error) from error
        self.more = self.more if more is None else more
        sizes = {name: self._sizes.get(name, 0) + len(content) for name, content in contents.items()}
        self._sizes |= sizes
        self._keys[_kind(key)] = key
        self._run.keep(_NOTE, json.dumps({"sizes": self._sizes, "keys": self._keys, "more": self.more}))

    def _append(self, name: str, content: bytes) -> None:
        path, size = self.folder / name, self._sizes.get(name, 0)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(file).st_size > size:  # an earlier append failed after it wrote some bytes
                os.ftruncate(file, size)
            os.lseek(file, 0, os.SEEK_END)
            left = memoryview(content)
            while left:
                left = left[os.write(file, left) :]
        finally:
            os.close(file)


def check_folder(owner: str, folder: object) -> str:
    """Return the absolute path of a folder.

    Raises:
        SpecError: The folder is not valid.
    """
    from ...api.checks import refuse, shown

    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder) or "://" in str(folder):
        refuse(f"{owner} takes a folder of this computer, as in {owner}('/shared/runs'), not {shown(folder)}.")
    return str(expanded(folder).absolute())


def _kind(key: str) -> str:
    return ":".join(key.split(":")[:2])  # the first two parts of a `Sender.key`: the run and the kind of data


def _read(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _away(error: OSError) -> Away:
    return Away(f"{error.filename or 'the disk'}: {error.strerror or error}")


@checks_options
@dataclass(frozen=True, slots=True)
class JSONLines(Tracker):
    """A tracker that writes a file ``RUN.jsonl`` for each run to a folder of this computer.

    Args:
        folder: The folder; it is created if needed.
        ranks: The ranks whose points are sent: ``"head"``: rank 0; ``"all"``: all ranks, with the rank in the points'
            names; ``"mean"``: the mean of each step.
        name: The name of the tracker, unique in its pool.

    Raises:
        SpecError: An option is not valid.
    """

    kind: ClassVar[str] = "jsonl"

    folder: str | PathLike[str]
    ranks: Ranks = "head"
    name: str = "jsonl"

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", check_folder("JSONLines", self.folder))
        check_ranks("JSONLines", self.ranks)
        check_name("JSONLines", self.name)

    def open(self, run: TrackedRun) -> Sender:
        return JSONLinesSender(Path(self.folder), run)


class JSONLinesSender(Sender):
    """The writer of one run's file. The field ``kind`` of each line says what the line contains."""

    events = frozenset({READY})

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        self._run, self._file = run, f"{run.id}.jsonl"
        self._files = ExactFiles(folder, run)

    def begun(self) -> None:
        path = self._files.folder / self._file
        self._files.recover([path] if path.exists() else [])
        run = self._run
        about = {"began": run.began, "user": run.user, "provider": run.provider, "argv": run.about.get("argv")}
        place = {"placement": run.placement, "machines": list(run.machines)}
        self._write("begun", [{"run": run.id, "name": run.name, **about, **place, "git": dict(run.git)}])

    def params(self, values: Mapping[str, Any]) -> None:
        self._write("params", [{"params": values}])

    def points(self, points: Sequence[Point]) -> None:
        self._write("metric", [point_facts(point) for point in points])

    def artifact(self, artifact: Artifact) -> None:
        about = {"name": artifact.name, "path": str(artifact.path), "size_bytes": artifact.size_bytes}
        more = {"sha256": artifact.sha256, "at": artifact.at, "rank": artifact.rank}
        self._write("artifact", [about | more])

    def text(self, text: Text) -> None:
        self._write("text", [text._asdict()])

    def event(self, event: Mapping[str, Any]) -> None:
        self._write("event", [{"event": dict(event)}])

    def ended(self, end: End) -> None:
        self._write("ended", [end._asdict()])

    def _write(self, kind: str, lines: Sequence[Mapping[str, Any]]) -> None:
        text = "".join(json.dumps({"kind": kind, **line}, default=str) + "\n" for line in lines)
        self._files.append(self.key, {self._file: text.encode()})


def point_facts(point: Point) -> dict[str, Any]:
    """Return a point as JSON values. nan and infinities become strings."""
    facts = point._asdict()
    del facts["number"]
    return facts | {"value": point.value if math.isfinite(point.value) else str(point.value)}
