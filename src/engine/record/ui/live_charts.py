"""The charts of an open run's metrics, as in a report, and their changes when points are added. No clock, no I/O.

A tail is the new points at the end of a curve. A chart is stale if new points do not just extend its curves: the chart
must then be renewed (computed anew).

LIVE-1: the charts of a page with all tails sent after them equal a report's charts of the same lines; a chart that
    would differ is stale until it is renewed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import NamedTuple

from ....lazy_dataclass import dataclass
from ..report.charts import Chart, Facts, label_of, metric_chart, metric_charts, thin
from ..runs.metrics import Logged, Point, Series, counted

Key = tuple[str, str]  # the identity of a chart: (function, name of the metric)
TAIL_POINTS = 20_000  # after this many new points of a chart, its curves are reduced to fewer points again


@dataclass(slots=True)
class Tail:
    """The new points at the end of a curve, since the last message to pages."""

    at_s: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    ys: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Line:
    """A curve that can be extended.

    ``place`` and ``fact``: its indexes among the chart's curves and figures. ``last``: its last point. ``once``: True:
    all points are from one generation (one try of a broadcast).
    """

    key: Key
    place: int
    fact: int
    last: Point
    once: bool


class Change(NamedTuple):
    """A change of a chart on a page.

    ``tails``: index of a curve -> points to append; None: the page gets the whole chart.
    """

    place: int  # index of the chart on the page
    chart: Chart
    tails: dict[int, Tail] | None


class LiveCharts:
    """The charts of one page. ``fresh``: True: a chart was added, so the page must get all charts anew."""

    def __init__(self, began_at: float) -> None:
        self._began = began_at
        self._points: dict[Series, list[Point]] = {}
        # chart -> its series; the keys have the order of the charts on the page
        self._series: dict[Key, list[Series]] = {}
        self._charts: dict[Key, Chart] = {}
        self._lines: dict[Series, _Line] = {}
        # chart -> index of a curve -> new points that pages do not have yet
        self._tails: dict[Key, dict[int, Tail]] = {}
        self._grown: dict[Key, int] = {}  # chart -> number of its new points since it was renewed
        self._renewed_keys: list[Key] = []  # renewed charts that pages do not have yet
        self._stale: set[Key] = set()
        self.fresh = False

    @property
    def charts(self) -> list[Chart]:
        """All charts, as shown by a page that has received every message."""
        return [self._charts[key] for key in self._series]

    @property
    def stale(self) -> bool:
        """Return whether some chart must be renewed, as its curves cannot just be extended."""
        return bool(self._stale)

    @property
    def grown(self) -> bool:
        """Return whether some chart has new points since it was renewed.

        The table below the chart lacks these points.
        """
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
        """Renew the stale charts. ``grown``: True: renew also the charts with new points."""
        for _ in self.renewing(grown=grown):
            pass

    def renewing(self, *, grown: bool) -> Iterator[None]:
        """Yield after each renewed chart, the most urgent first, so that the caller can stop early.

        ``grown``: as in `renew`.
        """
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
        if key not in self._renewed_keys:
            self._renewed_keys.append(key)
        chart, all_series = self._charts[key], self._series[key]
        several = len({series.job for series in all_series}) > 1
        places = {curve.label: place for place, curve in enumerate(chart.curves) if not curve.faint}
        fact_places = {each.label: place for place, each in enumerate(chart.facts)}
        for series in all_series:
            self._lines.pop(series, None)
            label = label_of(series, several_jobs=several)
            if chart.band is None and label in places:
                has = points[series]
                last = has[-1] if chart.by_step else max(has, key=lambda each: each.at)
                once = len({point.generation for point in self._points[series]}) == 1
                self._lines[series] = _Line(key, places[label], fact_places[label], last, once)

    def taken(self) -> list[Change]:
        """Return the changes of charts since the last call. If `fresh` is set, return all charts as whole charts.

        A page can apply these changes only after all earlier changes.
        """
        order = {key: place for place, key in enumerate(self._series)}
        keys = [*order] if self.fresh else self._renewed_keys
        changes = [Change(order[key], self._charts[key], None) for key in keys if key in self._charts]
        changes += [
            Change(order[key], self._charts[key], tails) for key, tails in self._tails.items() if key not in keys
        ]
        self.fresh, self._renewed_keys, self._tails = False, [], {}
        return sorted(changes, key=lambda change: change.place)


def _follows(point: Point, last: Point, *, by_step: bool, once: bool) -> bool:
    """Return whether ``point`` extends its curve after the point ``last``, and replaces no earlier point."""
    if point.generation != last.generation:
        return False
    if not by_step:
        return point.at > last.at and (once or point.step is None)
    return point.step is not None and (point.step, point.at) >= (last.step or 0, last.at)


def _with(facts: Facts, x: float, point: Point) -> Facts:
    """Return the figures of a curve after ``point`` was appended at ``x``."""
    value, points = point.value, facts.points + 1
    if not math.isfinite(value):
        odd_at = x if facts.odd_at is None else facts.odd_at
        return facts._replace(points=points, odd=facts.odd + 1, odd_at=odd_at)
    if math.isnan(facts.last):  # so far all values of the curve were nan or infinite
        return facts._replace(points=points, first=value, last=value, least=value, greatest=value)
    least, greatest = min(facts.least, value), max(facts.greatest, value)
    return facts._replace(points=points, last=value, least=least, greatest=greatest)
