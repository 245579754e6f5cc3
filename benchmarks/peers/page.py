"""Pages of the comparison: the results in a JSON file, its table in README.md and peers.md, and the plot.

The results are written once, by a measurement; both pages are written from them. Their other words are written by hand.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/benchmarks"
RESULTS, PAGE, PLOT, README = DOCS / "peers.json", DOCS / "peers.md", DOCS / "peers.svg", ROOT / "README.md"
BEGIN, END = "<!-- figures: made by `make bench-peers` -->", "<!-- end of figures -->"
SPREAD_BEGIN, SPREAD_END = "<!-- spread: made by `make bench-peers` -->", "<!-- end of spread -->"
TITLES = {
    "outrider": "Outrider",
    "executor": "executor pool",
    "ray": "Ray",
    "dask": "Dask",
    "parsl": "Parsl",
    "monarch": "Monarch",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Args:
        name: the words of the row.
        unit: the unit that the table shows.
        times: the factor from a driver's value to that unit.
        higher: whether more is better.
    """

    name: str
    unit: str
    times: float
    higher: bool = False

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher else one < other


ROWS = {
    "first": Row("first result: from the program's start, with 4 workers", "s", 1.0),
    "noop": Row("no-op, one after the other", "ms", 1e3),
    "burst": Row("10,000 no-ops at once", "tasks/s", 1.0, higher=True),
    "broadcast": Row("the same call on 4 workers at once", "ms", 1e3),
    "to": Row("100 MB array to a worker", "ms", 1e3),
    "from": Row("100 MB array from a worker", "ms", 1e3),
}

Figures = Mapping[str, Mapping[str, Sequence[float]]]  # by system and row
Results = Mapping[str, Any]


def results(figures: Figures, versions: Mapping[str, str], *, rounds: int) -> Results:
    """Return a measurement of this computer as it is stored."""
    return {
        "date": time.strftime("%d %B %Y"),
        "computer": f"{os.cpu_count()} cores ({processor()})",
        "python": platform.python_version(),
        "rounds": rounds,
        "versions": dict(versions),
        "figures": {name: {row: list(values) for row, values in rows.items()} for name, rows in figures.items()},
    }


def store(measured: Results) -> None:
    """Write the results, a line for each row of a system."""
    text = re.sub(
        r"\[\s+([^\]]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", json.dumps(measured, indent=1)
    )
    RESULTS.write_text(text + "\n")


def publish() -> None:
    """Write both pages and the plot from the stored results."""
    stored = json.loads(RESULTS.read_text())
    page = between(PAGE.read_text(), BEGIN, END, table(stored))
    PAGE.write_text(between(page, SPREAD_BEGIN, SPREAD_END, spread(stored)))
    README.write_text(between(README.read_text(), BEGIN, END, table(stored)))
    plot(stored["figures"])
    print(f"written to {PAGE}, {README} and {PLOT}")


def between(text: str, begin: str, end: str, new: str) -> str:
    """Return ``text`` with ``new`` in place of the lines between two markers.

    Raises:
        ValueError: a marker is absent.
    """
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"no {begin} ... {end}")
    return f"{before}{begin}\n\n{new}\n{end}{after}"


def table(stored: Results) -> str:
    """Return the medians, a column for each system."""
    where = f"{stored['date']}, {stored['computer']}, Python {stored['python']}"
    return as_table(stored, f"{where}; medians of {stored['rounds']} rounds.", median)


def spread(stored: Results) -> str:
    """Return the least and the most of each measurement."""
    return as_table(stored, "The least and the most of these rounds:", extremes)


def as_table(stored: Results, caption: str, cell: Callable[[Row, Sequence[float]], str]) -> str:
    names, figures = [*stored["figures"]], stored["figures"]
    lines = [
        caption,
        "",
        "| | " + " | ".join(f"{TITLES[name]} {stored['versions'].get(name, '')}".strip() for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += [
        f"| {row.name}, {row.unit} | " + " | ".join(cell(row, figures[name][key]) for name in names) + " |"
        for key, row in ROWS.items()
    ]
    return "\n".join(lines) + "\n"


def median(row: Row, values: Sequence[float]) -> str:
    return rounded(statistics.median(values) * row.times) if values else "failed"


def extremes(row: Row, values: Sequence[float]) -> str:
    return f"{rounded(min(values) * row.times)} to {rounded(max(values) * row.times)}" if values else "failed"


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def plot(figures: Figures) -> None:
    """Draw each row's medians as times of Outrider's: to the left of the line is better."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "outrider"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for name in figures:
        points = []
        for place, (key, row) in enumerate(ROWS.items()):
            ours, theirs = figures.get("outrider", {}).get(key), figures[name][key]
            if ours and theirs:
                ratio = statistics.median(theirs) / statistics.median(ours)
                points.append((1 / ratio if row.higher else ratio, -place))
        if points:
            axes.plot(*zip(*points, strict=True), "D" if name == "outrider" else "o", label=TITLES[name])
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks([-place for place in range(len(ROWS))], [row.name for row in ROWS.values()])
    axes.set_xlabel("times Outrider's (less is faster)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(PLOT, metadata={"Date": None})
