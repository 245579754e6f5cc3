"""The rows that events of a run become."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.engine.record.report.timeline import Mark, Row, Span, counts, grouped, merged, packed, timeline_of
from outrider.engine.record.runs.lines import SavedCheckpoint

EVENTS: list[ev.Event] = [
    ev.NodeLaunching(0, at=100.0),
    ev.NodeLaunching(1, at=100.0),
    ev.NodeReady(0, 0, 1, 2, at=101.0),
    ev.NodeReady(1, 1, 2, 2, at=102.0),
    ev.BroadcastSubmitted(1, "train", at=103.0),
    ev.GenerationStarted(1, 1, (0, 1), (0, 1), at=103.0),
    ev.NodeLost(1, "killed", at=105.0),
    ev.GenerationLost(1, 1, (1,), at=105.5),
    ev.NodeLaunching(2, at=105.5),
    ev.NodeReady(2, 1, 2, 2, at=106.0),
    ev.GenerationStarted(1, 2, (0, 2), (0, 1), at=106.0),
    ev.BroadcastFinished(1, 2, ("returned", "returned"), at=109.0),
    ev.TaskSubmitted(2, 7, "score", at=109.0),
    ev.TaskStarted(2, 7, 2, at=109.0),
    ev.TaskFinished(2, 7, 2, 1, "raised", 0.5, at=109.5),
    ev.PoolClosed(at=110.0),
]


def test_nodes_generations_and_what_ran_where() -> None:
    line = timeline_of(EVENTS, 100.0, 112.0)
    assert [row.name for row in line.rows] == ["train", "node 0", "node 1", "node 2"]
    assert [row.name for row in line.nodes] == ["node 0", "node 1", "node 2"]
    assert [(span.text, span.begin_s, span.end_s, span.fate) for span in line.rows[0].spans] == [
        ("g1", 3.0, 5.5, "lost"),
        ("g2", 6.0, 9.0, "returned"),
    ]
    work = {row.name: [(span.text, span.begin_s, span.end_s, span.fate) for span in row.work] for row in line.nodes}
    assert work == {
        "node 0": [("train g1", 3.0, 5.5, "lost"), ("train g2", 6.0, 9.0, "returned")],
        "node 1": [("train g1", 3.0, 5.0, "lost")],
        "node 2": [("train g2", 6.0, 9.0, "returned"), ("score", 9.0, 9.5, "raised")],
    }
    assert [row.eventful for row in line.nodes] == [False, True, False]
    assert line.nodes[0].spans[-1].end_s == 10.0, "nothing lasts longer than its pool"


def test_the_wait_in_a_queue_is_apart_from_the_boot() -> None:
    events = [
        ev.NodeLaunching(0, at=100.0),
        ev.NodeQueued(0, "Priority", at=100.0),
        ev.NodeQueued(0, "Resources", at=130.0),
        ev.NodeQueued(0, "Resources", 150.0, at=140.0),
        ev.NodeStarted(0, 60.0, at=160.0),
        ev.NodeReady(0, 0, 1, 1, at=165.0),
    ]
    (row,) = timeline_of(events, 100.0, 170.0).nodes
    spans = [(span.kind, span.text, span.begin_s, span.end_s) for span in row.spans if span.end_s > span.begin_s]
    assert spans == [
        ("queued", "Priority", 0.0, 30.0),
        ("queued", "Resources", 30.0, 60.0),
        ("launching", "", 60.0, 65.0),
        ("ready", "", 65.0, 70.0),
    ]


SAVED = SavedCheckpoint(104.0, "run-7", 1200, 3_100_000, 1, 0, 0)


def test_checkpoints_are_marks_of_their_broadcast_or_node() -> None:
    late = SavedCheckpoint(113.0, "alone", 3, 10, 2, 2)
    line = timeline_of(EVENTS, 100.0, 112.0, [SAVED, late, SAVED._replace(job=9, node=9)])
    assert line.rows[0].marks == [Mark("saved", 4.0, "run-7: step 1,200 is saved, 3.1 MB")]
    assert [row.marks for row in line.nodes if row.name == "node 2"] == [
        [Mark("saved", 12.0, "alone: step 3 is saved, 10 B")]
    ]
    assert [row.eventful for row in line.nodes] == [False, True, False], "nobody looks for them"


@given(st.lists(st.builds(Mark, st.sampled_from(["saved", "lost"]), st.floats(0, 100), st.text(max_size=3))))
def test_of_marks_only_checkpoints_share_one(marks: list[Mark]) -> None:
    shown = grouped(marks, 5.0)
    assert [each for each in shown if each.kind == "lost"] == [
        each for each in sorted(marks, key=lambda each: each.at_s) if each.kind == "lost"
    ]
    saved = [each.at_s for each in shown if each.kind == "saved"]
    assert len(saved) <= 100 / 5 + 1
    assert set(saved) <= {each.at_s for each in marks if each.kind == "saved"}
    last = max((each.at_s for each in marks if each.kind == "saved"), default=None)
    assert (saved[-1] if saved else None) == last
    assert sorted(grouped(marks, 0.0), key=repr) == sorted(marks, key=repr)


def test_a_shared_mark_says_how_many_and_the_last() -> None:
    marks = [Mark("saved", at, f"run: step {at:g}") for at in (1.0, 2.0, 3.0, 9.0)]
    assert grouped(marks, 5.0) == [Mark("saved", 3.0, "3 checkpoints, the last of them run: step 3"), marks[3]]


def test_what_had_not_ended_ends_with_what_is_known() -> None:
    line = timeline_of(EVENTS[:6], 100.0, 104.0)
    assert line.seconds == 4.0
    assert [(span.end_s, span.fate) for span in line.rows[0].spans] == [(4.0, "")]
    assert all(span.end_s == 4.0 for row in line.nodes for span in [row.spans[-1], *row.work])


def test_a_run_without_events_has_no_rows() -> None:
    line = timeline_of([], 100.0, 100.0)
    assert line.rows == []
    assert line.seconds > 0


def test_broadcasts_of_one_function_share_a_row_unless_they_overlap() -> None:
    rows = [Row("f", [Span("runs", at, at + 2.0)]) for at in (0.0, 1.0, 2.0, 5.0)] + [
        Row("g", [Span("runs", 9.0, 9.5)])
    ]
    rows[0].marks, rows[2].marks = [Mark("saved", 0.5, "a")], [Mark("saved", 2.5, "b")]
    assert [mark.text for mark in packed(rows)[0].marks] == ["a", "b"]
    assert [(row.name, [span.begin_s for span in row.spans]) for row in packed(rows)] == [
        ("f", [0.0, 2.0, 5.0]),
        ("f", [1.0]),
        ("g", [9.0]),
    ]


def test_short_tasks_are_one_and_a_failure_among_them_stays() -> None:
    tasks = [
        Span("task", place / 10, place / 10 + 0.09, fate="raised" if place == 50 else "returned")
        for place in range(100)
    ]
    found = merged(tasks, 0.2)
    assert [kind for _, _, kind in found] == ["good", "bad"]
    assert found[1] == (5.0, 5.09, "bad")
    assert len(merged(tasks, 0.005)) == 100


def test_work_that_ended_with_its_node_is_no_failure() -> None:
    assert [kind for _, _, kind in merged([Span("task", 0, 1, fate="lost"), Span("task", 2, 3, fate="died")], 0)] == [
        "void",
        "bad",
    ]


def test_nodes_are_counted_by_state() -> None:
    line = timeline_of(EVENTS, 100.0, 110.0)
    found = counts(line.nodes, line.seconds, 10)
    assert found["ready"] == [0, 1, 2, 2, 2, 1, 2, 2, 2, 2]
    assert found["launching"] == [2, 1, 0, 0, 0, 0, 0, 0, 0, 0]
