"""The timeline of a report as rows of spans: the states of each node, the generations, and the faults. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...engine.record.report.timeline import WORDS, Mark, Rows, Timeline, begin

if TYPE_CHECKING:
    from ...engine.api.chaos import ChaosReport

COLOURS = {  # the colours differ in lightness, so that colour-blind readers can distinguish them
    "launching": "#d9d9d9",
    "late": "#efd9a0",
    "standby": "#b8cfe6",
    "ready": "#4c8bbf",
    "suspect": "#f2c14e",
    "noticed": "#e08e2b",
    "draining": "#a3b899",
    "runs": "#3d7a57",
}


def timeline(report: ChaosReport) -> Timeline:
    times = [at for at in (report.began_at, report.ended_at) if at is not None]
    times += [event.at for event in report.events]
    times += [at for strike in report.strikes for at in (strike.at, strike.taken_at)]
    if not times:
        return Timeline([], 0.0)
    began, last = min(times), max(times)
    rows = Rows()
    for node in report.initial_nodes:
        kind = node.state if node.state in WORDS else "launching"
        begin(rows.node(node.node), kind, 0.0, "" if node.rank is None else f"rank {node.rank}")
    for event in report.events:
        rows.follow(event, event.at - began)
    for strike in report.strikes:
        row = rows.node(strike.node)
        row.marks.append(Mark(strike.kind, strike.at - began, strike.fault))
        if strike.kind == "preempt" and strike.over_at is not None:
            row.marks.append(Mark("kill", strike.over_at - began, "its end"))
    for number, row in rows.jobs.items():
        row.name = f"job {number}" if len(rows.jobs) > 1 else "generations"
    return Timeline(rows.end(last - began), last - began, began, broadcasts=len(rows.jobs))
