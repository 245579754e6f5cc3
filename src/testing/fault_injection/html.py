"""A report as one HTML page without external files: numbers, the timeline as SVG, and a table of faults."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from statistics import median
from typing import TYPE_CHECKING

from ...engine.record.report.timeline import WORDS, Timeline
from .timeline import COLOURS, timeline

if TYPE_CHECKING:
    from ...engine.api.chaos import ChaosReport

LEFT, WIDTH, ROW, BAR = 110, 1000, 26, 18

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1160px; color: #222; }
h1 { font-size: 1.4em; } td, th { padding: .15em 1.2em .15em 0; text-align: left; font-variant-numeric: tabular-nums; }
svg text { font: 11px system-ui, sans-serif; } .key span { display: inline-block; width: 1em; height: 1em;
vertical-align: -2px; margin: 0 .4em 0 1.2em; }
"""


def page(report: ChaosReport, title: str = "Faults injected into a pool") -> str:
    line = timeline(report)
    return "\n".join([
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{escape(title)}</h1><p>{escape(report.summary())}.",
        f"Faults were noticed after {median(report.seen_s):.2f} s (median).</p>" if report.seen_s else "</p>",
        *_svg(line),
        *_key(line),
        "<table><tr><th>after<th>fault<th>node<th>rank<th>at step</tr>",
        *_table(report, line.began_at),
        "</table></html>",
    ])  # fmt: skip


def _svg(line: Timeline) -> Iterator[str]:
    height = ROW * (len(line.rows) + 1) + 8
    scale = WIDTH / max(line.seconds, 0.001)
    yield f'<svg viewBox="0 0 {LEFT + WIDTH + 20} {height}" width="100%" role="img" aria-label="timeline">'
    step = tick(line.seconds)
    for number in range(int(line.seconds / step) + 1):
        x = LEFT + number * step * scale
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height - ROW}" stroke="#eee"/>'
        yield f'<text x="{x:.1f}" y="{height - 10}" fill="#666" text-anchor="middle">{number * step:g} s</text>'
    for place, row in enumerate(line.rows):
        y = place * ROW + 4
        yield f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(row.name)}</text>'
        for span in row.spans:
            x, width = LEFT + span.begin_s * scale, max(1.0, (span.end_s - span.begin_s) * scale)
            box = f'x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR}"'
            yield f'<rect {box} fill="{COLOURS[span.kind]}" stroke="#fff">'
            title = f"{span.text} {WORDS[span.kind]}, {span.begin_s:.2f} to {span.end_s:.2f} s"
            yield f"<title>{escape(title)}</title></rect>"
            if span.text and width > 7 * len(span.text):
                yield f'<text x="{x + 4:.1f}" y="{y + 13}" fill="#fff">{escape(span.text)}</text>'
        for mark in row.marks:
            x, colour = LEFT + mark.at_s * scale, "#222" if mark.kind == "lost" else "#c0252d"
            shape = f"M{x - 5:.1f} {y - 3} h10 l-5 9 z" if mark.kind != "lost" else f"M{x:.1f} {y - 2} v{BAR + 4}"
            yield f'<path d="{shape}" fill="{colour}" stroke="{colour}" stroke-width="1.5">'
            yield f"<title>{escape(mark.text)} at {mark.at_s:.2f} s</title></path>"
    yield "</svg>"


def _key(line: Timeline) -> Iterator[str]:
    yield '<p class="key">'
    for kind in line.kinds:
        yield f'<span style="background:{COLOURS[kind]}"></span>{WORDS[kind]}'
    yield '<b style="color:#c0252d;margin-left:1.4em">&#9660;</b> a fault <b style="margin-left:1.2em">|</b> lost</p>'


def _table(report: ChaosReport, began_at: float) -> Iterator[str]:
    for strike in report.strikes:
        cells = (f"{strike.at - began_at:.2f} s", strike.fault, strike.node, strike.rank, strike.step or "")
        yield "<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in cells) + "</tr>"


def tick(seconds: float) -> float:
    """Return the seconds between two ticks of an axis, for at most ten ticks."""
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 3600)
    return next((step for step in steps if seconds <= 10 * step), 86400)
