"""The choice of the points that a tracker gets from a record (no I/O), and the count of those that it still lacks.

The tracker's ``ranks`` select the points. If a broadcast restarts, its next generation (try) repeats some steps: the
newest generation's points count. `behind` computes the data that a tracker lacks from the tracker's state file in the
record.

SELECT-1: ``head`` has each point of rank 0 and of calls outside of broadcasts; ``all`` has each point; each once.
SELECT-2: for a step that was repeated, an older generation's point is left out if the newer point is already known.
SELECT-3: a mean is of one name and step of one generation, and is sent once. It is sent when all ranks that log this
    name have logged it, or `LAG_S` later by the record's own times, or at the end of the run.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..runs.lines import whole_lines
from ..runs.metrics import METRICS, Logged, metrics_in
from .base import Point, Ranks, Tracker
from .state_file import FOLDER, LOG, Cursor, StateFile

LAG_S = 10.0  # seconds after which the mean over the ranks is sent without the values of slow ranks
KEPT_KEYS = 20_000  # most (job, rank) pairs whose tries are remembered; a map has one job for each task
_ORIGIN = re.compile(rb'"job":(\d+),"rank":(\d+|null),"node":[^,]*,"generation":(\d+),"step":(-?\d+)')


class Redone:
    """The points that a restarted broadcast has logged again, as found in the lines passed to `look`."""

    def __init__(self) -> None:
        # (job, rank) -> generation (try of the broadcast) -> highest step that the rank has logged in it
        self._tops: dict[tuple[bytes, bytes], dict[int, int]] = {}
        # (job, rank) -> (name, step that a restart repeated) -> newest generation (try) that logged it
        self._again: dict[tuple[int, int | None], dict[tuple[str, int], int]] = {}

    def look(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            match = _ORIGIN.search(line)
            if match is None:
                continue
            key, generation, step = (match[1], match[2]), int(match[3]), int(match[4])
            tops = self._tops.get(key)
            if tops is None:
                while len(self._tops) >= KEPT_KEYS:
                    self._tops.pop(next(iter(self._tops)))
                tops = self._tops[key] = {}
            if any(step <= top for older, top in tops.items() if older < generation):
                for logged in metrics_in([line]):
                    names = self._again.setdefault((logged.job, logged.rank), {})
                    for name in logged.values:
                        names[name, step] = max(generation, names.get((name, step), 0))
            tops[generation] = max(step, tops.get(generation, step))

    def __call__(self, logged: Logged, name: str) -> bool:
        names = self._again.get((logged.job, logged.rank))
        if not names or logged.step is None:
            return False
        return names.get((name, logged.step), 0) > logged.generation


class Selection:
    """The points of a record that one tracker gets, in the order of the record."""

    def __init__(self, ranks: Ranks, state: Mapping[str, Any] | None = None) -> None:
        self._ranks: Ranks = ranks
        state = state or {}
        # name -> number of its points without a step so far
        self._counts: dict[str, int] = dict(state.get("counts", {}))
        self._means = _Means(state.get("means", {}))

    def state(self) -> dict[str, Any]:
        """Return the state of this selection as JSON values, from which a later process continues."""
        return {"counts": dict(self._counts), "means": self._means.state()}

    def add(self, lines: Iterable[Logged], redone: Callable[[Logged, str], bool]) -> list[Point]:
        """Add logged lines. Return the points that can be sent now.

        ``redone``: returns whether a restarted broadcast has logged a line's name again at the line's step.
        """
        points: list[Point] = []
        for each in lines:
            if self._ranks == "head" and each.rank:
                continue
            mean = self._ranks == "mean" and each.rank is not None and each.step is not None
            if self._ranks == "mean" and each.rank and each.step is None:
                continue  # a mean needs steps, so only rank 0's points without a step are sent
            for name, value in each.values.items():
                if redone(each, name):
                    continue
                if mean:
                    points += self._means.add(each, name, value)
                    continue
                shown = f"{name}/rank-{each.rank}" if self._ranks == "all" and each.rank is not None else name
                points.append(self._point(each, shown, value))
        return points

    def rest(self) -> list[Point]:
        """Return the points that are still held back; call this when the run has ended."""
        return self._means.rest()

    def _point(self, of: Logged, name: str, value: float) -> Point:
        number = 0
        if of.step is None:
            number = self._counts.get(name, 0)
            self._counts[name] = number + 1
        return Point(name, value, of.step, of.at, of.rank, of.node, of.function, of.job, of.generation, number)


class _Means:
    """The values of ranks whose mean is not sent yet, by job, function, name, generation and step."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self._series: dict[str, dict[str, Any]] = json.loads(json.dumps(state))

    def state(self) -> dict[str, Any]:
        copied: dict[str, Any] = json.loads(json.dumps(self._series))
        return copied

    def add(self, of: Logged, name: str, value: float) -> list[Point]:
        key = json.dumps([of.job, of.function, name])
        series = self._series.get(key)
        points: list[Point] = []
        if series is None or series["generation"] < of.generation:
            # if the broadcast has restarted, send the older means, of steps before the first step after the restart
            if series is not None:
                points = self._closed(key, lambda step, _: step < (of.step or 0))
            series = self._series[key] = {
                "generation": of.generation,
                "ranks": [],
                "since": of.at,
                "closed": None,
                "open": {},
            }
        if of.generation < series["generation"] or (series["closed"] is not None and of.step <= series["closed"]):
            return points  # too late: the mean of this step was already sent
        if of.rank not in series["ranks"]:
            series["ranks"].append(of.rank)
        group = series["open"].setdefault(str(of.step), {"at": of.at, "values": {}})
        group["values"][str(of.rank)] = value
        settled, ranks = of.at - series["since"] >= LAG_S, len(series["ranks"])
        points += self._closed(
            key, lambda _, each: (settled and len(each["values"]) >= ranks) or of.at - each["at"] > LAG_S
        )
        return points

    def rest(self) -> list[Point]:
        return [point for key in self._series for point in self._closed(key, lambda _, __: True)]

    def _closed(self, key: str, closes: Callable[[int, Mapping[str, Any]], bool]) -> list[Point]:
        job, function, name = json.loads(key)
        series = self._series[key]
        points: list[Point] = []
        for text, group in sorted(series["open"].items(), key=lambda each: int(each[0])):
            step = int(text)
            if not closes(step, group):
                # this mean is not complete yet; later steps must wait for it, as means are sent in the order of steps
                break
            del series["open"][text]
            series["closed"] = step
            mean = sum(group["values"].values()) / len(group["values"])
            points.append(Point(name, mean, step, group["at"], None, None, function, job, series["generation"]))
        return points


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
