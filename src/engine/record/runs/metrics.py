"""Reading the metrics of a record, and the choice of the points to show.

A generation is one try of a broadcast. After a restart, the next generation repeats steps: of these steps, only the
newest generation's points are shown.

METRICS-1: for one function, job, rank, name and step, all points of the newest generation count.
METRICS-2: points without a step are never repeated: all of them count.
METRICS-3: a view has the points of each series by step, then the points without a step by time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from ....lazy_named_tuple import NamedTuple
from ...wire.log_records import number
from .lines import whole_lines

METRICS = "metrics.jsonl"
# faster than `json.loads`: it does not detect the encoding, which is always UTF-8 in a record
_read_json = json.JSONDecoder().raw_decode
CHUNK = 1024 * 1024  # bytes of a file that are read at a time


class Logged(NamedTuple):
    """The values of one `log_metrics` call. ``rank``: None outside of broadcasts.

    ``generation``: in a broadcast, the number of its generation (one try of the broadcast); in other calls, the number
    of the attempt. If the pool's program itself logged the values, they have no function (""), job (0) or node (None).
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
    """One curve: the values of one metric, logged by one rank of a broadcast or by one other call.

    Each task of a map is a job of its own.
    """

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
    """Return all metrics of the record in ``directory``, in the order of writing.

    An incomplete last line is skipped.
    """
    return list(metrics_in(_lines(directory / METRICS)))


def metrics_in(lines: Iterable[bytes]) -> Iterator[Logged]:
    """Yield the metrics of all lines that can be parsed."""
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
    """Return, by series, the points to show: of steps that a restarted broadcast repeated, only the newest points."""
    return {series: points for series, (points, _) in _divided(lines).items()}


def divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return, by series, (points to show, older points of steps that a restart repeated), in one pass."""
    return _divided(lines)


def replaced(lines: Iterable[Logged]) -> dict[Series, list[Point]]:
    """Return, by series, the older points of steps that a restarted broadcast repeated.

    `newest` leaves these points out. A view may draw them faintly.
    """
    return {series: older for series, (_, older) in _divided(lines).items() if older}


def _divided(lines: Iterable[Logged]) -> dict[Series, tuple[list[Point], list[Point]]]:
    """Return, by series, (points to show, older points of steps that a restarted broadcast repeated)."""
    all_points: dict[Series, list[Point]] = {}
    for at, function, job, rank, _, generation, step, values in lines:
        for name, value in values.items():
            points = all_points.get((function, job, rank, name))  # type: ignore[call-overload]  # a Series is such
            if points is None:
                points = all_points[Series(function, job, rank, name)] = []
            points.append(Point(step, value, at, generation))
    return {series: counted(points) for series, points in all_points.items()}


def counted(points: list[Point]) -> tuple[list[Point], list[Point]]:
    """Divide a series into the points to show and the older points of steps that a restart repeated, sorted by step."""
    if len({point.generation for point in points}) == 1:  # the broadcast did not restart, so no step is repeated
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
    """Yield the complete lines of a file, which may be large. A missing file has no lines."""
    rest = b""
    try:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(CHUNK):
                content = rest + chunk
                yield from whole_lines(content)
                rest = content[content.rfind(b"\n") + 1 :]
    except FileNotFoundError:
        return
