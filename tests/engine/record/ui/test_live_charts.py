"""The charts of a living run, summed from what pages are sent, are those of the report."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from outrider.engine.record.report.charts import Chart, metric_charts
from outrider.engine.record.runs.metrics import Logged, divided
from outrider.engine.record.ui import live_charts
from outrider.engine.record.ui.live_charts import Change, LiveCharts

BEGAN = 1000.0
VALUES = [0.5, 1.0, 2.0, 3.0, math.nan, math.inf]


def logged(at: float, step: int | None, value: float, *, rank: int | None = 0, generation: int = 1, job: int = 1,
           name: str = "loss", function: str = "train") -> Logged:  # fmt: skip
    return Logged(BEGAN + at, function, job, rank, rank, generation, step, {name: value})


class Page:
    """What a page makes of the changes that it is sent, as its script does."""

    def __init__(self) -> None:
        self.charts: list[list[tuple[Any, ...]]] = []

    def take(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.tails is None:
                self.charts += [[]] * (change.place + 1 - len(self.charts))
                self.charts[change.place] = shown(change.chart)
                continue
            for place, tail in change.tails.items():
                label, faint, steps, at_s, ys = self.charts[change.place][place]
                assert (steps is None) == (not tail.steps)
                steps = None if steps is None else steps + tail.steps
                self.charts[change.place][place] = label, faint, steps, at_s + tail.at_s, ys + tail.ys


def shown(chart: Chart) -> list[tuple[Any, ...]]:
    return [
        (each.label, each.faint, None if each.steps is None else [*each.steps], [*each.at_s], [*each.ys])
        for each in chart.curves
    ]


Batch = tuple[list[Logged], bool, bool]  # lines, and whether stale charts are made anew, and whether grown ones too


@st.composite
def runs(draw: st.DrawFn) -> list[Batch]:
    """Ranks that log on and on, begin again at an earlier step, and come late."""
    batches, at = [], 0.0
    steps: dict[tuple[int | None, str], int] = {}
    generation = 1
    for _ in range(draw(st.integers(1, 8))):
        lines = []
        for _ in range(draw(st.integers(0, 6))):
            key = draw(st.sampled_from([0, 1, None])), draw(st.sampled_from(["loss", "grad"]))
            step = steps[key] = steps.get(key, 0) + draw(st.sampled_from([1, 1, 1, 0, 2]))
            at += draw(st.sampled_from([0.25, 0.0]))
            said = draw(st.sampled_from([step, step, step, step, None]))
            early = draw(st.sampled_from([0.0, 0.0, 0.5]))
            lines.append(
                logged(at - early, said, draw(st.sampled_from(VALUES)), rank=key[0], name=key[1], generation=generation)
            )
        batches.append((lines, draw(st.booleans()), draw(st.booleans())))
        if draw(st.integers(0, 3)) == 0:
            generation += 1
            back = draw(st.integers(0, 3))
            steps = {key: max(0, step - back) for key, step in steps.items()}
    return batches


def difference(batches: Sequence[Batch]) -> str:
    """How a page differs from the report after any batch that leaves nothing stale; empty: it never does."""
    live, page, lines = LiveCharts(BEGAN), Page(), list[Logged]()
    for new, renew, grown in batches:
        lines += new
        live.add(new)
        if renew:
            live.renew(grown=grown)
        if live.fresh and live.stale:  # pages wait for it
            continue
        page.take(live.taken())
        if live.stale:
            continue
        whole = metric_charts(divided(lines), BEGAN)
        if repr([shown(each) for each in whole]) != repr(page.charts):
            return f"curves: {page.charts} in place of {[shown(each) for each in whole]}"
        if repr([each.facts for each in whole]) != repr([each.facts for each in live.charts]):
            return "figures"
        if [shown(each) for each in live.charts] != page.charts and "nan" not in repr(page.charts):
            return "the charts that a new page is given"
    return ""


@settings(max_examples=100)
@given(runs())
def test_what_a_page_was_sent_is_the_report_of_the_same_lines(batches: list[Batch]) -> None:
    """LIVE-1."""
    assert difference(batches) == ""


BREAKS: dict[str, Callable[..., object]] = {
    "LIVE-1: points of any kind follow": lambda point, last, *, by_step, once: True,
    "LIVE-1: another generation follows": lambda point, last, *, by_step, once: (point.step or 0) >= (last.step or 0),
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_live_1_falls_without_its_guard(broken: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    """LIVE-1 is what `_follows` holds."""
    monkeypatch.setattr(live_charts, "_follows", broken)
    once = settings(max_examples=2000, derandomize=True, phases=[Phase.generate])
    try:
        found = find(runs(), difference, settings=once)
    except NoSuchExample:
        pytest.fail("nothing notices it")
    assert found


def test_a_point_of_a_run_that_goes_on_costs_a_tail_and_no_more() -> None:
    live = LiveCharts(BEGAN)
    live.add([logged(0.1 * step, step, 1 / (step + 1), rank=rank) for step in range(50) for rank in range(2)])
    live.renew()
    assert [change.tails for change in live.taken()] == [None]
    live.add([logged(5.0, 50, 0.25, rank=1)])
    assert not live.stale
    (change,) = live.taken()
    assert change.tails is not None
    assert {place: (tail.steps, tail.ys) for place, tail in change.tails.items()} == {1: ([50], [0.25])}
    assert live.taken() == []


def test_curves_that_grow_for_long_are_thinned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_charts, "TAIL_POINTS", 1000)
    live, page = LiveCharts(BEGAN), Page()
    for step in range(6_000):
        live.add([logged(0.1 * step, step, math.sin(step))])
        if live.stale:
            live.renew()
        page.take(live.taken())
    ((curve,),) = page.charts
    assert len(curve[-1]) < 1000 + 3 * 500
    assert curve[2][-1] == 5_999


def test_more_curves_than_a_chart_has_are_a_band_that_is_sent_as_a_whole() -> None:
    live = LiveCharts(BEGAN)
    for step in range(3):
        live.add([logged(0.1 * step, step, rank, rank=rank) for rank in range(20)])
        live.renew()
        (change,) = live.taken()
        assert change.tails is None
        assert change.chart.band is not None
        assert change.chart.count == 20


def test_a_chart_that_no_page_has_sends_all() -> None:
    live = LiveCharts(BEGAN)
    live.add([logged(0, 0, 1.0)])
    live.renew()
    live.taken()
    live.add([logged(1, 1, 1.0), logged(1, 1, 1.0, name="grad")])
    assert live.fresh
    live.renew()
    assert [(change.place, change.tails) for change in live.taken()] == [(0, None), (1, None)]
    assert not live.fresh
