"""What a report makes of a pool's events: numbers, rows, and files that anybody can open."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from outrider import SpecError, events
from outrider.testing.fault_injection.html import page
from outrider.testing.fault_injection.options import Chaos
from outrider.testing.fault_injection.report import InitialNode, Report, StepCount, Strike
from outrider.testing.fault_injection.timeline import timeline


@pytest.fixture
def report() -> Report:
    """Two nodes; rank 1 is killed at 5 s, and its broadcast goes on at 6 s on the spare; node 0 has a scare."""
    return Report(
        Chaos(15, seed=7),
        strikes=[
            Strike(1, "kill", "Kill()", node=1, rank=1, at=105.0, over_at=105.0),
            Strike(2, "preempt", "Preempt(notice=2)", node=0, rank=0, at=110.0, noticed_at=110.5, over_at=112.5),
        ],
        events=[
            events.NodeLaunching(0, at=100.0),
            events.NodeLaunching(1, at=100.0),
            events.NodeReady(0, 0, 1, 2, at=101.0),
            events.NodeReady(1, 1, 2, 2, at=101.0),
            events.NodeStandby(2, at=102.0),
            events.GenerationStarted(1, 1, (0, 1), (0, 1), at=103.0),
            events.NodeSuspect(0, at=104.0),
            events.NodeResumed(0, at=104.5),
            events.NodeLost(1, "killed", at=105.5),
            events.NodeReady(2, 1, 2, 2, at=105.6),
            events.GenerationLost(1, 1, (1,), at=105.8),
            events.GenerationStarted(1, 2, (0, 2), (0, 1), at=106.0),
            events.BroadcastFinished(1, 2, ("returned", "returned"), at=109.0),
            events.NodeNoticed(0, "file", 2.0, at=110.5),
            events.NodeLost(0, "killed", noticed=True, at=112.6),
        ],
        step_counts=[StepCount(1, 2, 0, 40)],
        began={(1, 1): 103.5, (1, 2): 107.0},
    )


def test_losses_are_counted_from_when_the_machine_was_gone(report: Report) -> None:
    assert report.seen_s == pytest.approx([0.5, 0.1])
    assert report.recoveries_s == pytest.approx([0.5])
    assert report.working_s == pytest.approx([1.5])
    assert report.generations == 2
    assert report.summary() == (
        "2 faults, 2 nodes lost, 2 generations; the next one was started 0.50 s after a loss and made its first step "
        "after 1.5 s (medians)"
    )


def test_a_loss_is_of_the_last_fault_before_it_that_can_take_a_node() -> None:
    faults = [
        Strike(number, kind, "", node=0, rank=0, at=at)
        for number, (kind, at) in enumerate([("freeze", 100.0), ("kill", 200.0), ("slow", 200.05), ("kill", 200.3)], 1)
    ]
    report = Report(strikes=faults, events=[events.NodeLost(0, "killed", at=200.1)])
    assert report.seen_s == pytest.approx([0.1])


def test_in_a_pool_that_was_open_already_time_begins_with_the_chaos() -> None:
    """Nodes that nothing happens to have a row too, and a fault may come before any event, or without one."""
    report = Report(
        began_at=1000.0,
        ended_at=1020.0,
        initial_nodes=[
            InitialNode(0, "ready", 0),
            InitialNode(1, "suspect", 1),
            InitialNode(2, "standby", None),
            InitialNode(3, "preparing", None),
        ],
        strikes=[Strike(1, "gil", "HoldGil()", node=0, rank=0, at=1005.0, over_at=1015.0)],
        events=[events.NodeResumed(1, at=1006.0)],
    )
    line = timeline(report)
    assert (line.began_at, line.seconds) == (1000.0, 20.0)
    spans = {row.name: [(s.kind, s.begin_s, s.end_s, s.text) for s in row.spans] for row in line.rows}
    assert spans == {
        "node 0": [("ready", 0.0, 20.0, "rank 0")],
        "node 1": [("suspect", 0.0, 6.0, "rank 1"), ("ready", 6.0, 20.0, "")],
        "node 2": [("standby", 0.0, 20.0, "")],
        "node 3": [("launching", 0.0, 20.0, "")],
    }
    assert [mark.at_s for mark in line.rows[0].marks] == [5.0]
    assert "<td>5.00 s<td>HoldGil()" in page(report)


def test_no_mark_is_off_the_picture() -> None:
    """Of a report that nobody began or ended either."""
    early, late = (Strike(1, "gil", "", node=0, rank=0, at=at) for at in (100.0, 300.0))
    last = Strike(2, "preempt", "", node=0, rank=0, at=300.0, over_at=310.0)
    line = timeline(Report(strikes=[early, late, last], events=[events.NodeSuspect(0, at=200.0)]))
    assert line.seconds == 210.0
    assert [mark.at_s for row in line.rows for mark in row.marks] == [0.0, 200.0, 200.0, 210.0]


def test_a_node_has_a_row_of_what_it_was(report: Report) -> None:
    line = timeline(report)
    assert [row.name for row in line.rows] == ["generations", "node 0", "node 1", "node 2"]
    spans = {
        row.name: [(s.kind, round(s.begin_s, 3), round(s.end_s, 3), s.text) for s in row.spans] for row in line.rows
    }
    assert spans["generations"] == [("runs", 3.0, 5.8, "g1"), ("runs", 6.0, 9.0, "g2")]
    assert spans["node 0"] == [
        ("launching", 0.0, 1.0, ""),
        ("ready", 1.0, 4.0, ""),
        ("suspect", 4.0, 4.5, ""),
        ("ready", 4.5, 10.5, ""),
        ("noticed", 10.5, 12.6, ""),
    ]
    assert spans["node 2"] == [("standby", 2.0, 5.6, ""), ("ready", 5.6, 12.6, "")]
    marks = {row.name: [(mark.kind, round(mark.at_s, 3)) for mark in row.marks] for row in line.rows}
    assert marks["node 1"] == [("lost", 5.5), ("kill", 5.0)]
    assert marks["node 0"] == [("lost", 12.6), ("preempt", 10.0), ("kill", 12.5)]


def test_two_broadcasts_have_a_row_each(report: Report) -> None:
    report.add(events.GenerationStarted(2, 1, (0, 2), (0, 1), at=109.5))
    assert [row.name for row in timeline(report).rows][:2] == ["job 1", "job 2"]


def test_what_tasks_print_and_each_task_is_left_out() -> None:
    report = Report()
    report.add(events.TaskOutput(1, 0, 0, "stdout", "text", at=1.0))
    report.add(events.TaskFinished(1, 1, 0, 1, "returned", 0.1, at=1.0))
    report.add(events.TaskRetried(1, 1, 0, 1, at=1.0))
    assert [event.name for event in report.events] == ["task_retried"]


def test_report_without_faults_is_complete(tmp_path: Path) -> None:
    assert timeline(Report()).rows == []
    assert Report().summary() == "0 faults, 0 nodes lost, 0 generations"
    for suffix in ("html", "json", "png"):
        assert Report().write(tmp_path / f"a.{suffix}").stat().st_size > 0


def test_a_page_shows_every_row_fault_and_only_text_from_outside(report: Report) -> None:
    report.strikes[0].fault = "<script>"
    text = page(report)
    assert "<script>" not in text
    image = ET.fromstring(text[text.index("<svg") : text.index("</svg>") + 6])
    words = [element.text for element in image.iter("text")]
    assert {"generations", "node 0", "node 1", "node 2", "g1"} <= {*words}
    assert text.count("<tr>") == 1 + len(report.strikes)


def test_files_by_their_name(report: Report, tmp_path: Path) -> None:
    assert report.write(tmp_path / "deep" / "a.png").read_bytes().startswith(b"\x89PNG")
    told = json.loads(report.write(tmp_path / "a.json").read_text())
    assert told["chaos"] == {"mtbf": 15.0, "seed": 7, "faults": [str(fault) for fault in Chaos().faults]}
    assert [event["event"] for event in told["events"]][:2] == ["node_launching", "node_launching"]
    with pytest.raises(SpecError, match=r"not '\.pdf'"):
        report.write(tmp_path / "a.pdf")


def test_picture_without_matplotlib_suggests_html(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecError, match=r"write \.html, which needs nothing"):
        report.write(tmp_path / "a.png")
    assert report.write(tmp_path / "a.html").exists()


def test_properties_are_what_a_junit_report_shows(report: Report) -> None:
    assert report.properties() == [
        ("outrider.faults", "Kill() on rank 1; Preempt(notice=2) on rank 0"),
        ("outrider.nodes_lost", 2),
        ("outrider.generations", 2),
        ("outrider.recovery_s", 0.5),
        ("outrider.working_s", 1.5),
        ("outrider.seed", 7),
    ]
