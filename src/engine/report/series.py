"""Reduction of curves to fewer points without visible change, and of many curves to a band. No I/O.

The x axis is divided into buckets of equal width.

SERIES-1: the least and the greatest value of each bucket are kept, and so are the first and the last point of the
    curve.
SERIES-2: at most three points of each bucket and the two ends are kept; they keep their order, and no point is added.
SERIES-3: nan and infinities stay gaps: they never count as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ...lazy_dataclass import dataclass


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
