"""What chaos will do is a pure function of its seed and options: dealt like cards, within bounds."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider import SpecError
from outrider.testing.fault_injection.faults import KINDS, LOSSES, Fault, Freeze, Kill, Partition, Preempt
from outrider.testing.fault_injection.options import Chaos
from outrider.testing.fault_injection.plan import LEAST, MOST, Planned, check_ranks, stepped, timed

faults = st.lists(st.sampled_from([kind() for kind in KINDS.values()]), min_size=1, max_size=6)
chaoses = st.builds(
    Chaos,
    st.floats(0.1, 100),
    seed=st.integers(),
    faults=faults,
    rank=st.none() | st.integers(0, 7),
    most=st.integers(1, 40),
)


def dealt_first(chaos: Chaos, count: int) -> list[Planned]:
    return [*islice(timed(chaos), count)]


@settings(max_examples=60)
@given(chaoses)
def test_the_same_seed_and_options_give_the_same_faults(chaos: Chaos) -> None:
    again = Chaos(chaos.mtbf, seed=chaos.seed, faults=chaos.faults, rank=chaos.rank, most=chaos.most)
    assert dealt_first(chaos, 40) == dealt_first(again, 40)


@settings(max_examples=60)
@given(chaoses)
def test_faults_come_in_bounds_of_the_mean(chaos: Chaos) -> None:
    planned = dealt_first(chaos, 40)
    assert chaos.mtbf is not None
    assert [each.number for each in planned] == [*range(1, 41)]
    for gap in [planned[0].at_s, *(after.at_s - before.at_s for before, after in pairwise(planned))]:
        assert LEAST * chaos.mtbf * 0.999 <= gap <= MOST * chaos.mtbf * 1.001


@settings(max_examples=60)
@given(chaoses)
def test_each_fault_is_dealt_once_before_any_comes_again(chaos: Chaos) -> None:
    dealt = [each.fault for each in dealt_first(chaos, 40)]
    size = len(chaos.faults)
    for first in range(0, len(dealt) - size + 1, size):
        assert Counter(dealt[first : first + size]) == Counter(chaos.faults)


@settings(max_examples=60)
@given(chaoses, st.sets(st.integers(0, 9), min_size=1))
def test_the_victim_is_ready_and_the_one_that_was_asked_for(chaos: Chaos, ready: set[int]) -> None:
    for planned in dealt_first(chaos, 40):
        target_rank = planned.target_rank([*ready])
        if chaos.rank is None:
            assert target_rank in ready
        else:
            assert target_rank == (chaos.rank if chaos.rank in ready else None)
        assert planned.target_rank([]) is None


def test_times_differ_with_the_seed_and_have_the_mean() -> None:
    ends = [dealt_first(Chaos(10, seed=seed), 200)[-1].at_s for seed in range(20)]
    assert len(set(ends)) == 20
    assert 9 < sum(ends) / 20 / 200 < 11


def test_the_plan_is_the_same_in_another_process() -> None:
    code = "from outrider.testing import Chaos; from outrider.testing.fault_injection.plan import timed; "
    code += "print(next(timed(Chaos(15, seed=7))).at_s)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) == next(timed(Chaos(15, seed=7))).at_s


def test_faults_at_a_step_are_no_part_of_the_timed_ones() -> None:
    chaos = Chaos(5, faults=[Kill(rank=0, at_step=20), Kill(), Preempt(at_step=3)], most=9)
    assert {each.fault for each in dealt_first(chaos, 9)} == {Kill()}
    assert [(each.fault.at_step, each.rank, each.number) for each in stepped(chaos)] == [(20, 0, 0), (3, None, -1)]
    assert list(timed(Chaos(None, faults=[Kill(at_step=1)]))) == []


def test_faults_may_be_named() -> None:
    assert Chaos(faults=["kill", Freeze(5)]).faults == (Kill(), Freeze(5))
    assert Chaos().faults == LOSSES


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mtbf": 0}, "mtbf must be more than 0"),
        ({"mtbf": None}, "when does Kill"),
        ({"seed": 1.5}, "seed takes a whole number"),
        ({"faults": []}, "not empty"),
        ({"faults": "kill"}, "takes a list"),
        ({"faults": ["bomb"]}, "they are kill, preempt"),
        ({"faults": [Kill]}, r"write Kill\(\)"),
        ({"rank": -1}, "at least 0"),
        ({"most": 0}, "at least 1"),
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError, match=says):
        Chaos(**wrong)


@pytest.mark.parametrize(
    "make", [lambda: Freeze(0), lambda: Kill(rank=-1), lambda: Kill(at_step=0), lambda: Partition(float("inf"))]
)
def test_invalid_fault_is_refused(make: Any) -> None:
    with pytest.raises(SpecError):
        make()


def test_a_rank_that_the_pool_never_has_is_refused() -> None:
    for never in (Chaos(faults=[Freeze(), Kill(rank=4)]), Chaos(rank=4)):
        with pytest.raises(SpecError, match="is for rank 4, and this pool's last rank is 3"):
            check_ranks(never, 4)
        check_ranks(never, 5)
    check_ranks(Chaos(faults=[Kill(rank=4, at_step=1)]), 4)  # a task's: there may be several to a node


def test_a_fault_is_shown_as_it_is_written() -> None:
    shown: list[Fault] = [Kill(), Freeze(5), Preempt(rank=0, at_step=20)]
    assert [str(fault) for fault in shown] == ["Kill()", "Freeze(seconds=5)", "Preempt(rank=0, at_step=20)"]
