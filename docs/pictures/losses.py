"""``python docs/pictures/losses.py``: record the run of ``make demo-preempt``, and draw the README's picture of it.

``losses.json`` is the recording: rows of nodes, losses, and the training loss by time. It is made from the newest run
of ``examples/13_preemptions.py`` on this computer. ``losses.py --draw`` draws the two SVG files anew from the recording
that is there. The same recording always gives the same files.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDING = HERE / "losses.json"
REPORT = HERE.parents[1] / "examples" / "out" / "13_preemptions.json"
PICTURES = {theme: HERE / f"losses-{theme}.svg" for theme in ("light", "dark")}
COLOURS = {
    "light": {"ink": "#1d1c1a", "soft": "#5d5952", "line": "#d9d4ca", "ready": "#2f74a8", "standby": "#a9c8de",
              "noticed": "#c96a16", "lost": "#b3261e", "loss": "#15694a", "paper": "#ffffff"},
    "dark": {"ink": "#e9e6df", "soft": "#a5a198", "line": "#3a3f43", "ready": "#4b90c4", "standby": "#365468",
             "noticed": "#d9792a", "lost": "#ff8a75", "loss": "#6fd3a5", "paper": "#0d1117"},
}  # fmt: skip
FAULTS = {"kill": "killed", "daemon": "executor killed", "preempt": "preempted"}

WIDTH, LEFT, RIGHT, TOP = 860, 64, 14, 42
ROW, BAR = 17, 11
CURVE, GAP, BOTTOM = 92, 18, 44

Recording = dict[str, Any]


def recorded() -> Recording:
    """Return the recording of the newest run of the example."""
    from outrider.actors.events import GenerationStarted
    from outrider.engine.record.report.timeline import timeline_of
    from outrider.engine.record.runs.lines import EVENTS, events_in
    from outrider.engine.record.runs.metrics import read_metrics
    from outrider.engine.record.runs.names import runs_folder
    from outrider.engine.record.runs.reader import runs_in

    report = json.loads(REPORT.read_text())
    run = [run for run in runs_in(runs_folder()) if run.id.rpartition("-")[0].endswith("13_preemptions")][-1]
    events = list(events_in((run.directory / EVENTS).read_bytes()))
    generations = [event for event in events if isinstance(event, GenerationStarted)]
    began = generations[0].at
    line = timeline_of(events, began, report["ended_at"])
    logged = read_metrics(run.directory)
    return {
        "seconds": round(line.seconds, 2),
        "nodes": [{"name": row.name, "spans": spans(row.spans)} for row in line.nodes],
        "losses": [
            {**{key: fault[key] for key in ("node", "rank", "kind")}, "at": round(fault["over_at"] - began, 2)}
            for fault in report["faults"]
        ],
        "points": points(
            (each.generation, each.step, each.at - began, each.values["loss"])
            for each in logged
            if each.step is not None
        ),
    }


def spans(of_row: Iterable[Any]) -> list[list[Any]]:
    """Return [state, begin, end] for each span that lasts."""
    rounded = ([span.kind, round(span.begin_s, 2), round(span.end_s, 2)] for span in of_row)
    return [span for span in rounded if span[2] > span[1]]


def points(logged: Iterable[tuple[int, int, float, float]]) -> list[list[float]]:
    """Return [generation, step, second, mean of the ranks' loss] for each step that was done, in this order."""
    steps: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for generation, step, at_s, loss in logged:
        steps.setdefault((generation, step), []).append((at_s, loss))
    return [
        [*key, round(max(at_s for at_s, _ in ranks), 2), round(sum(loss for _, loss in ranks) / len(ranks), 3)]
        for key, ranks in sorted(steps.items())
    ]


def drawn(recording: Recording, theme: str) -> str:
    """Return the recording as SVG."""
    colours = COLOURS[theme]
    bars_end = TOP + ROW * len(recording["nodes"])
    curve_end = bars_end + GAP + CURVE
    height = curve_end + BOTTOM
    scale = (WIDTH - LEFT - RIGHT) / recording["seconds"]

    def x(seconds: float) -> str:
        return f"{LEFT + max(0.0, seconds) * scale:.1f}"

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"',
        f' font-family="system-ui, -apple-system, Segoe UI, sans-serif" font-size="11" fill="{colours["ink"]}">',
        f"<title>{title(recording)}</title>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" fill="{colours["paper"]}"/>',
        f'<text x="{LEFT}" y="16" font-size="13" font-weight="600">{title(recording)}</text>',
        *(bars(recording["nodes"], x, colours)),
        *(loss_marks(recording["losses"], x, curve_end, colours)),
        *(curve(recording, x, bars_end + GAP, colours)),
        *(axis(recording["seconds"], x, curve_end, colours)),
        *(legend(height - 10, colours)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def title(recording: Recording) -> str:
    lost, steps = len(recording["losses"]), max(point[1] for point in recording["points"])
    return f"A training of {steps:.0f} steps on four nodes: {lost} nodes are lost, and it goes on from its checkpoints"


def bars(nodes: Sequence[Recording], x: Any, colours: dict[str, str]) -> Iterable[str]:
    for number, node in enumerate(nodes):
        top = TOP + ROW * number
        yield f'<text x="{LEFT - 8}" y="{top + 9}" text-anchor="end" fill="{colours["soft"]}">{node["name"]}</text>'
        for kind, begin_s, end_s in node["spans"]:
            if end_s > 0 and kind in colours:
                left, right = x(begin_s), x(end_s)
                yield (
                    f'<rect x="{left}" y="{top}" width="{float(right) - float(left):.1f}" height="{BAR}" rx="2" '
                    f'fill="{colours[kind]}"/>'
                )


def loss_marks(losses: Sequence[Recording], x: Any, bottom: int, colours: dict[str, str]) -> Iterable[str]:
    for loss in losses:
        at, node_middle = x(loss["at"]), TOP + ROW * loss["node"] + BAR / 2
        yield (
            f'<line x1="{at}" x2="{at}" y1="{TOP - 8}" y2="{bottom}" stroke="{colours["lost"]}" stroke-width="1" '
            'stroke-dasharray="3 3"/>'
        )
        yield f'<circle cx="{at}" cy="{node_middle:.1f}" r="4" fill="{colours["lost"]}"/>'
        yield (
            f'<text x="{at}" y="{TOP - 12}" text-anchor="middle" fill="{colours["lost"]}">'
            f"rank {loss['rank']} {FAULTS[loss['kind']]}</text>"
        )


def curve(recording: Recording, x: Any, top: int, colours: dict[str, str]) -> Iterable[str]:
    """Draw a line for each generation: the logarithm of the mean loss of the steps around each point."""
    values = [point[3] for point in recording["points"] if point[3] > 0]
    least, most = math.log(min(values)), math.log(max(values))
    yield f'<text x="{LEFT - 8}" y="{top + 12}" text-anchor="end" fill="{colours["soft"]}">loss (log)</text>'
    yield (f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top + CURVE}" y2="{top + CURVE}" stroke="{colours["line"]}"/>')
    for number, steps in groupby(recording["points"], key=lambda point: int(point[0])):
        line = list(steps)
        places = []
        for place, (_, _, at_s, _) in enumerate(line):
            near = [point[3] for point in line[max(0, place - 3) : place + 4]]
            mean = math.log(max(sum(near) / len(near), min(values)))
            places.append(f"{x(at_s)},{top + CURVE * (most - mean) / (most - least):.1f}")
        yield f'<polyline points="{" ".join(places)}" fill="none" stroke="{colours["loss"]}" stroke-width="1.6"/>'
        if number > 1:
            yield (
                f'<text x="{x(line[0][2])}" y="{top + 12}" dx="3" fill="{colours["soft"]}">'
                f"from step {line[0][1] - 1:.0f}</text>"
            )


def axis(seconds: float, x: Any, y: int, colours: dict[str, str]) -> Iterable[str]:
    for second in range(0, int(seconds) + 1, 10):
        text = f"{second} s"
        yield f'<text x="{x(second)}" y="{y + 14}" text-anchor="middle" fill="{colours["soft"]}">{text}</text>'


def legend(y: int, colours: dict[str, str]) -> Iterable[str]:
    words = {"ready": "a node works", "standby": "a spare stands by", "noticed": "a node has a preemption notice"}
    left = LEFT
    for kind, text in words.items():
        yield f'<rect x="{left}" y="{y - 9}" width="11" height="{BAR}" rx="2" fill="{colours[kind]}"/>'
        yield f'<text x="{left + 16}" y="{y}" fill="{colours["soft"]}">{text}</text>'
        left += 34 + 6 * len(text)


if __name__ == "__main__":
    if sys.argv[1:] != ["--draw"]:
        text = json.dumps(recorded(), separators=(",", ":"))
        RECORDING.write_text(text.replace("],[", "],\n[").replace("},{", "},\n{") + "\n")
    for theme, picture in PICTURES.items():
        picture.write_text(drawn(json.loads(RECORDING.read_text()), theme))
        print(f"written to {picture}")
