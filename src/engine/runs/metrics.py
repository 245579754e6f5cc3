"""Read the metrics of a record, and choose the points to show: for a repeated step, the newest generation's points.

METRICS-1: for one function, job, rank, name and step, all points of the newest generation count.
METRICS-2: points without a step are never repeated: all of them count.
METRICS-3: a view has the points of each series by step, then the points without a step by time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...lazy_named_tuple import NamedTuple
from ..wire.log_records import number
from .lines import whole_lines

METRICS = "metrics.jsonl"
_read_json = json.JSONDecoder().raw_decode  # skips the detection of other encodings, which a record never uses
CHUNK = 1024 * 1024  # bytes of a file that are read at a time


class Logged(NamedTuple):
    """The values of one `log_metrics` call. ``rank``: None outside of broadcasts.

    ``generation``: in a broadcast, its generation; in other calls, the number of the attempt. Metrics of the program
    itself have no function (""), job (0) or node (None).
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
    """One curve: a metric of one rank of a broadcast, or of one other call. A map has a job for each task."""

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
    """Return all metrics of the record in ``directory``, in the order of writing, without an incomplete last line."""
    return list(metrics_in(_lines(directory / METRICS)))


def metrics_in(lines: Iterable[bytes]) -> Iterator[Logged]:
    """Yield the metrics of all readable lines."""
    for line in lines:
        try:
            fields, end = _read_json(text := line.decode().strip())
            if end < len(text):
                continue
            values = {str(name): number(value) for name, value in fields["values"].items()}
            yield Logged(
                number(fields["at"]),
                str(fields["function"]),
                int(fields["job"]),
                fields["rank"],
                fields["node"],
                int(fields["generation"]),
                fields["step"],
                values,
            )
        except (ValueError, TypeError, KeyError, AttributeError):  # a full disk damaged the line
            continue


def newest(lines: Iterable[Logged]) -> dict[Series, list[Point]]:
    """Return the points of each series that count: for a repeated step, the newest generation's points."""
    return {series: points for series, (points, _) in _divided(lines).items()}


def divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return the points of `newest` and of `replaced` for each series, in one pass."""
    return _divided(lines)


def replaced(lines: Iterable[Logged]) -> dict[Series, list[Point]]:
    """Return the points that `newest` leaves out, by series: a view may draw them faintly."""
    return {series: older for series, (_, older) in _divided(lines).items() if older}


def _divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return, for each series, the points that count and the other points."""
    all_points: dict[Series, list[Point]] = {}
    for at, function, job, rank, _, generation, step, values in lines:
        for name, value in values.items():
            points = all_points.get((function, job, rank, name))  # type: ignore[call-overload]  # a Series is such
            if points is None:
                points = all_points[Series(function, job, rank, name)] = []
            points.append(Point(step, value, at, generation))
    return {series: counted(points) for series, points in all_points.items()}


def counted(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """Divide the points of one series into points that count and points of a repeated step, both sorted by step."""
    if len({point.generation for point in points}) == 1:  # no step was repeated
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
    """Yield the whole lines of a file of any size; no lines if the file is missing."""
    rest = b""
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                content = rest + chunk
                yield from whole_lines(content)
                rest = content[content.rfind(b"\n") + 1 :]
    except FileNotFoundError:
        return
