"""The rank that the others wait for is named by the time outside of collectives, and nobody where that says nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.profiles import Interval, RankTimes, table_of

SEEN = Interval(0.0, 100.0)


def training(
    own: list[list[float]], *, steps: bool = True, offsets: list[float] | None = None, reduce_s: float = 0.002
) -> list[RankTimes]:
    """Ranks that reduce at the end of each step. ``own``: how long each works before that, by step and rank."""
    ranks = len(own[0])
    begins, collectives = [[0.0] for _ in range(ranks)], [list[Interval]() for _ in range(ranks)]
    now = 0.0
    for step in own:
        met = now + max(step) + reduce_s
        for rank, seconds in enumerate(step):
            collectives[rank].append(Interval(now + seconds, met))
            begins[rank].append(met)
        now = met
    found = []
    for rank in range(ranks):
        shift = 0.0 if offsets is None else offsets[rank]
        moved = [Interval(each.began + shift, each.ended + shift) for each in collectives[rank]]
        ends = [at + shift for at in begins[rank]]
        whole = [Interval(*pair) for pair in itertools.pairwise(ends)] if steps else []
        found.append(RankTimes(rank, rank // 2, Interval(shift, now + shift), whole, moved))
    return found


def test_a_rank_that_is_slow_in_each_step_is_named_though_all_steps_take_as_long() -> None:
    table = table_of(training([[0.020, 0.050, 0.021, 0.019]] * 5))
    assert table.stragglers == [1]
    assert table.excess_s == pytest.approx(0.029)
    assert {round(row.step_s, 6) for row in table.rows} == {0.052}
    assert table.rows[1].before_s == table.rows[1].outside_s == pytest.approx(0.05)
    assert table.rows[1].inside_s == pytest.approx(0.002)
    assert table.rows[0].inside_s == pytest.approx(0.032)
    assert (table.steps, table.by_steps) == (5, True)


def test_all_ranks_of_a_slow_node_are_named() -> None:
    table = table_of(training([[0.02, 0.02, 0.05, 0.05, 0.021, 0.02]] * 5))
    assert table.stragglers == [2, 3]


@pytest.mark.parametrize(
    "own",
    [
        [[0.020, 0.0205, 0.020, 0.020]] * 5,  # too little
        [[0.02, 0.05, 0.02, 0.02], [0.05, 0.02, 0.02, 0.02]] * 3,  # another one each time
        [[0.05, 0.05, 0.05, 0.02]] * 5,  # most are slow
        [[0.02, 0.05]] * 2,  # too few steps
        [[0.02]] * 5,
    ],
)
def test_nobody_is_named_where_it_does_not_tell(own: list[list[float]]) -> None:
    assert table_of(training(own)).stragglers == []


def test_a_hiccup_of_another_rank_hides_nobody() -> None:
    own = [[0.02, 0.05, 0.02, 0.02] for _ in range(5)]
    own[2][3] = 0.2
    assert table_of(training(own)).stragglers == [1]


@given(st.integers(0, 3), st.integers(0, 2**32), st.lists(st.floats(-0.02, 0.02), min_size=4, max_size=4))
def test_it_is_named_through_noise_and_clocks_that_differ(slow: int, seed: int, offsets: list[float]) -> None:
    chance = random.Random(seed)
    own = [[0.02 + 0.03 * (rank == slow) + chance.uniform(0, 0.008) for rank in range(4)] for _ in range(5)]
    assert table_of(training(own, offsets=offsets)).stragglers == [slow]


def test_noise_alone_names_nobody() -> None:
    chance = random.Random(1)
    named = 0
    for _ in range(300):
        own = [[chance.gauss(0.02, 0.004) for _ in range(4)] for _ in range(5)]
        named += bool(table_of(training(own)).stragglers)
    assert named <= 3


def test_without_steps_equal_pieces_of_time_are_compared() -> None:
    table = table_of(training([[0.02, 0.05, 0.02, 0.02]] * 40, steps=False))
    assert table.stragglers == [1]
    assert not table.by_steps
    assert table.steps >= 3


def test_collectives_that_overlap_count_once() -> None:
    step = Interval(0.0, 1.0)
    ranks = [
        RankTimes(0, 0, SEEN, [step], [Interval(0.2, 0.6), Interval(0.4, 0.8), Interval(0.9, 2.0)]),
        RankTimes(1, 1, SEEN, [step], []),
    ]
    first, second = table_of(ranks).rows
    assert (first.before_s, first.inside_s, first.outside_s) == pytest.approx((0.2, 0.7, 0.3))
    assert (second.before_s, second.inside_s, second.outside_s) == (None, 0.0, 1.0)


def test_no_rank_and_ranks_that_never_were_together_have_an_empty_table() -> None:
    assert table_of([]).rows == []
    apart = [RankTimes(rank, 0, Interval(rank * 10.0, rank * 10.0 + 1), [], []) for rank in range(2)]
    table = table_of(apart)
    assert [(row.rank, row.step_s) for row in table.rows] == [(rank.rank, rank.seen.seconds) for rank in apart]
    assert (table.steps, table.stragglers) == (0, [])
