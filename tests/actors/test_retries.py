"""The number of attempts of one task stays bounded, in whatever order its attempts stall, fail and lose their nodes."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from outrider.actors.entries import Entry, Functions
from outrider.actors.interfaces import JobId, NodeId, Task, TaskId, Verdict

STEPS = (
    "raises",
    "is lost",
    "is lost with a notice",
    "stalls and is killed",
    "stalls and raises",
    "stalls and is lost",
)
NO_QUARANTINE = 1000
CHOICES = st.tuples(st.integers(0, 3), st.integers(0, 3), st.lists(st.sampled_from(STEPS), max_size=20))
QUICK = settings(max_examples=200, deadline=None)


def entry_of(kind: type[Entry], *, retries: int, max_restarts: int) -> Entry:
    task = Task(TaskId(1), JobId(1), b"function", None, retries=retries, max_restarts=max_restarts)
    return kind(task, lambda _: None, Functions().new(b"function"), stacks=False)


def run_on(entry: Entry, step: str) -> str | None:
    """Run one attempt that ends as ``step`` says; return why another attempt follows, or None if the task ends."""
    entry.number += 1
    if step.startswith("stalls"):
        if not entry.may_restart():
            return None
        entry.stalled = True
    if "lost" in step:
        ending = entry.node_lost(
            NodeId(0), "gone", ran=True, announced="notice" in step, quarantine_after=NO_QUARANTINE
        )
        return None if ending is not None else "loss"
    stalled = entry.stalled
    verdict = Verdict.KILLED if step.endswith("killed") else Verdict.RAISED
    if not entry.failed(verdict):
        return None
    return "stall" if stalled else "failure"


def check_limits(kind: type[Entry], retries: int, max_restarts: int, steps: list[str]) -> None:
    entry, causes = entry_of(kind, retries=retries, max_restarts=max_restarts), Counter[str]()
    for step in steps:
        cause = run_on(entry, step)
        if cause is None:
            break
        expected = "loss" if "lost" in step else "stall" if step.startswith("stalls") else "failure"
        assert cause == expected, f"an attempt that {step} is followed by another because of a {cause}"
        causes[cause] += 1
        assert causes["stall"] <= retries, "too many attempts follow a stall"
        assert causes["loss"] <= retries, "too many attempts follow a loss"
        assert causes["failure"] <= max_restarts, "too many attempts follow a failure"
    else:
        return
    used = {"raises": causes["failure"] == max_restarts, "is": causes["loss"] == retries}
    stalled = causes["stall"] == retries or ("lost" in step and causes["loss"] == retries)
    assert used.get(step.split()[0], stalled), f"the task ends as it {step}, after only {causes}"


@QUICK
@given(CHOICES)
def test_each_attempt_after_the_first_uses_up_one_limit(choices):
    check_limits(Entry, *choices)


class RestartsForEver(Entry):
    def may_restart(self):
        return True


class ForgetsStallsAfterALoss(Entry):
    def node_lost(self, *args, **options):
        self.stalls = 0
        return super().node_lost(*args, **options)


class StaysStalledAfterALoss(Entry):
    def node_lost(self, *args, **options):
        stalled = self.stalled
        ending = super().node_lost(*args, **options)
        self.stalled = stalled
        return ending


class CountsStallsAsLosses(Entry):
    def failed(self, verdict):
        stalls = self.stalls
        follows = super().failed(verdict)
        self.stalls = stalls
        return follows


@pytest.mark.parametrize(
    "kind", [RestartsForEver, ForgetsStallsAfterALoss, StaysStalledAfterALoss, CountsStallsAsLosses]
)
def test_limit_of_attempts_breaks_without_its_guard(kind):
    @settings(QUICK, max_examples=5000, database=None, derandomize=True, phases=[Phase.generate])
    @given(CHOICES)
    def check(choices):
        check_limits(kind, *choices)

    with pytest.raises(AssertionError, match=r"follow|the task ends"):
        check()
