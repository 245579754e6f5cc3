"""Charts of metrics and samples: the curves of each chart, and the figures for its summary in words. No I/O.

Curves are reduced to fewer points without visible change, and many curves to a band (their least and greatest values).
For that, the x axis is divided into buckets of equal width.

SERIES-1: the least and the greatest value of each bucket are kept, and so are the first and the last point of the
    curve.
SERIES-2: at most three points of each bucket and the two ends are kept; they keep their order, and no point is added.
SERIES-3: nan and infinities stay gaps: they never count as numbers.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from statistics import median
from typing import NamedTuple

from ....actors.events import NodeSampled
from ....lazy_dataclass import dataclass
from ..runs.metrics import Point, Series


def thinned(xs: Sequence[float], ys: Sequence[float], buckets: int) -> list[int]:
    """Return the indexes of the points to keep. ``xs`` must not decrease; nan and infinities in ``ys`` are gaps."""
    if len(xs) <= 2 * buckets + 2:
        return list(range(len(xs)))
    least, span = xs[0], (xs[-1] - xs[0]) or 1.0
    kept = {0, len(xs) - 1}
    low = high = gap = -1
    present = -1
    for place, (x, y) in enumerate(zip(xs, ys, strict=True)):
        bucket = min(buckets - 1, int((x - least) / span * buckets))
        if bucket != present:
            kept.update((low, high, gap))
            low = high = gap = -1
            present = bucket
        if not math.isfinite(y):
            gap = place if gap < 0 else gap
        else:
            low = place if low < 0 or y < ys[low] else low
            high = place if high < 0 or y > ys[high] else high
    kept.update((low, high, gap))
    kept.discard(-1)
    return sorted(kept)


@dataclass(frozen=True, slots=True)
class Band:
    """Five curves that show the range of many curves.

    ``low`` and ``high`` are the smallest and largest values. ``tenth``, ``middle`` and ``ninetieth`` are the 10th, 50th
    and 90th percentile of the curves, each averaged over a bucket of the x axis.
    """

    xs: list[float]
    low: list[float]
    tenth: list[float]
    middle: list[float]
    ninetieth: list[float]
    high: list[float]


Line = tuple[Sequence[float], Sequence[float]]  # (xs, ys) of a curve


def band(lines: Sequence[Line], buckets: int) -> tuple[Band, list[float]]:
    """Return the band of the curves ``lines``, and each curve's average distance from the band's middle."""
    ends = [x for xs, _ in lines if xs for x in (xs[0], xs[-1])]
    if not ends:
        return Band([], [], [], [], [], []), [0.0] * len(lines)
    least, span = min(ends), (max(ends) - min(ends)) or 1.0
    means, low, high = _by_bucket(lines, least, span, buckets)
    result = Band([], [], [], [], [], [])
    distance, seen = [0.0] * len(lines), [0] * len(lines)
    for bucket in sorted(means):
        values = sorted(means[bucket].values())
        middle = median(values)
        result.xs.append(least + (bucket + 0.5) / buckets * span if len(means) > 1 else least)
        result.low.append(low[bucket])
        result.tenth.append(values[int(0.1 * (len(values) - 1))])
        result.middle.append(middle)
        result.ninetieth.append(values[math.ceil(0.9 * (len(values) - 1))])
        result.high.append(high[bucket])
        for line, value in means[bucket].items():
            distance[line] += abs(value - middle)
            seen[line] += 1
    return result, [total / count if count else 0.0 for total, count in zip(distance, seen, strict=True)]


def _by_bucket(
    lines: Sequence[Line], least: float, span: float, buckets: int
) -> tuple[dict[int, dict[int, float]], dict[int, float], dict[int, float]]:
    """Return three results, each by bucket: the mean of each curve, the least value, and the greatest value of
    all curves.
    """
    means: dict[int, dict[int, float]] = {}
    low: dict[int, float] = {}
    high: dict[int, float] = {}
    for line, (xs, ys) in enumerate(lines):
        sums: dict[int, tuple[float, int]] = {}
        for x, y in zip(xs, ys, strict=True):
            if math.isfinite(y):
                bucket = min(buckets - 1, int((x - least) / span * buckets))
                total, count = sums.get(bucket, (0.0, 0))
                sums[bucket] = total + y, count + 1
                low[bucket] = min(low.get(bucket, y), y)
                high[bucket] = max(high.get(bucket, y), y)
        for bucket, (total, count) in sums.items():
            means.setdefault(bucket, {})[line] = total / count
    return means, low, high


MOST_CURVES = 12  # most curves that a chart draws; more curves are drawn as a band, which shows their range
FAR = 3  # besides a band, draw at most this many single curves: those farthest from the band's middle
# a curve is drawn besides a band only if its distance from the band's middle exceeds this multiple of the median
FAR_FROM = 1.5
# most and fewest buckets to which the points of a curve are reduced; a chart is some 600 pixels wide
BUCKETS, LEAST_BUCKETS = 500, 40
BUDGET = 24_000  # most points of all curves on a page
BAND_BUCKETS = 240
SAMPLES = 40_000  # most samples that a report uses, of all nodes together: each takes some 10 us


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a chart.

    ``steps``: the steps of the points; None: the points have no steps. ``at_s``: their times in seconds since the run's
    beginning. ``faint``: True: the curve is drawn faintly, as a restart of the broadcast has repeated its steps.
    """

    label: str
    steps: Sequence[int] | None
    at_s: Sequence[float]
    ys: Sequence[float]
    faint: bool = False
    generation: int = 0
    dots: bool = False  # True: draw dots without lines, as each point is from another call

    @property
    def xs(self) -> Sequence[float]:
        return self.at_s if self.steps is None else self.steps


