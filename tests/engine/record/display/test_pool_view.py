"""The table's content follows from the events."""

from __future__ import annotations

from dataclasses import fields

import pytest

from outrider.actors import events as ev
from outrider.engine.record.display.pool_view import LOST_SHOWN, PoolView


def board_after(events: list[ev.Event]) -> PoolView:
    pool_view = PoolView()
    for event in events:
        pool_view.apply(event)
    return pool_view


def until(events: list[ev.Event], kind: type, nth: int = 1) -> list[ev.Event]:
    """Up to and with the nth event of the kind."""
    places = [place for place, event in enumerate(events) if isinstance(event, kind)]
    return events[: places[nth - 1] + 1]


def test_nodes_come_up(story: list[ev.Event]) -> None:
    pool_view = board_after(until(story, ev.NodeReady))
    assert [(row.node, row.state, row.where) for row in pool_view.rows.values()] == [
        (0, "ready", "here"),
        (1, "launching", "m1"),
    ]
    assert (pool_view.ready, pool_view.desired) == (1, 2)


def test_a_late_node_is_marked_until_it_is_ready() -> None:
    late = [ev.NodeLaunching(3, "m-3"), ev.NodeLate(3, 12.0, 1.5, at=12.0)]
    assert board_after(late).rows[3].state == "late"
    ready = ev.NodeReady(3, 0, 1, 1, "m-3", "here", at=20.0)
    assert board_after([*late, ready]).rows[3].state == "ready"


def test_a_queued_node_says_what_it_waits_for_and_costs_nothing() -> None:
    queued = [ev.NodeLaunching(3, "job-1", 2.0, at=1.0), ev.NodeQueued(3, "job 1 pending: Priority", at=1.0)]
    view = board_after(queued)
    assert (view.rows[3].state, view.rows[3].note) == ("queued", "job 1 pending: Priority")
    assert (view.others, view.hourly_cost) == ({"queued": 1}, 0.0)
    view.apply(ev.NodeQueued(3, "job 1 pending: Priority", 7200.0, at=2.0))
    assert view.rows[3].note.startswith("job 1 pending: Priority, expected ")
    view.apply(ev.NodeStarted(3, 9.0, at=10.0))
    assert (view.rows[3].state, view.rows[3].note, view.rows[3].since) == ("launching", "", 10.0)
    assert (view.others, view.hourly_cost) == ({}, 2.0)


def test_a_running_task_stands_at_its_node(story: list[ev.Event]) -> None:
    pool_view = board_after(until(story, ev.TaskStarted))
    assert list(pool_view.rows[0].running.values()) == [("train", 1.0)]
    assert pool_view.rows[1].running == {}


def test_a_lost_node_is_shown_until_another_is_ready(story: list[ev.Event]) -> None:
    lost = board_after(until(story, ev.NodeLost))
    assert (lost.rows[0].state, lost.rows[0].note, lost.rows[0].running) == ("lost", "killed by signal 9", {})
    assert list(board_after(story).rows) == [1, 2]


def test_hourly_cost_is_that_of_the_present_nodes() -> None:
    priced = [ev.NodeLaunching(node, f"m{node}", 1.25) for node in range(3)]
    assert board_after([*priced, ev.NodeReady(0, 0, 1, 3, at=1.0)]).hourly_cost == 3.75
    assert board_after([*priced, ev.NodeLost(0, "gone", at=1.0), ev.NodeDismissed(1, at=1.0)]).hourly_cost == 1.25


def test_tasks_are_counted(story: list[ev.Event]) -> None:
    pool_view = board_after(story)
    assert (pool_view.wanted, pool_view.done, pool_view.failed) == (1, 1, 0)
    assert pool_view.rows[1].done == 1
    assert pool_view.rows[1].running == {}


