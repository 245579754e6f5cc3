"""What a notebook shows, with an IPython that keeps what it is given; tests/frameworks has a real one."""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar, copy_context
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from outrider.actors import events as ev
from outrider.engine.api.html import job_page
from outrider.engine.api.sink import PoolFacts, Spending
from outrider.engine.api.snapshot import NodeState, PoolSnapshot
from outrider.engine.client.observer import Observer
from outrider.engine.record.display import notebook as notebook_html
from outrider.engine.record.display.notebook import (
    CELL_CHARS,
    CELL_LINES,
    FAILURES,
    TAIL,
    CellOutput,
    NotebookSink,
    Story,
    pool_page,
    snapshot_page,
)
from outrider.engine.record.display.pool_view import PoolView
from outrider.engine.record.sinks import PoolSinks
from outrider.engine.record.surroundings import surroundings

cell_of_context: ContextVar[str] = ContextVar("cell_of_context")


class Notebook:
    """As IPython's shell is in a kernel: code that a cell has begun belongs to it, other code to the cell that runs."""

    kernel = object()

    def __init__(self) -> None:
        self.running = "cell 1"
        self.shown: list[tuple[str, str, bool, str]] = []  # of which cell, the display's id, whether it is new, HTML
        self.callbacks: dict[str, list[Callable[[object], object]]] = {"post_run_cell": []}
        self.events = self
        self.broken = False

    @property
    def display_pub(self) -> Any:
        return SimpleNamespace(parent_header={"msg_id": cell_of_context.get(self.running)})

    def register(self, event: str, function: Callable[[object], object]) -> None:
        self.callbacks[event].append(function)

    def unregister(self, event: str, function: Callable[[object], object]) -> None:
        self.callbacks[event].remove(function)

    def display(self, bundle: dict[str, str], *, raw: bool, display_id: str, update: bool = False) -> None:
        if self.broken:
            raise RuntimeError("no display")
        assert raw
        assert set(bundle) == {"text/html", "text/plain"}
        self.shown.append((self.display_pub.parent_header["msg_id"], display_id, not update, bundle["text/html"]))

    @property
    def newest(self) -> str:
        return text_of(self.shown[-1][3])


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    shell = Notebook()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    display.display = shell.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    yield shell
    assert shell.callbacks == {"post_run_cell": []}  # nothing of ours stays


def text_of(html: str) -> str:
    return re.sub(r"<[^>]*>", " ", html)


def page(view: PoolView, now: float, **story: Any) -> str:
    return text_of(pool_page(view, Story(**story), now)[0])


def view_after(events: list[ev.Event]) -> PoolView:
    view = PoolView()
    for event in events:
        view.apply(event)
    return view


def test_a_notebook_has_one_display_that_is_updated(notebook: Notebook, story: list[ev.Event]) -> None:
    observer = Observer(PoolSinks("auto"), slots=1)
    observer.open()
    for event in story:
        observer(replace(event, at=event.at or 1e-9))
    observer.close()
    (first, *later) = notebook.shown
    assert first[2]
    assert not any(new for _, _, new, _ in later)
    assert len({display for _, display, _, _ in notebook.shown}) == 1
    assert "ended after 4.2 s" in notebook.newest
    assert "outrider p1 · local" in " ".join(notebook.newest.split())


def test_rich_is_the_same_there(notebook: Notebook) -> None:
    observer = Observer(PoolSinks("rich"), slots=1)
    observer.open()
    assert [type(sink).__name__ for sink in observer._sinks] == ["LogSink", "NotebookSink"]
    observer.close()


def test_the_display_is_in_the_cell_that_has_opened_the_pool_and_updates_are_of_the_one_that_runs(
    notebook: Notebook,
) -> None:
    sink = NotebookSink(PoolFacts())

    def opened_by_cell_1() -> None:
        cell_of_context.set("cell 1")
        sink(ev.PoolStarting("p", "local", 1, 1))

    notebook.running = "cell 2"
    sink._writer.start = lambda: None  # type: ignore[method-assign]  # nothing is drawn but here
    copy_context().run(opened_by_cell_1)
    sink._draw()
    notebook.running = "cell 3"
    sink._draw()
    sink.close()
    assert [(cell, new) for cell, _, new, _ in notebook.shown] == [("cell 1", True), ("cell 3", False)]


def test_a_cells_end_shows_the_newest_state(notebook: Notebook) -> None:
    sink = NotebookSink(PoolFacts())
    sink._writer.start = lambda: None  # type: ignore[method-assign]
    sink(ev.PoolStarting("p", "local", 1, 1))
    sink(ev.PoolResized(7))
    (cell_ended,) = notebook.callbacks["post_run_cell"]
    cell_ended(None)
    assert "0 of 7 nodes ready" in notebook.newest
    sink.close()


def test_while_nothing_is_under_way_nothing_is_sent(notebook: Notebook, story: list[ev.Event]) -> None:
    sink = NotebookSink(PoolFacts())
    sink._writer.start = lambda: None  # type: ignore[method-assign]
    for event in story[:6]:
        sink(event)
    for _ in range(3):
        sink._draw()
    assert len(notebook.shown) == 1
    sink(ev.TaskSubmitted(1, 1, "train", at=1.0))
    for _ in range(3):
        sink._draw()
    assert len(notebook.shown) == 4
    sink.close()


