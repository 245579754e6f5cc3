"""The timeline of a report as a picture; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engine.api.errors import SpecError
from ...engine.record.report.timeline import WORDS
from .timeline import COLOURS, timeline

if TYPE_CHECKING:
    from ...engine.api.chaos import ChaosReport

FAULTS = {
    "kill": "killed", "preempt": "notice", "daemon": "daemon killed", "freeze": "frozen", "partition": "cut off",
    "slow": "slow link", "disk": "disk full", "rank": "rank killed", "gil": "GIL held",
}  # fmt: skip
RED, BLACK = "#c0252d", "#222222"


def draw(reports: Sequence[ChaosReport], path: Path, titles: Sequence[str] = ()) -> None:
    """Draw the timelines of ``reports`` one below the other into the file ``path``.

    Raises:
        SpecError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError:
        raise SpecError(
            f"{path.name} needs matplotlib, which is not installed: install it, or write .html, which needs nothing."
        ) from None
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Rectangle

    lines = [timeline(report) for report in reports]
    heights = [max(2, len(line.rows)) for line in lines]
    figure, axes = plt.subplots(
        len(lines), 1, figsize=(12, 1.2 + 0.34 * sum(heights)), layout="constrained", squeeze=False,
        gridspec_kw={"height_ratios": heights},
    )  # fmt: skip
    used: list[str] = []
    for place, (line, (ax,)) in enumerate(zip(lines, axes, strict=True)):
        for y, row in enumerate(line.rows):
            for span in row.spans:
                ax.barh(y, span.end_s - span.begin_s, left=span.begin_s, height=0.66, color=COLOURS[span.kind],
                        edgecolor="white", linewidth=0.8)  # fmt: skip
                if span.text and (span.end_s - span.begin_s) > line.seconds * 0.011 * len(span.text):
                    middle = (span.begin_s + span.end_s) / 2
                    ax.text(middle, y, span.text, ha="center", va="center", fontsize=7.5, color="white")
            for mark in row.marks:
                if mark.kind == "lost":
                    ax.plot([mark.at_s] * 2, [y - 0.45, y + 0.45], color=BLACK, linewidth=1.4)
                else:
                    ax.plot(mark.at_s, y - 0.3, marker="v", color=RED, markersize=6, zorder=3)
                    ax.annotate(FAULTS[mark.kind], (mark.at_s, y), (5, -1), textcoords="offset points", fontsize=7.5,
                                color=RED, va="center", bbox={"fc": "white", "ec": "none", "pad": 0.6})  # fmt: skip
        ax.set_yticks(range(len(line.rows)), [row.name for row in line.rows])
        ax.invert_yaxis()
        ax.set_xlim(0, max(line.seconds, 0.1) * 1.06)
        ax.set_xlabel("seconds")
        ax.grid(axis="x", color="#eeeeee")
        ax.set_axisbelow(True)
        ax.set_title(titles[place] if titles else reports[place].summary(), fontsize=10, loc="left")
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        used += [kind for kind in line.kinds if kind not in used]
    handles: list[Any] = [Rectangle((0, 0), 1, 1, color=COLOURS[kind], label=WORDS[kind]) for kind in used]
    handles += plt.plot([], [], "v", color=RED, label="a fault")
    handles += plt.plot([], [], "|", color=BLACK, markersize=10, label="seen as lost")
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8)
    figure.savefig(path, dpi=130)
    plt.close(figure)
