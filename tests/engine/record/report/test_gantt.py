"""The picture of a timeline: every node and generation has its bar, and a thousand nodes stay readable."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from outrider.actors import events as ev
from outrider.engine.record.report.timeline import (
    MOST_MARKS,
    MOST_ROWS,
    Timeline,
    clock,
    gantt,
    key,
    shown_nodes,
    tick_s,
    timeline_of,
)
from outrider.engine.record.runs.lines import SavedCheckpoint

EVENTS_OF_TWO: list[ev.Event] = [
    *(ev.NodeReady(node, node, node + 1, 2, at=101.0) for node in range(2)),
    ev.BroadcastSubmitted(1, "train", at=102.0),
    ev.GenerationStarted(1, 1, (0, 1), (0, 1), at=102.0),
    ev.BroadcastFinished(1, 1, ("returned",) * 2, at=109.0),
]


def run_of(nodes: int, lost: list[int] = []) -> Timeline:  # noqa: B006
    events: list[ev.Event] = [ev.NodeLaunching(node, at=100.0) for node in range(nodes)]
    events += [ev.NodeReady(node, node, node + 1, nodes, at=101.0) for node in range(nodes)]
    events += [ev.BroadcastSubmitted(1, "train", at=101.0)]
    events += [ev.GenerationStarted(1, 1, tuple(range(nodes)), tuple(range(nodes)), at=101.0)]
    events += [ev.NodeLost(node, "preempted", at=105.0) for node in lost]
    events += [ev.BroadcastFinished(1, 1, ("returned",) * nodes, at=109.0)]
    return timeline_of(events, 100.0, 110.0)


def test_there_is_a_bar_for_each_node_and_generation() -> None:
    made = gantt(run_of(4, [2]))
    assert len(re.findall('data-bar="generation"', made)) == 1
    assert len(re.findall('data-bar="node"', made)) == 8, "launching and ready, of each"
    assert made.count('class="mark"') == 1
    assert "lost: preempted at 5.00 s" in made


@pytest.mark.parametrize("nodes", [1, 4, 1000])
def test_it_is_well_formed_and_has_no_style_of_its_own(nodes: int) -> None:
    made = gantt(run_of(nodes, [0]))
    ET.fromstring(made.replace("<br>", "<br/>"))
    assert "style=" not in made


def test_of_a_thousand_nodes_the_eventful_ones_have_a_row_and_all_are_in_a_sum() -> None:
    line = run_of(1000, [7, 500, 999])
    shown = shown_nodes(line.nodes)
    assert {"node 7", "node 500", "node 999"} <= {row.name for row in shown.rows}
    assert len(shown.rows) + shown.others == 1000
    made = gantt(line)
    assert made.count('class="row-name"') <= MOST_ROWS + 4
    assert "1,000 nodes; at most 1,000 at the same time" in made
    assert len(made) < 60_000


def test_when_all_of_a_thousand_nodes_are_lost_the_rows_have_a_bound() -> None:
    shown = shown_nodes(run_of(1000, list(range(1000))).nodes)
    assert len(shown.rows) <= MOST_ROWS
    assert shown.others == 1000 - len(shown.rows)


def test_names_and_causes_are_escaped() -> None:
    events = [
        ev.BroadcastSubmitted(1, "</svg><script>x</script>", at=1.0),
        ev.NodeReady(0, 0, 1, 1, at=1.0),
        ev.GenerationStarted(1, 1, (0,), (0,), at=1.0),
        ev.NodeLost(0, '"><img src=x onerror=y>', at=2.0),
    ]
    made = gantt(timeline_of(events, 0.0, 3.0))
    assert "<script" not in made
    assert "<img" not in made
    ET.fromstring(made)


def test_a_checkpoint_is_a_mark_with_its_step_and_size() -> None:
    saved = [SavedCheckpoint(103.0 + 0.001 * step, "<run>", step, 2_500_000, 1, 0, 0) for step in range(1000)]
    line = timeline_of(EVENTS_OF_TWO, 100.0, 110.0, saved)
    made = gantt(line)
    assert 1 < made.count('class="save"') <= MOST_MARKS
    assert "&lt;run&gt;: step 999 is saved, 2.5 MB at 4.00 s</title>" in made
    assert 'class="mark"' not in made
    ET.fromstring(made)
    assert "a checkpoint is complete" in key(line)
    assert "lost, or never ready" not in key(line)
    assert "a checkpoint is complete" not in key(run_of(2, [1]))


def test_the_key_names_what_is_there_and_no_more() -> None:
    made = key(run_of(2))
    assert "ready" in made
    assert "lost, or never ready" not in made
    assert "lost, or never ready" in key(run_of(2, [1]))


@pytest.mark.parametrize(
    ("seconds", "step"), [(0.05, 0.01), (6, 1), (61, 20), (600, 120), (86400, 21600), (10_000_000, 1_728_000)]
)
def test_axes_have_round_steps(seconds: float, step: float) -> None:
    assert tick_s(seconds) == step


@pytest.mark.parametrize(
    ("at_s", "said"), [(0, "0.00 s"), (59.99, "59.99 s"), (60, "1:00"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_times_are_told_as_people_do(at_s: float, said: str) -> None:
    assert clock(at_s) == said
