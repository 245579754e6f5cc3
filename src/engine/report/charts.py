"""Metrics and samples as charts: which curves each has, and what is said of them in words. No I/O."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from statistics import median
from typing import NamedTuple

from ...actors.events import NodeSampled
from ...lazy_dataclass import dataclass
from ..runs.metrics import Point, Series
from .series import Band, band, thinned

MOST_CURVES = 12  # of a chart; more are a band
FAR = 3  # of the curves of a band that are drawn besides: those farthest from its middle,
FAR_FROM = 1.5  # where they are so many times as far from it as the usual one
BUCKETS, LEAST_BUCKETS = 500, 40  # of a curve: a chart is some 600 pixels wide
BUDGET = 24_000  # points of a page
BAND_BUCKETS = 240
SAMPLES = 40_000  # of all nodes, that a report counts: some 10 us each


@dataclass(frozen=True, slots=True)
class Curve:
    """``steps``: None where points have none. ``at_s``: since the run's beginning. ``faint``: was done again later."""

    label: str
    steps: Sequence[int] | None
    at_s: Sequence[float]
    ys: Sequence[float]
    faint: bool = False
    generation: int = 0
    dots: bool = False  # points that no line connects: one of each call

    @property
    def xs(self) -> Sequence[float]:
        return self.at_s if self.steps is None else self.steps


class Facts(NamedTuple):
    """The figures of one curve. ``odd``: values that are no number, and where the first of them is."""

    label: str
    points: int
    first: float
    last: float
    least: float
    greatest: float
    odd: int
    odd_at: float | None


@dataclass(slots=True)
class Chart:
    """``count``: curves that it stands for; where they are more than `MOST_CURVES`, ``band`` has them."""

    name: str
    of: str  # the function, or what a sample measures
    by_step: bool
    curves: list[Curve] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    band: Band | None = None
    count: int = 0
    unit: str = ""
    thinned: bool = False
    redone: int = 0  # points that were done again
    stride: int = 1  # of so many samples of a node one counts


Logged = Mapping[Series, tuple[Sequence[Point], Sequence[Point]]]


def metric_charts(logged: Logged, began_at: float) -> list[Chart]:
    """Return a chart for each metric of each function, those of the names that come first in the record first.

    ``logged``: of each series the points that count, and those that were done again.
    """
    by_chart: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for series in logged:
        by_chart[series.function, series.name].append(series)
    return thin([metric_chart(*key, all_series, logged, began_at) for key, all_series in by_chart.items()])


def metric_chart(function: str, name: str, all_series: Sequence[Series], logged: Logged, began_at: float) -> Chart:
    """Return the chart of one metric of one function, with all points."""
    by_step = all(point.step is not None for series in all_series for point in logged[series][0])
    chart = Chart(name, function or "the program", by_step)
    if len(all_series) > MOST_CURVES and all(series.rank is None for series in all_series):
        longest = max(len(logged[series][0]) for series in all_series)
        if longest <= 2:  # of a map, for one
            points = sorted((point for series in all_series for point in logged[series][0]), key=lambda each: each.at)
            calls = _curve(f"{len(all_series):,} calls", points, by_step=False, began_at=began_at, dots=True)
            chart.by_step, chart.curves, chart.facts, chart.count = False, [calls], [facts(calls)], 1
            return chart
    jobs = {series.job for series in all_series}
    ordered = sorted(all_series, key=lambda each: (each.job, -1 if each.rank is None else each.rank))
    solid: list[Curve] = []
    faint: dict[str, list[Curve]] = {}
    for series in ordered:
        label = label_of(series, several_jobs=len(jobs) > 1)
        solid.append(_curve(label, logged[series][0], by_step=by_step, began_at=began_at))
        older: dict[int, list[Point]] = defaultdict(list)
        for point in logged[series][1]:
            older[point.generation].append(point)
            chart.redone += 1
        faint[label] = [
            _curve(label, points, by_step=by_step, began_at=began_at, faint=True) for _, points in sorted(older.items())
        ]
    _fill(chart, solid, faint)
    return chart


def label_of(series: Series, *, several_jobs: bool) -> str:
    if series.rank is None:
        return f"call {series.job}" if series.job else "the program"
    return f"rank {series.rank} of job {series.job}" if several_jobs else f"rank {series.rank}"


class Measured(NamedTuple):
    """A kind of measurement: its name, its unit, and how it is read from a sample; None: that has none."""

    name: str
    unit: str
    read: Callable[[NodeSampled], float | None]


MEASURED = (
    Measured("Processors", "%", lambda said: 100 * said.cpu),
    Measured("Memory", "bytes", lambda said: said.memory_bytes),
    Measured("Network received", "bytes/s", lambda said: _rate(said.received_bytes, said.seconds)),
    Measured("Network sent", "bytes/s", lambda said: _rate(said.sent_bytes, said.seconds)),
    Measured("Disk used", "bytes", lambda said: said.disk_bytes),
    Measured("GPUs", "%", lambda said: _mean([100 * u for gpu in said.gpus if (u := gpu.utilisation) is not None])),
    Measured("GPU memory", "bytes", lambda said: sum(gpu.memory_bytes for gpu in said.gpus) if said.gpus else None),
    Measured("GPU power", "W", lambda said: sum(gpu.watts or 0.0 for gpu in said.gpus) if _powered(said) else None),
)


