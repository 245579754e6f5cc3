"""Which points a tracker gets: of which ranks, of which generation, and means."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.runs.metrics import Logged, newest
from outrider.engine.record.trackers import selection as selections
from outrider.engine.record.trackers.base import Point, Ranks
from outrider.engine.record.trackers.selection import LAG_S, Redone, Selection, _Means

Cut = int
LINES = st.lists(
    st.builds(
        lambda rank, step, generation, name, at: (rank, step, generation, name, at),
        st.one_of(st.none(), st.integers(0, 2)),
        st.one_of(st.none(), st.integers(0, 4)),
        st.integers(1, 3),
        st.sampled_from(["loss", "acc"]),
        st.integers(0, 30),
    ),
    max_size=30,
)


def logged(lines: Sequence[tuple[int | None, int | None, int, str, int]]) -> list[Logged]:
    """Make lines whose values tell them apart."""
    return [
        Logged(float(at), "train", 1, rank, 0, generation, step, {name: float(value)})
        for value, (rank, step, generation, name, at) in enumerate(lines)
    ]


def text(line: Logged) -> bytes:
    return json.dumps(line._asdict(), separators=(",", ":")).encode()


def selected(
    ranks: Ranks, lines: Sequence[Logged], cuts: Sequence[int] = (), redone: Redone | None = None
) -> list[Point]:
    """Give the lines to a selection, which is made anew from its state at each cut, as after a kill."""
    selection, points, before = Selection(ranks), list[Point](), 0
    if redone is None:
        redone = Redone()
        redone.look(map(text, lines))
    for cut in sorted({*(each for each in cuts if each < len(lines)), len(lines)}):
        points += selection.add(lines[before:cut], redone)
        selection = Selection(ranks, json.loads(json.dumps(selection.state())))
        before = cut
    return points + selection.rest()


@given(LINES, st.lists(st.integers(0, 30)))
def test_head_and_all_have_each_point_once(raw: Any, cuts: list[int]) -> None:
    """SELECT-1, where nothing is redone."""
    lines = [each._replace(generation=1) for each in logged(raw)]
    head = selected("head", lines, cuts)
    assert [point.value for point in head] == [next(iter(each.values.values())) for each in lines if not each.rank]
    everything = selected("all", lines, cuts)
    assert [point.value for point in everything] == [next(iter(each.values.values())) for each in lines]
    for point, line in zip(everything, lines, strict=True):
        (name,) = line.values
        assert point.name == (name if line.rank is None else f"{name}/rank-{line.rank}")
    unstepped = [(point.name, point.number) for point in everything if point.step is None]
    counts = Counter[str]()
    for name, number in unstepped:
        assert number == counts[name]
        counts[name] += 1


def in_order(lines: Sequence[Logged]) -> list[Logged]:
    """Have generations one after the other, as they are fenced."""
    return sorted(lines, key=lambda line: line.generation)


def check_redone(lines: Sequence[Logged]) -> None:
    points = selected("all", lines)
    counted = newest(lines)
    wanted = sorted(point.value for series in counted.values() for point in series)
    assert sorted(point.value for point in points) == wanted


@given(LINES)
def test_of_redone_steps_the_newest_is_sent(raw: Any) -> None:
    """SELECT-2: of a record that is there as a whole, what is sent is what every view of ours shows."""
    check_redone(in_order(logged(raw)))


REDONE = logged([(0, 1, 1, "loss", 0), (0, 2, 1, "loss", 1), (0, 2, 2, "loss", 2), (0, 3, 2, "loss", 3)])


def check_means(lines: Sequence[Logged], cuts: Sequence[int]) -> None:
    points = [point for point in selected("mean", lines, cuts) if point.step is not None]
    sent = Counter((point.name, point.step, point.generation) for point in points)
    assert not sent or max(sent.values()) == 1
    for point in points:
        values = [
            next(iter(line.values.values()))
            for line in lines
            if (*line.values, line.step, line.generation) == (point.name, point.step, point.generation)
        ]
        assert min(values) <= point.value <= max(values)


@given(LINES, st.lists(st.integers(0, 30)))
def test_a_mean_is_sent_once(raw: Any, cuts: list[int]) -> None:
    """SELECT-3, whatever comes late, and whenever the process is killed."""
    lines = [each._replace(rank=each.rank or 0) for each in in_order(logged(raw))]
    check_means(lines, cuts)
    assert str(selected("mean", lines, cuts)) == str(selected("mean", lines))


def ranks_that_log(steps: int, ranks: int, every_s: float = 1.0) -> list[Logged]:
    return [
        Logged(step * every_s, "train", 1, rank, 0, 1, step, {"loss": float(step + 10 * rank)})
        for step in range(steps)
        for rank in range(ranks)
    ]


def test_a_mean_is_of_all_ranks() -> None:
    """SELECT-3, as it usually is: no later than when the last rank has logged a step."""
    lines = ranks_that_log(30, 4)
    assert [(point.step, point.value) for point in selected("mean", lines)] == [
        (step, step + 15.0) for step in range(30)
    ]
    selection, redone = Selection("mean"), Redone()
    assert selection.add(lines[: 4 * int(LAG_S)], redone) == []  # it does not know yet how many ranks log
    assert len(selection.add(lines[4 * int(LAG_S) : 4 * int(LAG_S) + 4], redone)) == LAG_S + 1
    assert [point.step for point in selection.add(lines[4 * int(LAG_S) + 4 :], redone)] == [*range(11, 30)]


def test_a_mean_does_not_wait_for_ever_for_a_rank() -> None:
    lines = [each for each in ranks_that_log(40, 2) if each.rank == 0 or each.step < 3]
    sent = Selection("mean").add(lines, Redone())
    assert [point.step for point in sent] == [*range(39 - int(LAG_S))]


def test_a_mean_of_nan_is_nan() -> None:
    lines = [each._replace(values={"loss": math.nan}) for each in ranks_that_log(1, 2)]
    assert [math.isnan(point.value) for point in selected("mean", lines)] == [True]


def test_jobs_are_forgotten_when_there_are_many() -> None:
    redone = Redone()
    with patch.object(selections, "KEPT_KEYS", 10):
        redone.look(text(each._replace(job=job)) for job in range(50) for each in REDONE[:1])
    assert len(redone._tops) == 10


def test_the_selection_falls_without_its_guard() -> None:
    """SELECT-1: points of other ranks; SELECT-2: nothing is known of generations; SELECT-3: what is closed is open."""
    lines = ranks_that_log(2, 2)
    with (
        pytest.raises(AssertionError),
        patch.object(Selection, "_point", lambda self, of, name, value: Point(*[0] * 10)),
    ):  # type: ignore[arg-type]
        assert [point.value for point in selected("head", lines)] == [0.0, 1.0]
    check_redone(REDONE)
    with pytest.raises(AssertionError), patch.object(Redone, "look", lambda self, lines: None):
        check_redone(REDONE)
    late = logged([(0, 1, 1, "loss", 0), (0, 2, 1, "loss", 30), (1, 1, 1, "loss", 31)])
    check_means(late, ())
    real: Callable[..., list[Point]] = _Means.add

    def forgetful(self: _Means, of: Logged, name: str, value: float) -> list[Point]:
        for series in self._series.values():
            series["closed"] = None
        return real(self, of, name, value)

    with pytest.raises(AssertionError), patch.object(_Means, "add", forgetful):
        check_means(late, ())