class Facts(NamedTuple):
    """The figures of one curve.

    ``odd``: how many values are nan or infinite. ``odd_at``: the x of the first such value.
    """

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
    """A chart.

    ``count``: its number of curves. If there are more than `MOST_CURVES`, they are drawn as a ``band``.
    """

    name: str
    of: str  # the function whose metric this is, or "node" for samples
    by_step: bool
    curves: list[Curve] = field(default_factory=list)
    facts: list[Facts] = field(default_factory=list)
    band: Band | None = None
    count: int = 0
    unit: str = ""
    thinned: bool = False
    redone: int = 0  # number of points whose steps a restart of the broadcast has repeated
    stride: int = 1  # of this many samples of a node, only one is used


Logged = Mapping[Series, tuple[Sequence[Point], Sequence[Point]]]


def metric_charts(logged: Logged, began_at: float) -> list[Chart]:
    """Return a chart for each metric of each function, in the order in which the metrics first appear in the record.

    ``logged``: series -> (points, older points whose steps a restart of the broadcast has repeated).
    """
    by_chart: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for series in logged:
        by_chart[series.function, series.name].append(series)
    return thin([metric_chart(*key, all_series, logged, began_at) for key, all_series in by_chart.items()])


def metric_chart(function: str, name: str, all_series: Sequence[Series], logged: Logged, began_at: float) -> Chart:
    """Return the chart of one metric of one function, with all its points."""
    by_step = all(point.step is not None for series in all_series for point in logged[series][0])
    chart = Chart(name, function or "the program", by_step)
    if len(all_series) > MOST_CURVES and all(series.rank is None for series in all_series):
        longest = max(len(logged[series][0]) for series in all_series)
        if longest <= 2:  # too few points per call for a line, as for example in a map
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
    """A kind of measurement.

    ``name`` and ``unit``: shown in the chart. ``read``: returns the value in a sample; None: the sample lacks it.
    """

    name: str
    unit: str
    read: Callable[[NodeSampled], float | None]


MEASURED = (
    Measured("Processors", "%", lambda sample: 100 * sample.cpu),
    Measured("Memory", "bytes", lambda sample: sample.memory_bytes),
    Measured("Network received", "bytes/s", lambda sample: _rate(sample.received_bytes, sample.seconds)),
    Measured("Network sent", "bytes/s", lambda sample: _rate(sample.sent_bytes, sample.seconds)),
    Measured("Disk used", "bytes", lambda sample: sample.disk_bytes),
    Measured("GPUs", "%", lambda sample: _mean([100 * u for gpu in sample.gpus if (u := gpu.utilisation) is not None])),
    Measured(
        "GPU memory", "bytes", lambda sample: sum(gpu.memory_bytes for gpu in sample.gpus) if sample.gpus else None
    ),
    Measured(
        "GPU power", "W", lambda sample: sum(gpu.watts or 0.0 for gpu in sample.gpus) if _powered(sample) else None
    ),
)


def sample_charts(samples: Sequence[NodeSampled], began_at: float) -> list[Chart]:
    """Return a chart for each kind of measurement, with a curve for each node.

    If there are too many samples, skip some.
    """
    by_kind: list[dict[int, tuple[list[float], list[float]]]] = [defaultdict(lambda: ([], [])) for _ in MEASURED]
    stride = 1 + len(samples) // SAMPLES
    seen: Counter[int] = Counter()
    for sample in samples:
        seen[sample.node] += 1
        if seen[sample.node] % stride != 1 % stride:
            continue
        for kind, by_node in zip(MEASURED, by_kind, strict=True):
            value = kind.read(sample)
            if value is not None:
                by_node[sample.node][0].append(sample.at - began_at)
                by_node[sample.node][1].append(value)
    charts = []
    for kind, by_node in zip(MEASURED, by_kind, strict=True):
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


def _powered(sample: NodeSampled) -> bool:
    return any(gpu.watts is not None for gpu in sample.gpus)


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


def _facts_of_all(curves: Sequence[Curve], spread: Band) -> Facts:
    """Return the figures of a band: first and last value of its middle curve, smallest and largest value of all
    curves.
    """
    odd = [(x, y) for curve in curves for x, y in zip(curve.xs, curve.ys, strict=True) if not math.isfinite(y)]
    points = sum(len(curve.ys) for curve in curves)
    first, last = (spread.middle[0], spread.middle[-1]) if spread.middle else (math.nan, math.nan)
    return Facts(
        "all, in the middle",
        points,
        first,
        last,
        min(spread.low, default=math.nan),
        max(spread.high, default=math.nan),
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
    """Reduce each curve to as many points as the page has room for.

    ``beside``: the number of curves on the page that are not in ``charts``.
    """
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
