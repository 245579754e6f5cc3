"""Read the metrics of a record, and choose what a view shows: of a step that was redone, the newest generation.

METRICS-1: of one function, job, rank, name and step the newest generation counts, and all of its points.
METRICS-2: points without a step are never redone: all of them count.
METRICS-3: a view has the points of each series by step, those without one at its end, by time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...lazy_named_tuple import NamedTuple
from ..wire.log_records import number
from .lines import whole_lines

METRICS = "metrics.jsonl"
_read_json = json.JSONDecoder().raw_decode  # without looks for other encodings, of which a record has none
CHUNK = 1024 * 1024  # bytes of a file that are read at a time


class Logged(NamedTuple):
    """The values of one `log_metrics` call. ``rank``: None outside of broadcasts.

    ``generation``: of a broadcast; of other calls, the number of the attempt. What the program itself has logged is of
    no function (""), job (0) or node (None).
    """

    at: float  # unix time
    function: str
    job: int
    rank: int | None
    node: int | None
    generation: int
    step: int | None
    values: dict[str, float]


class Series(NamedTuple):
    """One curve: a name that one rank of a broadcast, or one other call, has logged. A map has a job for each task."""

    function: str
    job: int
    rank: int | None
    name: str


class Point(NamedTuple):
    """A point of a curve."""

    step: int | None
    value: float
    at: float  # unix time
    generation: int


def read_metrics(directory: Path) -> list[Logged]:
    """Return all metrics of the record in ``directory``, as they were written. A line that is not whole is left out."""
    return list(metrics_in(_lines(directory / METRICS)))


def metrics_in(lines: Iterable[bytes]) -> Iterator[Logged]:
    """Return the metrics of those lines that can be read."""
    for line in lines:
        try:
            said, end = _read_json(text := line.decode().strip())
            if end < len(text):
                continue
            values = {str(name): number(value) for name, value in said["values"].items()}
            yield Logged(
                number(said["at"]),
                str(said["function"]),
                int(said["job"]),
                said["rank"],
                said["node"],
                int(said["generation"]),
                said["step"],
                values,
            )
        except (ValueError, TypeError, KeyError, AttributeError):  # a disk that was full has left it
            continue


def newest(lines: Iterable[Logged]) -> dict[Series, list[Point]]:
    """Return the points of each series that count. Of a step that was redone these are the newest generation's."""
    return {series: points for series, (points, _) in _divided(lines).items()}


def divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return of each series the points of `newest` and those of `replaced`, in one pass over all of them."""
    return _divided(lines)


def replaced(lines: Iterable[Logged]) -> dict[Series, list[Point]]:
    """Return the points that `newest` leaves out, of the series that have such: what a view may draw faintly."""
    return {series: older for series, (_, older) in _divided(lines).items() if older}


def _divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return the points of each series that count, and the others."""
    all_points: dict[Series, list[Point]] = {}
    for at, function, job, rank, _, generation, step, values in lines:
        for name, value in values.items():
            points = all_points.get((function, job, rank, name))  # type: ignore[call-overload]  # a Series is such
            if points is None:
                points = all_points[Series(function, job, rank, name)] = []
            points.append(Point(step, value, at, generation))
    return {series: counted(points) for series, points in all_points.items()}


def counted(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """Return the points of one series that count, and those that were done again, both by step."""
    if len({point.generation for point in points}) == 1:  # nothing was done twice
        return sorted(points, key=_place), []
    generations: dict[int | None, int] = {}
    for point in points:
        generations[point.step] = max(point.generation, generations.get(point.step, point.generation))
    counted = [each for each in points if each.step is None or each.generation == generations[each.step]]
    older = [each for each in points if each.step is not None and each.generation < generations[each.step]]
    return sorted(counted, key=_place), sorted(older, key=_place)


def _place(point: Point) -> tuple[bool, int, float]:
    return point.step is None, point.step or 0, point.at


def _lines(path: Path) -> Iterator[bytes]:
    """Return the whole lines of a file, however large it is; none if it is not there."""
    rest = b""
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                content = rest + chunk
                yield from whole_lines(content)
                rest = content[content.rfind(b"\n") + 1 :]
    except FileNotFoundError:
        return