def test_the_cost_of_an_idle_pool_changes_once_a_minute(
    notebook: Notebook, story: list[ev.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    sink = NotebookSink(PoolFacts(lambda: Spending(0.5, 36.0, 0.0)))
    sink._writer.start = lambda: None  # type: ignore[method-assign]
    for event in story[:6]:
        sink(event)
    costs = []
    for clock[0] in (1.0, 30.0, 59.0, 61.0, 119.0):
        sink._draw()
        costs.append(re.search(r"[\d.]+(?= USD,)", notebook.newest)[0])  # type: ignore[index]
    assert (costs, len(notebook.shown)) == (["0.50", "0.50", "0.50", "1.10", "1.10"], 2)
    sink(ev.TaskSubmitted(1, 1, "train", at=120.0))
    sink._draw()
    assert "1.69 USD" in notebook.newest
    sink(ev.TaskFinished(1, 1, 0, 1, "returned", 0.0, at=120.0))
    sink._draw()
    assert "1.69 USD" in notebook.newest  # and not less
    sink.close()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (None, "ended after"),
        (ValueError("bad\x1b[2Jluck"), "ended with ValueError: badluck after"),
        (KeyboardInterrupt(), "interrupted after"),
        (SystemExit(1), "ended by exit after"),
    ],
)
def test_it_says_how_the_pool_ended(
    notebook: Notebook, story: list[ev.Event], error: BaseException | None, said: str
) -> None:
    sink = NotebookSink(PoolFacts())
    for event in story:
        sink(event)
    sink.close(error)
    assert said in notebook.newest


def test_it_says_what_has_ended_the_pool_before_its_block(notebook: Notebook, story: list[ev.Event]) -> None:
    sink = NotebookSink(PoolFacts(failure=lambda: RuntimeError("spent")))
    for event in story:
        sink(event)
    sink._draw()
    assert "ended with RuntimeError: spent" in notebook.newest
    sink.close()


def test_cost_and_record_stay_when_the_pool_has_ended(notebook: Notebook, story: list[ev.Event]) -> None:
    sink = NotebookSink(PoolFacts(lambda: Spending(1.25, 0.5, 0.0), lambda: Path("/state/runs/20260101-000000-p-1234")))
    for event in story:
        sink(event)
    sink.close()
    assert re.search(r"[\d,.]+ USD (?!, )", notebook.newest)
    assert "outrider report 20260101-000000-p-1234" in notebook.newest


@pytest.mark.parametrize("place", ["display", "get_ipython"])
def test_a_broken_notebook_neither_fails_the_pool_nor_hides_what_tasks_print(
    notebook: Notebook, story: list[ev.Event], capsys: pytest.CaptureFixture[str], place: str
) -> None:
    observer = Observer(PoolSinks("rich"), slots=1)
    observer.open()
    if place == "display":
        notebook.broken = True
    else:
        del sys.modules["IPython"].get_ipython
    for event in story:
        observer(event)
    observer.close()
    assert capsys.readouterr().out == "[node 0 · train #1] loss 0.5\n[node 0 · train #1] loss 0.4\n"
    notebook.callbacks["post_run_cell"].clear()


def test_a_broken_ipython_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("broken")

    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(sys, "stderr", None)
    ipython = ModuleType("IPython")
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert surroundings() == "pipe"
    ipython.get_ipython = broken  # type: ignore[attr-defined]
    assert surroundings() == "pipe"


