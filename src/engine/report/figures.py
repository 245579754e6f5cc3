"""Charts as HTML figures: a place for the curves, a summary in words and a table. Their points are stored as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .charts import Chart, Facts
from .markup import fold, number, size_text, table, text

DIGITS = 5  # significant digits of each value in the page's data


class Arrays:
    """The arrays in a page's JSON data.

    Equal arrays are stored once, as ranks that log together have the same steps.
    """

    def __init__(self) -> None:
        self.all: list[Any] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def whole(self, values: Sequence[int]) -> int:
        """Store a series of integers. Return the index of its array.

        Evenly spaced integers are stored as (first, difference, count), others as differences.
        """
        steps = [after - before for before, after in pairwise(values)]
        if len(values) > 2 and len(set(steps)) == 1:
            return self._add(("r", values[0], steps[0], len(values)), {"r": [values[0], steps[0], len(values)]})
        return self._add(("d", *values), {"d": [*values[:1], *steps]})

    def numbers(self, values: Sequence[float]) -> int:
        """Store a series of rounded numbers, with nan and infinities as gaps. Return the index of its array."""
        rounded = [short(value) for value in values]
        return self._add(("f", *rounded), rounded)

    def _add(self, key: tuple[Any, ...], value: Any) -> int:
        if key not in self._places:
            self._places[key] = len(self.all)
            self.all.append(value)
        return self._places[key]


def short(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    rounded = float(f"{value:.{DIGITS}g}")
    return int(rounded) if rounded == int(rounded) and abs(rounded) < 1e15 else rounded


def figure(chart: Chart, place: str) -> str:
    """Return the HTML figure of a chart. ``place``: the chart's key in the page's data."""
    words = summary(chart)
    name = f"{chart.name} of {chart.of}" if chart.of != "node" else chart.name
    return (
        f'<figure class="chart" id="{place}" data-name="{text(chart.name.lower())}">'
        f'<figcaption><h3>{text(chart.name)}</h3><span class="of">{text("" if chart.of == "node" else chart.of)}</span>'
        f'</figcaption><div class="plot" role="img" aria-label="{text(f"{name}. {words}")}"></div>'
        f'<div class="legend"></div><p class="note">{text(words)}</p>'
        f"{fold('Values', _values(chart), kind='quiet')}</figure>"
    )


def summary(chart: Chart) -> str:
    """Describe a chart in words."""
    numbers = [each for each in chart.facts if math.isfinite(each.last)]
    parts = []
    if chart.band is not None and chart.band.xs:
        kind = "nodes" if chart.of == "node" else "curves"
        low, middle, high = (
            _unit(each[-1], chart.unit) for each in (chart.band.low, chart.band.middle, chart.band.high)
        )
        parts.append(f"{chart.count:,} {kind}, at the end {middle} in the middle, {low} to {high} in all")
        if chart.curves:
            parts.append("those that differ most have a line of their own")
    elif numbers:
        last = [each.last for each in numbers]
        shown = (
            _unit(last[0], chart.unit)
            if len(last) == 1
            else f"{_unit(min(last), chart.unit)} to {_unit(max(last), chart.unit)}"
        )
        parts.append(f"Last {shown}" + (f" on {len(last)} curves" if len(last) > 1 else ""))
    odd = [each for each in chart.facts if each.odd]
    if odd:
        first = min((each.odd_at or 0.0, each.label) for each in odd)
        where = f"step {number(first[0])}" if chart.by_step else f"{number(first[0])} s"
        parts.append(f"{sum(each.odd for each in odd):,} values are no numbers, from {where} on ({first[1]})")
    if chart.redone:
        which = (
            "point was done again: its first value is"
            if chart.redone == 1
            else "points were done again: their first values are"
        )
        parts.append(f"{chart.redone:,} {which} faint")
    if chart.stride > 1:
        parts.append(f"of {chart.stride} samples of a node one is shown")
    if chart.thinned:
        parts.append("drawn with the least and greatest value of each pixel or two")
    return "; ".join(parts) + "." if parts else "No values."


def data(metrics: Sequence[Chart], system: Sequence[Chart], seconds: float) -> dict[str, Any]:
    """Return the points of all charts as JSON values."""
    arrays = Arrays()
    charts = {
        f"{kind}{number}": _chart(chart, kind, arrays)
        for kind, charts in (("m", metrics), ("s", system))
        for number, chart in enumerate(charts)
    }
    return {"seconds": round(seconds, 3), "charts": charts, "arrays": arrays.all}


def chart_data(chart: Chart, kind: str) -> dict[str, Any]:
    """Return the points of one chart as JSON values. ``kind``: "m" for a metric, "s" for samples."""
    arrays = Arrays()
    return {"chart": _chart(chart, kind, arrays), "arrays": arrays.all}


def _chart(chart: Chart, kind: str, arrays: Arrays) -> dict[str, Any]:
    curves = []
    for curve in chart.curves:
        fields: dict[str, Any] = {"label": curve.label, "y": arrays.numbers(curve.ys)}
        fields["t"] = arrays.whole([round(at_s * 1000) for at_s in curve.at_s])
        if curve.steps is not None:
            fields["x"] = arrays.whole(curve.steps)
        if curve.faint:
            fields["faint"] = curve.generation
        if curve.dots:
            fields["dots"] = 1
        curves.append(fields)
    content: dict[str, Any] = {"kind": kind, "unit": chart.unit, "step": chart.by_step, "curves": curves}
    if chart.band is not None:
        band = chart.band
        names = ("xs", "low", "tenth", "middle", "ninetieth", "high")
        content["band"] = {name: arrays.numbers(getattr(band, name)) for name in names}
    return content


def _values(chart: Chart) -> str:
    head = ("curve", "points", "first", "last", "least", "greatest")
    rows = [_row(each, chart.unit) for each in chart.facts]
    return table(head, rows, caption=f"Values of {chart.name}", numbers=(1, 2, 3, 4, 5))


def _row(each: Facts, unit: str) -> list[str]:
    numbers = (each.first, each.last, each.least, each.greatest)
    return [text(each.label), f"{each.points:,}", *(text(_unit(value, unit)) for value in numbers)]


def _unit(value: float, unit: str) -> str:
    if unit.startswith("bytes") and math.isfinite(value):
        return size_text(value) + unit.removeprefix("bytes")
    return f"{number(value)} {unit}".strip()
