"""The table fits any terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from outrider.actors import events as ev
from outrider.engine.observe.pool_view import PoolView
from outrider.engine.observe.table import View, chosen_rows, summary


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
        "outrider local · 1 of 2 nodes ready · 0 of 1 task done · 3.0 s",
        " node  state        where  running             done",
        "    0  ● lost       here   killed by signal 9     0",
        "    1  ● ready      here   train 1.0 s            0",
    ]


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
    assert drawn(pool_view, 1.0)[0].startswith("outrider aws · 0 of 1 node ready · 1.25 USD/h")


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
    assert "━" in drawn(pool_view, 1.0)[-1]


def test_the_summary_says_what_was_done(story: list[ev.Event]) -> None:
    pool_view = PoolView()
    for event in story:
        pool_view.apply(event)
    assert summary(pool_view, 4.25).plain == "outrider local · 1 task done · 4.2 s"
