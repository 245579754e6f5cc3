"""The page of the comparison: the table between its marks, and the plot beside it. Its words are written by hand."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs/benchmarks"
PAGE, PLOT = DOCS / "peers.md", DOCS / "peers.svg"
BEGIN, END = "<!-- figures: made by `make bench-peers` -->", "<!-- end of figures -->"
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
    """What is measured. ``times``: from what drivers say to the unit. ``higher``: the more, the better."""

    name: str
    unit: str
    times: float
    higher: bool = False

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher else one < other


Found = Mapping[str, Mapping[str, Sequence[float]]]  # by system and row


def write(rows: Mapping[str, Row], found: Found, versions: Mapping[str, str], *, rounds: int) -> None:
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n\n{table(rows, found, versions, rounds=rounds)}\n{END}{after}")
    plot(rows, found)
    print(f"written to {PAGE} and {PLOT}")


def table(rows: Mapping[str, Row], found: Found, versions: Mapping[str, str], *, rounds: int) -> str:
    names = [*found]
    computer = f"{os.cpu_count()} cores ({processor()}), Python {platform.python_version()}"
    lines = [
        f"{time.strftime('%d %B %Y')}, {computer}; medians of {rounds} rounds, with the least and the most.",
        "",
        "| | " + " | ".join(f"{TITLES[name]} {versions.get(name, '')}" for name in names) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += [
        f"| {row.name}, {row.unit} | " + " | ".join(cell(row, found[name][key]) for name in names) + " |"
        for key, row in rows.items()
    ]
    return "\n".join(lines) + "\n"


def cell(row: Row, values: Sequence[float]) -> str:
    if not values:
        return "failed"
    low, high = min(values) * row.times, max(values) * row.times
    return f"**{rounded(statistics.median(values) * row.times)}** ({rounded(low)} to {rounded(high)})"


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def plot(rows: Mapping[str, Row], found: Found) -> None:
    """Draw each row's medians as times of Outrider's: to the left of the line is better."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "outrider"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for name in found:
        points = []
        for place, (key, row) in enumerate(rows.items()):
            ours, theirs = found.get("outrider", {}).get(key), found[name][key]
            if ours and theirs:
                ratio = statistics.median(theirs) / statistics.median(ours)
                points.append((1 / ratio if row.higher else ratio, -place))
        if points:
            axes.plot(*zip(*points, strict=True), "D" if name == "outrider" else "o", label=TITLES[name])
    axes.set_xscale("log")
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_yticks([-place for place in range(len(rows))], [row.name for row in rows.values()])
    axes.set_xlabel("times Outrider's (less is faster)")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.savefig(PLOT, metadata={"Date": None})
