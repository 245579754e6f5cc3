"""KEEP-1 and 2: which steps ranks keep in memory, and how much of a computer's memory they may take."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.checkpoint.memory_saves import AGAIN_AFTER, MOST_STRIDE, MemoryInterval, too_much


def kept(every: int, busy_steps: int, steps: int, kind: type[MemoryInterval] = MemoryInterval) -> list[int]:
    """The steps that a rank keeps whose saves take so many steps each."""
    interval, found, free_at = kind(every), list[int](), 0
    for step in range(1, steps + 1):
        if interval.due(step):
            interval.done(step, kept=step >= free_at)
            if step >= free_at:
                found.append(step)
                free_at = step + busy_steps
    return found


def test_each_step_is_kept_while_saves_are_quicker() -> None:
    assert kept(1, 1, 20) == list(range(1, 21))
    assert kept(5, 3, 20) == [5, 10, 15, 20]


def test_slower_saves_are_left_out_and_tried_again_as_often_later() -> None:
    interval = MemoryInterval(1)
    interval.done(1, kept=False)
    assert interval.stride == 2
    for step in range(2, 2 * AGAIN_AFTER + 2):
        if interval.due(step):
            interval.done(step, kept=True)
    assert interval.stride == 1
    for step in range(100):
        interval.done(step, kept=False)
    assert interval.stride == MOST_STRIDE


def test_steps_that_are_not_asked_about_are_made_up_for() -> None:
    interval = MemoryInterval(10)
    interval.resumed(95)
    assert [step for step in (96, 99, 103, 104) if interval.due(step)] == [103, 104]
    interval.done(103, kept=True)
    assert not interval.due(109)


@given(every=st.integers(1, 4), slow=st.lists(st.integers(1, 12), min_size=2, max_size=4))
def test_ranks_of_any_speed_keep_common_steps(every: int, slow: list[int]) -> None:
    in_common(every, slow, MemoryInterval)


def in_common(every: int, slow: list[int], kind: type[MemoryInterval]) -> None:
    steps = 1200 * every
    ranks = [{*kept(every, busy, steps, kind)} for busy in slow]
    common = sorted(set.intersection(*ranks))
    assert all(step % every == 0 for step in common), "KEEP-1"
    needs = 1
    while needs * every < max(slow):
        needs *= 2
    gaps = [later - earlier for earlier, later in zip([0, *common], [*common, steps], strict=True)]
    assert max(gaps) <= 8 * needs * every, "KEEP-2"


class KeepsAnyStep(MemoryInterval):
    def due(self, step: int) -> bool:
        return True


class KeepsWheneverItCan(MemoryInterval):
    def done(self, step: int, *, kept: bool) -> None:
        self._last = step // self._every


@pytest.mark.parametrize(
    ("broken", "every", "invariant"), [(KeepsAnyStep, 3, "KEEP-1"), (KeepsWheneverItCan, 1, "KEEP-2")]
)
def test_the_invariant_falls_without_its_guard(broken: type[MemoryInterval], every: int, invariant: str) -> None:
    with pytest.raises(AssertionError, match=invariant):
        in_common(every, [7, 11, 12], broken)


def test_memory_is_bounded_and_the_numbers_are_told() -> None:
    assert not too_much(100, copies=2, ranks_here=1, ranks=2, memory_bytes=800)
    assert too_much(101, copies=2, ranks_here=1, ranks=2, memory_bytes=800)
    assert not too_much(100, copies=2, ranks_here=2, ranks=2, memory_bytes=800), "one computer shares the copies"
    told = too_much(10**9, copies=2, ranks_here=2, ranks=8, memory_bytes=10**10)
    assert told == (
        "the state of a rank takes 1.00 GB, and 2 of them would take 8.00 GB of this computer's 10.00 GB, of which "
        "half may be used"
    )