def test_ranks_of_a_broadcast_stand_at_their_nodes_and_count_once_however_often_it_starts() -> None:
    pool_view = board_after(
        [
            ev.BroadcastSubmitted(7, "train"),
            ev.GenerationStarted(7, 1, (0, 1), (0, 1, 2, 3)),
            ev.NodeLost(1, "gone", at=1.0),
            ev.GenerationLost(7, 1, (1,), at=1.0),
            ev.GenerationStarted(7, 2, (0, 2), (0, 1, 2, 3), at=2.0),
        ]
    )
    assert (pool_view.wanted, pool_view.done) == (4, 0)
    assert {row.node: list(row.running.values()) for row in pool_view.rows.values()} == {
        0: [("train", 2.0)],
        1: [],
        2: [("train", 2.0)],
    }
    pool_view.apply(ev.BroadcastFinished(7, 2, ("returned", "returned", "returned", "raised"), at=3.0))
    assert (pool_view.done, pool_view.failed) == (3, 1)
    assert {row.node: (row.done, len(row.running)) for row in pool_view.rows.values()} == {
        0: (2, 0),
        1: (0, 0),
        2: (1, 0),
    }
    assert pool_view.names == pool_view.broadcasts == {}


def test_a_rank_that_runs_again_alone_leaves_the_others_running() -> None:
    pool_view = board_after(
        [
            ev.BroadcastSubmitted(7, "f"),
            ev.GenerationStarted(7, 1, (0, 1), (0, 1)),
            ev.NodeLost(1, "gone", at=1.0),
            ev.GenerationStarted(7, 2, (0, 2), (1,), at=2.0),
        ]
    )
    assert {row.node: list(row.running.values()) for row in pool_view.rows.values()} == {
        0: [("f", 0.0)],
        1: [],
        2: [("f", 2.0)],
    }
    assert pool_view.wanted == 2


def test_names_of_finished_jobs_are_forgotten(story: list[ev.Event]) -> None:
    assert board_after(until(story, ev.TaskStarted, 2)).names == {1: "train"}
    assert board_after(story).names == {}


def test_a_node_that_stands_by_is_shown_and_not_counted_as_ready() -> None:
    pool_view = board_after([ev.NodeLaunching(3, "m-3"), ev.NodeStandby(3, "m-3", "host3", at=5.0)])
    assert (pool_view.rows[3].state, pool_view.rows[3].where, pool_view.ready) == ("standby", "host3", 0)
    pool_view.apply(ev.NodeReady(3, rank=0, ready=1, wanted=1, at=9.0))
    assert (pool_view.rows[3].state, pool_view.ready) == ("ready", 1)


def test_lost_nodes_do_not_pile_up() -> None:
    pool_view = board_after([ev.NodeLost(node, "gone", at=float(node)) for node in range(100)])
    assert len(pool_view.rows) == LOST_SHOWN


KINDS = [kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event)]


@pytest.mark.parametrize("kind", KINDS)
def test_any_event_may_come_first(kind: type[ev.Event]) -> None:
    """The console may be opened late, and must not depend on the engine's order."""
    sample = {"int": 1, "float": 1.0, "str": "x", "bool": False, "float | None": None, "int | None": None}
    row = ("numpy", "2.1", "1.26")
    tuples: dict[str, object] = {"tuple[int, ...]": (1,), "tuple[str, ...]": ("x",), "tuple[GpuSample, ...]": ()}
    tuples["tuple[tuple[str, str, str], ...]"] = (row,)
    facts = {
        field.name: (sample | tuples | {"Mapping[str, str]": {"zone": "a"}})[str(field.type)] for field in fields(kind)
    }
    PoolView().apply(kind(**facts))  # type: ignore[arg-type]


def test_a_task_that_was_not_sent_for_want_of_an_object_is_counted_when_it_ends() -> None:
    unsent = [ev.TaskSubmitted(1, 1, "f"), ev.TaskFinished(1, 1, 0, 1, "unsent", 0.0)]
    view = board_after([*unsent, ev.TaskSubmitted(1, 1, "f"), ev.TaskFinished(1, 1, 0, 1, "returned", 0.1)])
    assert (view.wanted, view.done, view.failed, view.cancelled) == (1, 1, 0, 0)
    view = board_after([*unsent, ev.TaskGaveUp(1, 1, "lost")])
    assert (view.wanted, view.done, view.failed, view.cancelled) == (1, 0, 1, 0)
