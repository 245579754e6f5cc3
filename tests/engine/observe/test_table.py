"""The table fits any terminal."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from outrider.actors import events as ev
from outrider.engine.observe.board import Board
from outrider.engine.observe.table import View, chosen, summary


def drawn(board: Board, now: float, width: int = 80, height: int = 24) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(View(board, now))
    return [line.rstrip() for line in capture.get().splitlines()]


def test_the_table(story: list[ev.Event]) -> None:
    board = Board()
    for event in story[:-5]:
        board.apply(event)
    assert drawn(board, 3.0, width=80) == [
        "outrider local · 1 of 2 nodes ready · 0 of 1 task done · 3.0 s",
        " node  state        where  running             done",
        "    0  ● lost       here   killed by signal 9     0",
        "    1  ● ready      here   train 1.0 s            0",
    ]


def test_what_it_costs_stands_above() -> None:
    board = Board()
    board.apply(ev.PoolStarting("p", "aws", 1, 1))
    assert "USD" not in drawn(board, 1.0)[0]
    board.apply(ev.NodeLaunching(0, "i-1", 1.25))
    assert drawn(board, 1.0)[0].startswith("outrider aws · 0 of 1 node ready · 1.25 USD/h")


@pytest.mark.parametrize("width", [20, 40, 63, 64, 80, 200])
@pytest.mark.parametrize("height", [6, 24, 60])
def test_it_fits(width: int, height: int) -> None:
    board = Board()
    board.apply(ev.PoolStarting("p", "local", 100, 100))
    for node in range(100):
        board.apply(ev.NodeLaunching(node, f"a-rather-long-machine-name-{node}"))
        if node % 2:
            board.apply(ev.NodeReady(node, node, node, 100, hostname="ein-langer-rechnername-你好" * 3, at=1.0))
            board.apply(ev.TaskSubmitted(node, node, "a_function_with_a_very_long_name" * 3, at=1.0))
            board.apply(ev.TaskStarted(node, node, node, at=1.0))
    board.apply(ev.NodeLost(3, "killed\nby\x1b[2J something " * 10, at=2.0))
    lines = drawn(board, 61.0, width, height)
    assert max(cell_len(line) for line in lines) <= width
    assert len(lines) <= max(height, 8)


def test_nodes_in_trouble_and_at_work_come_first_when_there_is_no_room() -> None:
    board = Board()
    for node in range(10):
        board.apply(ev.NodeReady(node, node, node, 10))
    board.apply(ev.TaskStarted(1, 1, 8))
    board.apply(ev.NodeLost(9, "gone"))
    assert [row.node for row in chosen(board, 4)] == [0, 1, 8, 9]
    assert "and 7 nodes more" in drawn(board, 0.0, height=8)[-1]


def test_a_bar_shows_when_there_are_many_tasks() -> None:
    board = Board()
    for task in range(20):
        board.apply(ev.TaskSubmitted(task, task, "f"))
        if task < 10:
            board.apply(ev.TaskFinished(task, task, 0, 1, "returned", 0.1))
    assert "━" in drawn(board, 1.0)[-1]


def test_the_summary_says_what_was_done(story: list[ev.Event]) -> None:
    board = Board()
    for event in story:
        board.apply(event)
    assert summary(board, 4.25).plain == "outrider local · 1 task done · 4.2 s"
