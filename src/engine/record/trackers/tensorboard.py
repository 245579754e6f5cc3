"""A tracker that writes runs as TensorBoard event files to a folder.

Each run has a subfolder, which has a subfolder for each function and rank.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import ClassVar

from ....lazy_dataclass import dataclass
from ...api.checks import checks_options
from ..runs.tensorboard import MOST_FOLDERS, record, restart_event, scalars_event, version_event
from .base import Point, Ranks, Rejected, Sender, TrackedRun, Tracker, check_name, check_ranks
from .json_lines import ExactFiles, check_folder


@checks_options
@dataclass(frozen=True, slots=True)
class TensorBoard(Tracker):
    """A folder of this computer that ``tensorboard --logdir`` can show. The package tensorboard is not needed.

    Args:
        folder: The folder; it is created if needed.
        ranks: The ranks whose points are sent: ``"head"``: rank 0; ``"all"``: all ranks, with the rank in the points'
            names; ``"mean"``: the mean of each step.
        name: The name of the tracker, unique in its pool.

    Raises:
        SpecError: An option is not valid.
    """

    kind: ClassVar[str] = "tensorboard"

    folder: str | PathLike[str]
    ranks: Ranks = "head"
    name: str = "tensorboard"

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", check_folder("TensorBoard", self.folder))
        check_ranks("TensorBoard", self.ranks)
        check_name("TensorBoard", self.name)

    def open(self, run: TrackedRun) -> Sender:
        return TensorBoardSender(Path(self.folder), run)


class TensorBoardSender(Sender):
    """The writer of one run's event files.

    It remembers the step of the last point in each file, and the generation (the broadcast's try) that logged it.
    """

    def __init__(self, folder: Path, run: TrackedRun) -> None:
        self._run = run
        self._files = ExactFiles(folder / run.id, run)

    def begun(self) -> None:
        self._files.recover(self._files.folder.rglob("events.out.tfevents.*"))

    def points(self, points: Sequence[Point]) -> None:
        if self._files.has(self.key):
            return
        series: dict[str, tuple[int, int]] = {name: (number, step) for name, (number, step) in self._files.more.items()}
        contents: dict[str, bytearray] = {}
        left_out = 0
        for point in points:
            name = self._file(point)
            if name not in series and len(series) >= MOST_FOLDERS:
                left_out += 1
                continue
            events = contents.setdefault(name, bytearray())
            if name not in series:
                series[name] = (point.generation, -1)
                events += record(version_event(point.at))
            generation, last = series[name]
            step = last + 1 if point.step is None else point.step
            if point.generation > generation and step <= last:
                events += record(restart_event(point.at, step))
            series[name] = max(point.generation, generation), step
            events += record(scalars_event(point.at, step, {point.name: point.value}))
        noted = {name: list(each) for name, each in series.items()}
        self._files.append(self.key, {name: bytes(events) for name, events in contents.items()}, noted)
        if left_out:
            raise Rejected(f"{left_out} points of more than {MOST_FOLDERS:,} functions and jobs")

    def _file(self, point: Point) -> str:
        function = re.sub(r"[^A-Za-z0-9._-]+", "-", point.function).strip("-.") or "program"
        whose = f"{function}-{point.job}" if point.job and point.rank is not None else function
        folder = f"{whose}/rank-{point.rank:03}" if point.rank is not None else whose
        return f"{folder}/events.out.tfevents.{int(self._run.began):010}.outrider"
