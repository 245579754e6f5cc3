"""Pieces of HTML: escaped text, numbers, tables, folded parts, and charts as figures.

Characters that move, hide or reverse other characters are removed from text. A figure has a place for its curves, a
summary in words and a table; the points of its curves are stored as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ...api.printable import lines, plain
from .charts import Chart, Facts


def text(value: object) -> str:
    """Escape a value for any place in the page, including quoted attributes."""
    return escape(plain(value if isinstance(value, str) else str(value)), quote=True)


def line(value: object) -> str:
    """Escape a value, as one line of text."""
    return escape("; ".join(filter(None, lines(value if isinstance(value, str) else str(value)))), quote=True)


def script_json(value: Any) -> str:
    """Encode a value as JSON that cannot end the HTML script element around it, whatever texts it contains."""
    encoded = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return encoded.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str, numbers: Sequence[int] = ()) -> str:
    """Return an HTML table.

    ``rows``: cells that are already HTML. ``numbers``: indexes of the columns that are aligned right.
    """
    kind = ["num" if place in numbers else "" for place in range(len(head))]
    heads = "".join(f'<th scope="col"{_class(kind[place])}>{text(each)}</th>' for place, each in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{_class(kind[place])}>{cell}</td>" for place, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{text(caption)}">'
        f'<table><caption class="hidden">{text(caption)}</caption>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def fold(summary: str, content: str, *, kind: str = "", opened: bool = False, note: str = "") -> str:
    """Return content that the reader can unfold. ``summary`` and ``note`` are plain text, ``content`` is HTML."""
    extra = f' <span class="note">{text(note)}</span>' if note else ""
    state = " open" if opened else ""
    return f"<details{_class(kind)}{state}><summary>{text(summary)}{extra}</summary>{content}</details>"


def facts_list(pairs: Iterable[tuple[str, str]], kind: str = "facts") -> str:
    """Return an HTML list of facts. ``pairs``: (name as plain text, value as HTML)."""
    rows = "".join(f"<div><dt>{text(name)}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="{kind}">{rows}</dl>'


def number(value: float) -> str:
    """Format a number with only as many digits as people compare."""
    if not math.isfinite(value):
        return "-" if math.isnan(value) else str(value)
    size = abs(value)
    if size and (size >= 1e7 or size < 1e-4):
        return f"{value:.3g}"
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.4g}" if size < 1000 else f"{value:,.0f}"


def size_text(size_bytes: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:,.0f} bytes" if unit == "bytes" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.3g} TiB"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


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