def sample_charts(samples: Sequence[NodeSampled], began_at: float) -> list[Chart]:
    """Return a chart for each kind of measurement, with a curve for each node. Of very many samples some count."""
    found: list[dict[int, tuple[list[float], list[float]]]] = [defaultdict(lambda: ([], [])) for _ in MEASURED]
    stride = 1 + len(samples) // SAMPLES
    seen: Counter[int] = Counter()
    for sample in samples:
        seen[sample.node] += 1
        if seen[sample.node] % stride != 1 % stride:
            continue
        for kind, by_node in zip(MEASURED, found, strict=True):
            value = kind.read(sample)
            if value is not None:
                by_node[sample.node][0].append(sample.at - began_at)
                by_node[sample.node][1].append(value)
    charts = []
    for kind, by_node in zip(MEASURED, found, strict=True):
        if by_node:
            chart = Chart(kind.name, "node", by_step=False, unit=kind.unit, stride=stride)
            curves = [Curve(f"node {node}", None, at_s, ys) for node, (at_s, ys) in sorted(by_node.items())]
            _fill(chart, curves, {})
            charts.append(chart)
    return thin(charts)


def _rate(count: int, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _powered(said: NodeSampled) -> bool:
    return any(gpu.watts is not None for gpu in said.gpus)


def facts(curve: Curve) -> Facts:
    numbers = [y for y in curve.ys if math.isfinite(y)]
    odd = len(curve.ys) - len(numbers)
    odd_at = next((x for x, y in zip(curve.xs, curve.ys, strict=True) if not math.isfinite(y)), None)
    if not numbers:
        nan = math.nan
        return Facts(curve.label, len(curve.ys), nan, nan, nan, nan, odd, odd_at)
    return Facts(
        curve.label, len(curve.ys), numbers[0], numbers[-1], min(numbers), max(numbers), odd, odd_at
    )  # fmt: skip


def _fill(chart: Chart, solid: Sequence[Curve], faint: Mapping[str, Sequence[Curve]]) -> None:
    chart.count = len(solid)
    shown = list(solid)
    if len(solid) > MOST_CURVES:
        chart.band, distances = band([(curve.xs, curve.ys) for curve in solid], BAND_BUCKETS)
        usual = FAR_FROM * median(distances)
        far = sorted(range(len(solid)), key=lambda place: -distances[place])[:FAR]
        shown = [solid[place] for place in sorted(far) if distances[place] > usual]
        chart.facts = [_facts_of_all(solid, chart.band)]
    chart.curves = [each for curve in shown for each in (*faint.get(curve.label, ()), curve)]
    chart.facts += [facts(curve) for curve in shown]


def _facts_of_all(curves: Sequence[Curve], made: Band) -> Facts:
    """Return the figures of a band: the first and last of its middle, and the outermost values."""
    odd = [(x, y) for curve in curves for x, y in zip(curve.xs, curve.ys, strict=True) if not math.isfinite(y)]
    points = sum(len(curve.ys) for curve in curves)
    first, last = (made.middle[0], made.middle[-1]) if made.middle else (math.nan, math.nan)
    return Facts(
        "all, in the middle",
        points,
        first,
        last,
        min(made.low, default=math.nan),
        max(made.high, default=math.nan),
        len(odd),
        min((x for x, _ in odd), default=None),
    )


def _curve(label: str, points: Sequence[Point], *, by_step: bool, began_at: float, faint: bool = False,
           dots: bool = False) -> Curve:  # fmt: skip
    if not by_step:
        points = sorted(points, key=lambda each: each.at)
    return Curve(
        label,
        [point.step or 0 for point in points] if by_step else None,
        [point.at - began_at for point in points],
        [point.value for point in points],
        faint,
        points[-1].generation if points else 0,
        dots,
    )


def thin(charts: list[Chart], beside: int = 0) -> list[Chart]:
    """Leave each curve as many points as the page has room for. ``beside``: how many further curves it has."""
    count = sum(len(chart.curves) for chart in charts) + beside
    buckets = max(LEAST_BUCKETS, min(BUCKETS, BUDGET // max(1, 3 * count)))
    for chart in charts:
        thin = []
        for curve in chart.curves:
            kept = thinned(curve.xs, curve.ys, buckets)
            if len(kept) < len(curve.ys):
                chart.thinned = True
                steps = None if curve.steps is None else [curve.steps[place] for place in kept]
                at_s, ys = [curve.at_s[place] for place in kept], [curve.ys[place] for place in kept]
                curve = Curve(curve.label, steps, at_s, ys, curve.faint, curve.generation, curve.dots)  # noqa: PLW2901
            thin.append(curve)
        chart.curves = thin
    return charts
