"""The table fits any terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from outrider.actors import events as ev
from outrider.engine.record.display.pool_view import PoolView, chosen_rows, per_second
from outrider.engine.record.display.table import View, summary


def drawn(pool_view: PoolView, now: float, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(View(pool_view, now))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table(story: list[ev.Event]) -> None:
    pool_view = PoolView()
    for event in story[:-5]:
        pool_view.apply(event)
    assert drawn(pool_view, 3.0, width=80) == [
        "outrider p1 · local · 1 of 2 nodes ready · 0 of 1 task done · 3.0 s",
        " node  state        where  running             done",
        "    0  ● lost       here   killed by signal 9     0",
        "    1  ● ready      here   train 1.0 s            0",
    ]


def test_large_arguments_on_their_way_have_a_line(story: list[ev.Event]) -> None:
    pool_view = PoolView()
    for event in story[:8]:
        pool_view.apply(event)
    without = drawn(pool_view, 3.0)
    pool_view.apply(ev.UploadProgress(4, 516_000_000, 1_200_000_000, 6.0))
    assert drawn(pool_view, 3.0) == [*without, "sending 1.2 GB of arguments to 4 nodes: 43 %, 86.0 MB/s"]
    pool_view.apply(ev.UploadProgress(4, 1_200_000_000, 1_200_000_000, 14.0, ended=True))
    assert drawn(pool_view, 3.0) == without


def test_lines_without_end_stand_below_the_nodes_until_they_end(story: list[ev.Event]) -> None:
    pool_view = PoolView()
    for event in story[:8]:
        pool_view.apply(event)
    for rank in (1, 0):
        pool_view.unfinished.apply(ev.UnfinishedLine(7, rank, rank, "stderr", f"\r {rank}0%|#\x1b[2J", "fit", 2))
    assert drawn(pool_view, 3.0)[-2:] == ["[rank 0 · fit]  00%|#", "[rank 1 · fit]  10%|#"]
    pool_view.unfinished.apply(ev.TaskOutput(7, 0, 0, "stderr", "100%\n", "fit", ranks=2))
    assert drawn(pool_view, 3.0)[-1] == "[rank 1 · fit]  10%|#"
    assert len(drawn(pool_view, 3.0)) == 5


def test_header_shows_the_hourly_cost() -> None:
    pool_view = PoolView()
    pool_view.apply(ev.PoolStarting("p", "aws", 1, 1))
    assert "USD" not in drawn(pool_view, 1.0)[0]
    pool_view.apply(ev.NodeLaunching(0, "i-1", 1.25))
    assert drawn(pool_view, 1.0)[0].startswith("outrider p · aws · 0 of 1 node ready · 1.25 USD/h")


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 200])
@pytest.mark.parametrize("height", [6, 24, 60])
def test_table_fits_the_terminal(width: int, height: int) -> None:
    pool_view = PoolView()
    pool_view.apply(ev.PoolStarting("p", "local", 100, 100))
    for node in range(100):
        pool_view.apply(ev.NodeLaunching(node, f"a-rather-long-machine-name-{node}"))
        if node % 2:
            pool_view.apply(ev.NodeReady(node, node, node, 100, hostname="ein-langer-rechnername-你好" * 3, at=1.0))
            pool_view.apply(ev.TaskSubmitted(node, node, "a_function_with_a_very_long_name" * 3, at=1.0))
            pool_view.apply(ev.TaskStarted(node, node, node, at=1.0))
    pool_view.apply(ev.NodeLost(3, "killed\nby\x1b[2J something " * 10, at=2.0))
    for node in range(100):
        pool_view.unfinished.apply(ev.UnfinishedLine(1, node, node, "stderr", "99%|" + "█" * 100, "train", 100))
    lines = drawn(pool_view, 61.0, width, height)
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) <= max(height, 8)


def test_nodes_in_trouble_and_at_work_come_first_when_there_is_no_room() -> None:
    pool_view = PoolView()
    for node in range(10):
        pool_view.apply(ev.NodeReady(node, node, node, 10))
    pool_view.apply(ev.TaskStarted(1, 1, 8))
    pool_view.apply(ev.NodeLost(9, "gone"))
    assert [row.node for row in chosen_rows(pool_view, 4)] == [0, 1, 8, 9]
    assert "and 7 nodes more" in drawn(pool_view, 0.0, height=8)[-1]


def test_a_bar_shows_when_there_are_many_tasks() -> None:
    pool_view = PoolView()
    for task in range(20):
        pool_view.apply(ev.TaskSubmitted(task, task, "f"))
        if task < 10:
            pool_view.apply(ev.TaskFinished(task, task, 0, 1, "returned", 0.1))
    assert set(drawn(pool_view, 1.0)[-1]) <= {"━", "╸", "╺", " "}
    pool_view.unfinished.apply(ev.UnfinishedLine(1, 0, 0, "stderr", "10%", "f"))
    assert drawn(pool_view, 1.0)[-1] == "[node 0 · f #1] 10%"


def test_the_summary_says_what_was_done(story: list[ev.Event]) -> None:
    pool_view = PoolView()
    for event in story:
        pool_view.apply(event)
    assert summary(pool_view, 4.25).plain == "outrider p1 · local · 1 task done · 4.2 s"


def view_of(*events: ev.Event) -> PoolView:
    pool_view = PoolView()
    for event in (ev.PoolStarting("train", "local", 4, 4), *events):
        pool_view.apply(event)
    return pool_view


def test_nodes_are_counted_once_each() -> None:
    ready = [ev.NodeReady(node, node, node + 1, 4) for node in range(5)]
    pool_view = view_of(*ready, ev.NodeNoticed(4, "spot", 30.0), ev.PoolReady(4, 4))
    assert drawn(pool_view, 1.0)[0] == "outrider train · local · 4 of 4 nodes ready, 1 leaving · 1.0 s"
    for event in (ev.NodeDraining(4), ev.NodeSuspect(3, "silent"), ev.NodeStandby(9)):
        pool_view.apply(event)
    assert "3 of 4 nodes ready, 1 leaving, 1 suspect, 1 standby" in drawn(pool_view, 1.0)[0]


def test_a_node_that_is_prepared_shows_its_step_and_for_how_long() -> None:
    steps = [ev.NodePreparing(0, "packages", text, at=at) for text, at in (("", 2.0), ("downloading torch", 20.0))]
    pool_view = view_of(ev.NodeLaunching(0, "m0", at=0.0), ev.NodePreparing(0, "probe", at=1.0), *steps)
    assert drawn(pool_view, 36.0)[2].endswith("m0     packages 34.0 s · downloading torch     0")


def test_a_notice_counts_down() -> None:
    pool_view = view_of(ev.NodeReady(0, 0, 1, 4), ev.NodeNoticed(0, "spot", 120.0, at=10.0))
    shown = [drawn(pool_view, now)[2].split()[3:-1] for now in (10.0, 100.0, 200.0)]
    assert [" ".join(words) for words in shown] == ["spot: 2:00 left", "spot: 30.0 s left", "spot: 0.0 s left"]
    pool_view.apply(ev.NodeNoticeWithdrawn(0, "spot", at=11.0))
    assert "left" not in drawn(pool_view, 12.0)[2]


def test_what_failed_and_what_was_ended_with_it_are_told_apart() -> None:
    pool_view = view_of(
        ev.TaskSubmitted(1, 1, "f"),
        ev.TaskFinished(1, 1, 0, 1, "raised", 0.1),
        ev.TaskSubmitted(2, 2, "f"),
        ev.TaskFinished(2, 2, 0, 1, "killed", 0.1),
        ev.TaskSubmitted(3, 3, "f"),
        ev.TaskGaveUp(3, 3, "cancelled"),
    )
    assert "0 of 3 tasks done · 1 failed, 2 cancelled" in drawn(pool_view, 1.0, width=120)[0]
    assert summary(pool_view, 1.0).plain == "outrider train · local · 0 tasks done · 1 failed, 2 cancelled · 1.0 s"


def test_a_map_shows_its_own_total_its_rate_and_the_time_left() -> None:
    pool_view = view_of(*(ev.TaskSubmitted(task, task, "f") for task in range(2, 30)))
    for second in range(11):
        pool_view.apply(ev.MapProgress(1, "f", 100 * second, 10_000, at=float(second)))
    lines = drawn(pool_view, 10.0, width=100)
    assert " · 0 tasks done · " in lines[0]
    assert lines[-2] == "map f: 1,000 of 10,000 · 100/s · 1:30 left"
    assert "━" in lines[-1]
    pool_view.apply(ev.MapProgress(2, "g", 5, None, at=10.0))
    assert drawn(pool_view, 20.0)[-1] == "map g: 5 · 0.5/s"
    for job in (1, 2):
        pool_view.apply(ev.MapProgress(job, "f", 1000, 10_000, ended=True))
    assert not any("map" in line for line in drawn(pool_view, 10.0))


@pytest.mark.parametrize(("rate", "shown"), [(1234.5, "1,234/s"), (12.3, "12/s"), (0.25, "0.2/s"), (0.05, "3/min")])
def test_rates_for_people(rate: float, shown: str) -> None:
    assert per_second(rate) == shown
