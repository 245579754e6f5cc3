"""The charts of a living run's metrics, as a report has them, and what each new point adds. No clock, no I/O.

LIVE-1: the charts that a page has, with all tails that it was sent after them, are those that a report makes of the
        same lines; a chart for which that would not be so is stale until it is made anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from ...lazy_dataclass import dataclass
from ..report.charts import Chart, Facts, label_of, metric_chart, metric_charts, thin
from ..runs.metrics import Logged, Point, Series, counted

Key = tuple[str, str]  # of a chart: function and name
TAIL_POINTS = 20_000  # of a chart, after which its curves are thinned again


@dataclass(slots=True)
class Tail:
    """The points that a curve has got since the last message."""

    at_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Line:
    """A curve to which points can be added: its place among a chart's curves and facts, and its last point.

    ``once``: all of its points are of one generation.
    """

    key: Key
    place: int
    fact: int
    last: Point
    once: bool


class Change(NamedTuple):
    """A change of a chart that a page has: ``tails`` by the place of their curve; None: it is to be sent as a whole."""

    place: int  # of the chart
    chart: Chart
    tails: dict[int, Tail] | None


class LiveCharts:
    """``fresh``: there is a chart that no page has got yet, so all charts have to be sent."""

    def __init__(self, began_at: float) -> None:
        self._began = began_at
        self._points: dict[Series, list[Point]] = {}
        self._series: dict[Key, list[Series]] = {}  # in the order in which charts stand on the page
        self._charts: dict[Key, Chart] = {}
        self._lines: dict[Series, _Line] = {}
        self._tails: dict[Key, dict[int, Tail]] = {}  # that no message has taken
        self._grown: dict[Key, int] = {}  # points that a chart has got since it was made
        self._made: list[Key] = []  # anew, and not sent yet
        self._stale: set[Key] = set()
        self.fresh = False

    @property
    def charts(self) -> list[Chart]:
        """All charts, as a page has them that has got everything."""
        return [self._charts[key] for key in self._series]

    @property
    def stale(self) -> bool:
        """Say whether a chart has to be made anew before it has all points."""
        return bool(self._stale)

    @property
    def grown(self) -> bool:
        """Say whether a chart has got points since it was made: the tables below it lack them."""
        return bool(self._grown)

    def add(self, lines: Iterable[Logged]) -> None:
        for at, function, job, rank, _, generation, step, values in lines:
            for name, value in values.items():
                self._add(Series(function, job, rank, name), Point(step, value, at, generation))

    def _add(self, series: Series, point: Point) -> None:
        key = (series.function, series.name)
        points = self._points.get(series)
        if points is None:
            points = self._points[series] = []
            if key not in self._series:
                self._series[key] = []
                self.fresh = True
            self._series[key].append(series)
            self._stale.add(key)
        points.append(point)
        if key in self._stale:
            return
        line = self._lines.get(series)
        if line is None or not _follows(point, line.last, by_step=self._charts[key].by_step, once=line.once):
            self._stale.add(key)
            self._tails.pop(key, None)
            return
        self._append(line, point)

    def _append(self, line: _Line, point: Point) -> None:
        chart, line.last = self._charts[line.key], point
        curve, at_s = chart.curves[line.place], point.at - self._began
        tail = self._tails.setdefault(line.key, {}).setdefault(line.place, Tail())
        for has in (curve, tail):
            assert isinstance(has.at_s, list)
            assert isinstance(has.ys, list)
            has.at_s.append(at_s)
            has.ys.append(point.value)
            if curve.steps is not None:
                assert isinstance(has.steps, list)
                has.steps.append(point.step or 0)
        chart.facts[line.fact] = _with(chart.facts[line.fact], at_s if curve.steps is None else point.step or 0, point)
        self._grown[line.key] = self._grown.get(line.key, 0) + 1
        if self._grown[line.key] > TAIL_POINTS:
            self._stale.add(line.key)

    def renew(self, *, grown: bool = False) -> None:
        """Make the stale charts anew; with ``grown`` those too that have got points."""
        for _ in self.renewing(grown=grown):
            pass

    def renewing(self, *, grown: bool) -> Iterator[None]:
        """Make charts anew as `renew` does, one at each step: those that need it most first."""
        if self.fresh:
            self._renew_all()
            yield
            return
        keys = [key for key in self._series if key in self._stale or (grown and key in self._grown)]
        for key in sorted(keys, key=lambda key: (key not in self._stale, -self._grown.get(key, 0))):
            counts = {series: counted(self._points[series]) for series in self._series[key]}
            chart = metric_chart(*key, self._series[key], counts, self._began)
            beside = sum(len(each.curves) for other, each in self._charts.items() if other != key)
            (self._charts[key],) = thin([chart], beside)
            self._renewed(key, {series: points for series, (points, _) in counts.items()})
            yield

    def _renew_all(self) -> None:
        counts = {series: counted(points) for series, points in self._points.items()}
        self._charts = dict(zip(self._series, metric_charts(counts, self._began), strict=True))
        for key, all_series in self._series.items():
            self._renewed(key, {series: counts[series][0] for series in all_series})

    def _renewed(self, key: Key, points: dict[Series, list[Point]]) -> None:
        self._stale.discard(key)
        self._grown.pop(key, None)
        self._tails.pop(key, None)
        if key not in self._made:
            self._made.append(key)
        chart, all_series = self._charts[key], self._series[key]
        several = len({series.job for series in all_series}) > 1
        places = {curve.label: place for place, curve in enumerate(chart.curves) if not curve.faint}
        told = {each.label: place for place, each in enumerate(chart.facts)}
        for series in all_series:
            self._lines.pop(series, None)
            label = label_of(series, several_jobs=several)
            if chart.band is None and label in places:
                has = points[series]
                last = has[-1] if chart.by_step else max(has, key=lambda each: each.at)
                once = len({point.generation for point in self._points[series]}) == 1
                self._lines[series] = _Line(key, places[label], told[label], last, once)

    def taken(self) -> list[Change]:
        """Return what has changed since the last call, for pages that have got all before; if ``fresh``, all charts."""
        order = {key: place for place, key in enumerate(self._series)}
        made = [*order] if self.fresh else self._made
        found = [Change(order[key], self._charts[key], None) for key in made if key in self._charts]
        found += [Change(order[key], self._charts[key], tails) for key, tails in self._tails.items() if key not in made]
        self.fresh, self._made, self._tails = False, [], {}
        return sorted(found, key=lambda change: change.place)


def _follows(point: Point, last: Point, *, by_step: bool, once: bool) -> bool:
    """Return whether a point stands at the end of its curve, and no point of the curve stands for another by it."""
    if point.generation != last.generation:
        return False
    if not by_step:
        return point.at > last.at and (once or point.step is None)
    return point.step is not None and (point.step, point.at) >= (last.step or 0, last.at)


def _with(said: Facts, x: float, point: Point) -> Facts:
    """Return the figures of a curve with one more point."""
    value, points = point.value, said.points + 1
    if not math.isfinite(value):
        odd_at = x if said.odd_at is None else said.odd_at
        return said._replace(points=points, odd=said.odd + 1, odd_at=odd_at)
    if math.isnan(said.last):  # all before were no numbers
        return said._replace(points=points, first=value, last=value, least=value, greatest=value)
    least, greatest = min(said.least, value), max(said.greatest, value)
    return said._replace(points=points, last=value, least=least, greatest=greatest)
