"""When a step is saved: the same steps on every rank, however late each reads what is announced."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.engine.checkpoint.agreement import SaveInterval, spread_s


def save_interval(
    *, steps: int | None = None, seconds: float | None = None, alone: bool = True, leads: bool = True, lead_s: float = 1
) -> SaveInterval:
    return SaveInterval(steps=steps, seconds=seconds, alone=alone, leads=leads, lead_s=lead_s, now=0.0)


def calm() -> bool:
    return False


def due(which: SaveInterval, asked: range, *, per_s: float = 1.0) -> list[int]:
    return [step for step in asked if which.due(step, step / per_s, calm)]


def test_without_an_interval_every_step_is_saved() -> None:
    assert due(save_interval(), range(5)) == [0, 1, 2, 3, 4]


def test_every_n_steps() -> None:
    assert due(save_interval(steps=10), range(35)) == [10, 20, 30]


def test_steps_that_are_left_out_do_not_matter() -> None:
    assert due(save_interval(steps=10), range(0, 50, 7)) == [14, 21, 35, 42]


def test_after_a_resume_the_rhythm_is_that_of_the_steps() -> None:
    resumed = save_interval(steps=10)
    resumed.resumed(17, 0.0)
    assert due(resumed, range(18, 41)) == [20, 30, 40]


def test_every_so_often_alone() -> None:
    assert due(save_interval(seconds=10), range(0, 36, 3)) == [12, 24]


def test_a_step_asked_for_twice_has_one_answer() -> None:
    which = save_interval(steps=5)
    assert [which.due(5, 5.0, calm), which.due(5, 5.0, calm)] == [True, True]
    which.saved(5, 5.0)
    assert not which.due(5, 5.0, calm)


def test_a_forced_save_counts() -> None:
    which = save_interval(seconds=10)
    which.due(9, 9.0, calm)
    which.saved(9, 9.0)
    assert not which.due(12, 12.0, calm)
    assert which.due(19, 19.0, calm)


def test_a_notice_is_saved_for_once() -> None:
    which = save_interval(steps=100)
    answers = [which.due(step, step, lambda now=step: 3 <= now < 6 or now >= 8) for step in range(10)]  # type: ignore[misc]
    assert [step for step, answer in enumerate(answers) if answer] == [3, 8]


def test_step_is_announced_ahead_by_the_lead_time() -> None:
    which = save_interval(seconds=10, alone=False, lead_s=3)
    assert due(which, range(0, 241, 2), per_s=16) == []
    assert which.next_announcement() == 240 + 48


def test_no_step_is_announced_before_the_speed_is_known() -> None:
    which = save_interval(seconds=1, alone=False, lead_s=3)
    which.due(0, 100.0, calm)
    assert which.next_announcement() is None
    which.due(1, 101.0, calm)
    assert which.next_announcement() == 4


def test_only_rank_0_announces() -> None:
    which = save_interval(seconds=1, alone=False, leads=False)
    assert due(which, range(20)) == []
    assert which.next_announcement() is None


def test_missed_announcement_is_followed_by_one_further_ahead() -> None:
    which = save_interval(seconds=100, alone=False, leads=False, lead_s=5)
    due(which, range(30))
    which.announced(29)
    assert which.next_announcement() == 29 + 10
    which.announced(39)
    assert which.next_announcement() is None
    assert due(which, range(30, 60)) == [39]


@given(ranks=st.integers(1, 64), since_s=st.floats(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_ranks_begin_to_write_one_after_the_other_long_before_the_next_save(ranks: int, since_s: float) -> None:
    delays = [spread_s(rank, ranks, since_s) for rank in range(ranks)]
    assert delays[0] == 0
    assert delays == sorted(delays)
    assert delays[-1] <= min(5, since_s / 10)
    assert since_s < 1 or len(set(delays)) == ranks


@settings(max_examples=60, deadline=None)
@given(
    ranks=st.integers(2, 4),
    every=st.floats(0.5, 5),
    reads_after=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    lags=st.lists(st.floats(0, 0.5), min_size=4, max_size=4),
    stride=st.integers(1, 5),
)
def test_all_ranks_save_the_same_steps_when_the_lead_is_long_enough(
    ranks: int, every: float, reads_after: list[int], lags: list[float], stride: int
) -> None:
    """Ranks in step, 10 steps a second; each reads an announcement up to 3 s later, and is up to 0.5 s behind."""
    intervals = [save_interval(seconds=every, alone=False, leads=rank == 0, lead_s=4.0) for rank in range(ranks)]
    saved: list[list[int]] = [[] for _ in intervals]
    announced: list[tuple[int, int]] = []  # (tick at which it was made, target)
    read = [0] * ranks
    for tick in range(300):
        for rank, which in enumerate(intervals):
            step = stride * tick
            if which.due(step, tick / 10 + lags[rank], calm):
                saved[rank].append(step)
            if (next_announcement := which.next_announcement()) is not None and read[rank] == len(announced):
                announced.append((tick, next_announcement))
            while read[rank] < len(announced) and (announced[read[rank]][0] + reads_after[rank] <= tick or rank == 0):
                which.announced(announced[read[rank]][1])
                read[rank] += 1
    assert saved[0]
    assert all(each == saved[0] for each in saved)


@pytest.mark.parametrize("steps", [1, 3, 10])
@given(asked=st.lists(st.integers(0, 60), min_size=1, max_size=40))
@settings(max_examples=40, deadline=None)
def test_no_more_than_n_steps_lie_between_what_is_asked_and_what_is_saved(steps: int, asked: list[int]) -> None:
    which = save_interval(steps=steps)
    last = 0
    for step in sorted(set(asked)):
        if which.due(step, 0.0, calm):
            last = step
        assert step // steps == last // steps
