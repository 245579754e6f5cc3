"""Metrics are read back as written, and a step that was redone counts once: as the newest generation has it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.runs import metrics
from outrider.engine.record.runs.metrics import Logged, Point, Series, newest, read_metrics, replaced

View = Callable[[Sequence[Logged]], dict[Series, list[Point]]]
LINES = st.lists(
    st.builds(
        Logged,
        at=st.floats(0, 100),
        function=st.sampled_from(["train", "evaluate"]),
        job=st.integers(1, 2),
        rank=st.sampled_from([None, 0, 1]),
        node=st.integers(0, 1),
        generation=st.integers(1, 3),
        step=st.none() | st.integers(0, 4),
        values=st.dictionaries(st.sampled_from(["loss", "accuracy"]), st.floats(allow_nan=False), max_size=2),
    ),
    max_size=20,
)


def check(view: View, lines: Sequence[Logged]) -> None:
    shown = view(lines)
    logged = {
        (Series(each.function, each.job, each.rank, name), Point(each.step, value, each.at, each.generation))
        for each in lines
        for name, value in each.values.items()
    }
    for series, points in shown.items():
        for point in points:
            assert (series, point) in logged
            again = [other for one, other in logged if one == series and other.step == point.step]
            assert point.step is None or all(other.generation <= point.generation for other in again), "METRICS-1"
        places = [(point.step is None, point.step or 0, point.at) for point in points]
        assert places == sorted(places), "METRICS-3"
    for series, point in logged:
        if point.step is None:
            assert point in shown.get(series, []), "METRICS-2"
        assert any(other.step == point.step for other in shown.get(series, [])), "METRICS-1"


@given(LINES)
def test_a_view_has_the_newest_generation_of_each_step(lines: list[Logged]) -> None:
    check(newest, lines)
    count = sum(len(points) for points in (*newest(lines).values(), *replaced(lines).values()))
    assert count == sum(len(each.values) for each in lines)


def everything(lines: Sequence[Logged]) -> dict[Series, list[Point]]:
    """Both views as one: a redone step is there twice."""
    older = replaced(lines)
    return {series: [*points, *older.get(series, [])] for series, points in newest(lines).items()}


def steps_alone(lines: Sequence[Logged]) -> dict[Series, list[Point]]:
    return newest([each for each in lines if each.step is not None])


def backwards(lines: Sequence[Logged]) -> dict[Series, list[Point]]:
    return {series: points[::-1] for series, points in newest(lines).items()}


@pytest.mark.parametrize(
    ("broken", "rule"), [(everything, "METRICS-1"), (steps_alone, "METRICS-2"), (backwards, "METRICS-3")]
)
def test_the_rules_are_held_by_the_test_which_notices_when_they_are_broken(broken: View, rule: str) -> None:
    lines = [
        Logged(1.0, "train", 1, 0, 0, 1, 1, {"loss": 3.0}),
        Logged(2.0, "train", 1, 0, 1, 2, 1, {"loss": 2.0}),
        Logged(3.0, "train", 1, 0, 1, 2, 2, {"loss": 1.0}),
        Logged(4.0, "train", 1, 0, 1, 2, None, {"loss": 1.0}),
    ]
    check(newest, lines)
    with pytest.raises(AssertionError, match=rule):
        check(broken, lines)


def test_lines_are_read_as_far_as_they_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CHUNK", 7)
    said = {"at": 1.5, "function": "train", "job": 3, "rank": 0, "node": 0, "generation": 1, "step": 7}
    lines = [
        json.dumps({**said, "values": {"loss": 0.3, "accuracy": 1}}),
        json.dumps({**said, "rank": None, "step": None, "values": {"loss": "nan", "most": "inf", "least": "-inf"}}),
        json.dumps({**said, "values": {"loss": "high"}}),
        json.dumps({**said, "values": {"loss": True}}),
        json.dumps({"at": 1.5, "values": {"loss": 1}}),
        "[1]",
        "{",
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, lines[0][:40]]))
    first, second = read_metrics(tmp_path)
    assert first == Logged(1.5, "train", 3, 0, 0, 1, 7, {"loss": 0.3, "accuracy": 1})
    assert (second.rank, second.step) == (None, None)
    assert math.isnan(second.values.pop("loss"))
    assert second.values == {"most": math.inf, "least": -math.inf}


def test_a_record_without_metrics_has_none(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []
