"""The data of a run that a tracker lacks, computed from the tracker's state file in the record."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..runs.lines import whole_lines
from ..runs.metrics import METRICS, metrics_in
from .base import Ranks, Tracker
from .cursor import Cursor
from .selection import Redone, Selection
from .state_file import FOLDER, LOG, StateFile

WORDS_BYTES = 4096  # bytes that are read from the end of the sending process's log
# bytes of metrics in which points are counted; the number of points in further bytes is an estimate
COUNTED_BYTES = 4 * 1024 * 1024


class Behind(NamedTuple):
    """The data of a run that one tracker lacks.

    ``points``: the number of missing points, perhaps estimated. ``rejected``: the number of deliveries (sent data) that
    the tracker will never accept.
    """

    tracker: str
    points: int
    rejected: int
    problem: str
    whole: bool  # True: the tracker has all data, except rejected deliveries

    def command(self, run: str) -> str:
        return f"outrider sync {shlex.quote(run)} --to {self.tracker}"


def behind(directory: Path, trackers: Sequence[Tracker]) -> list[Behind]:
    """Return an entry for each of the pool's trackers that lacks some data of the record. It reads some MB at most."""
    states = [behind_of(directory, each.name, each.ranks) for each in trackers]
    return [each for each in states if not each.whole or each.rejected]


def behind_of(directory: Path, name: str, ranks: Ranks) -> Behind:
    cursor = StateFile(directory, name).load()
    reason = cursor.reasons[-1] if cursor.reasons else ""
    if cursor.ended:
        return Behind(name, 0, cursor.rejected, reason, whole=True)
    problem = cursor.problem or reason or ("" if cursor.begun else _last_words(directory))
    return Behind(name, _points(directory, cursor, ranks), cursor.rejected, problem, whole=False)


def _last_words(directory: Path) -> str:
    """Return the last line of the sending process's log; "": there is none.

    For example, this line is the error of a tracker whose module cannot be imported.
    """
    try:
        with (directory / FOLDER / LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - WORDS_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def _points(directory: Path, cursor: Cursor, ranks: Ranks) -> int:
    at = cursor.position(METRICS)
    try:
        with (directory / METRICS).open("rb", buffering=0) as file:
            left = max(0, file.seek(0, 2) - at)
            file.seek(at)
            lines = whole_lines(file.read(COUNTED_BYTES))
    except OSError:
        return 0
    redone, selection = Redone(), Selection(ranks, cursor.selection)
    redone.look(lines)
    points = len(selection.add(metrics_in(lines), redone)) + len(selection.rest())
    return points if left <= COUNTED_BYTES else math.ceil(points * left / COUNTED_BYTES)