def test_prints_of_tasks_are_below_the_cell_and_the_rest_of_many_in_the_display(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    sink = NotebookSink(PoolFacts(record=lambda: Path("/runs/20260101-000000-p-1234")))
    sink(ev.PoolStarting("p", "local", 1, 1))
    for line in range(CELL_LINES + 500):
        sink(ev.TaskOutput(1, 0, 0, "stdout", f"<b>{line}</b>\n", "train"))
    sink.close()
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == CELL_LINES
    assert err.splitlines() == [
        "outrider: of further lines the pool's display has the last ones; outrider logs 20260101-000000-p-1234 has all"
    ]
    assert "500 more lines of tasks" in notebook.newest
    assert f"&lt;b&gt;{CELL_LINES + 499}&lt;/b&gt;" in notebook.newest


def test_each_cell_has_room_of_its_own() -> None:
    cells = CellOutput()
    assert cells.take("a\n" * CELL_LINES, "1") == ("a\n" * CELL_LINES, False)
    assert cells.take("b\nc\n", "1") == ("", True)
    assert cells.take("d\n", "1") == ("", False)
    assert (cells.hidden, [*cells.tail]) == (3, ["b", "c", "d"])
    assert cells.take("e\n", "2") == ("e\n", False)
    assert (cells.hidden, [*cells.tail]) == (0, [])
    assert cells.take("f" * CELL_CHARS + "\n", "2") == ("", True)
    cells.take("g\n" * 100, "2")
    assert len(cells.tail) == TAIL


def test_failures_and_losses_are_news_at_most_some(notebook: Notebook, story: list[ev.Event]) -> None:
    sink = NotebookSink(PoolFacts())
    sink._writer.start = lambda: None  # type: ignore[method-assign]
    for event in story[:11]:
        sink(event)
    sink._draw()
    assert "node 0 lost: killed by signal 9" in notebook.newest
    for job in range(FAILURES + 5):
        sink(ev.JobFailed(job, "f", "ValueError: bad", 0))
    assert f"f #{FAILURES - 1} failed on node 0: ValueError: bad" in sink._news
    assert len(sink._news) == 5
    sink.close()


def test_the_table(story: list[ev.Event]) -> None:
    shown = page(view_after(story[:8]), 3.0, spent=0.5, hourly=2.0).split()
    assert " ".join(shown) == (
        "outrider p1 · local · 2 of 2 nodes ready · 0 of 1 task done · 0.50 USD, 2.00 USD/h · 3.0 s "
        "node state where running done 0 ● ready here train 2.0 s 0 1 ● ready here idle 0"
    )


def test_a_broadcast_tells_its_generation(story: list[ev.Event]) -> None:
    view = view_after(story[:6])
    view.apply(ev.BroadcastSubmitted(4, "fit", at=1.0))
    view.apply(ev.GenerationStarted(4, 2, (0, 1), (0, 1), at=1.0))
    assert "broadcast fit: 2 ranks, generation 2" in page(view, 2.0)
    assert view.busy
    view.apply(ev.BroadcastFinished(4, 2, ("returned", "returned"), at=3.0))
    assert "broadcast" not in page(view, 3.0)
    assert not view.busy


def test_a_map_has_a_bar(story: list[ev.Event]) -> None:
    view = view_after(story[:6])
    view.apply(ev.MapProgress(3, "clean", 20, 100, failed=2, at=1.0))
    html, _ = pool_page(view, Story(), 2.0)
    assert '<progress max="100" value="20"></progress>' in html
    assert "map clean: 20 of 100 · 2 failed" in text_of(html)


def test_an_idle_pools_page_stays_the_same_for_a_minute(story: list[ev.Event]) -> None:
    view = view_after(story[:6])
    assert page(view, 61.0) == page(view, 119.0)
    assert "open for 1 minute " in page(view, 61.0)
    assert "open for 2 minutes " in page(view, 121.0)


def test_many_nodes_are_shown_in_part() -> None:
    view = view_after([ev.NodeReady(node, node, 100, 100, f"m{node}", "here") for node in range(100)])
    html, _ = pool_page(view, Story(), 2.0)
    assert html.count("<tr>") == 1 + notebook_html.ROWS
    assert f"and {100 - notebook_html.ROWS} more nodes" in text_of(html)
    assert len(html) < 12_000


def test_all_text_is_escaped() -> None:
    bad = "<script>alert(1)</script>\x1b[2J"
    view = view_after(
        [
            ev.PoolStarting(bad, bad, 1, 1),
            ev.NodeReady(0, 0, 1, 1, bad, bad, bad),
            ev.TaskSubmitted(1, 1, bad),
            ev.TaskStarted(1, 1, 0),
            ev.MapProgress(3, bad, 20, 100),
            ev.BroadcastSubmitted(4, bad),
            ev.GenerationStarted(4, 1, (0,), (0,)),
        ]
    )
    story = Story(news=[bad], hidden=3, tail=[bad], record=bad, unfinished=[bad])
    snapshot = PoolSnapshot(bad, "ready", 1, (NodeState(0, bad, 0, bad, bad),), 0, 0)
    pages = [pool_page(view, story, 1.0)[0], snapshot_page(snapshot, bad, (0.0, 0.0), bad), job_page(bad, 1, "failed")]
    for html in pages:
        assert "<script" not in html
        assert "\x1b" not in html
        assert "&lt;script&gt;" in html


def test_a_pool_at_one_moment() -> None:
    nodes = tuple(NodeState(node, "ready", node, hostname="here") for node in range(20))
    html = snapshot_page(PoolSnapshot("p", "ready", 20, nodes, 0, 0), "'p' of aws: 20 ready", (1.5, 3.0), "run-1")
    assert " ".join(text_of(html).split()).startswith(
        "Pool 'p' of aws: 20 ready · 1.50 USD, 3.00 USD/h node state rank where accelerators 0 ● ready 0 here".replace(
            "'", "&#x27;"
        )
    )
    assert "and 4 more nodes record: run-1" in " ".join(text_of(html).split())


@pytest.mark.parametrize("ground", ["#ffffff", "#f7f7f7", "#1e1e1e", "#111111", "#000000"])
def test_dots_stand_out_from_light_and_dark_ground(ground: str) -> None:
    def light(colour: str) -> float:
        parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for colour in {*notebook_html.COLOURS.values(), notebook_html.WARNING, notebook_html.QUIET}:
        darker, lighter = sorted((light(colour), light(ground)))
        assert (lighter + 0.05) / (darker + 0.05) >= 3, colour
