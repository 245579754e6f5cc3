"""A tracker that writes runs as lines of JSON to another folder, such as a shared disk: one file per run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar

from ...lazy_dataclass import dataclass
from ..api.checks import checks_options
from .base import Artifact, End, Point, Ranks, Sender, Text, TrackedRun, Tracker, check_name, check_ranks
from .exact_files import ExactFiles, check_folder
from .machines import READY


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
