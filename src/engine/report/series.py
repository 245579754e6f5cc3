"""Fewer points that look like many: curves without what no eye sees, and many curves as a band. No I/O.

SERIES-1: of each bucket the least and the greatest value stay, and so do the first and the last point of all.
SERIES-2: at most three points of each bucket stay, and the two at the ends; they keep their order, and none is new.
SERIES-3: a value that is no number is never taken for one: it stays a gap.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from ...lazy_dataclass import dataclass


def thinned(xs: Sequence[float], ys: Sequence[float], buckets: int) -> list[int]:
    """Return which points stay. ``xs`` never goes down; ``ys`` may have nan and infinities: gaps."""
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
    """Many curves as five: ``low`` and ``high`` are the outermost values, the others are of the curves' means."""

    xs: list[float]
    low: list[float]
    tenth: list[float]
    middle: list[float]
    ninetieth: list[float]
    high: list[float]


Line = tuple[Sequence[float], Sequence[float]]  # xs and ys


def band(lines: Sequence[Line], buckets: int) -> tuple[Band, list[float]]:
    """Return the band of curves, and how far each of them is from its middle, on average."""
    ends = [x for xs, _ in lines if xs for x in (xs[0], xs[-1])]
    if not ends:
        return Band([], [], [], [], [], []), [0.0] * len(lines)
    least, span = min(ends), (max(ends) - min(ends)) or 1.0
    means, low, high = _by_bucket(lines, least, span, buckets)
    made = Band([], [], [], [], [], [])
    distance, seen = [0.0] * len(lines), [0] * len(lines)
    for bucket in sorted(means):
        values = sorted(means[bucket].values())
        middle = median(values)
        made.xs.append(least + (bucket + 0.5) / buckets * span if len(means) > 1 else least)
        made.low.append(low[bucket])
        made.tenth.append(values[int(0.1 * (len(values) - 1))])
        made.middle.append(middle)
        made.ninetieth.append(values[math.ceil(0.9 * (len(values) - 1))])
        made.high.append(high[bucket])
        for line, value in means[bucket].items():
            distance[line] += abs(value - middle)
            seen[line] += 1
    return made, [total / count if count else 0.0 for total, count in zip(distance, seen, strict=True)]


def _by_bucket(
    lines: Sequence[Line], least: float, span: float, buckets: int
) -> tuple[dict[int, dict[int, float]], dict[int, float], dict[int, float]]:
    """Return each curve's mean, and the least and greatest value of all, by bucket."""
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
