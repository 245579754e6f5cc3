"""Of each function the first calls are recorded, from their beginning to their end; all are counted."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.engine.record.record_sink import RecordedCalls

EACH = 3
CALLS = st.lists(st.sampled_from(["f", "g"]), max_size=20)


def check(kind: type[RecordedCalls], names: list[str]) -> None:
    calls, recorded = kind(EACH), Counter[str]()
    for job, name in enumerate(names):
        said = calls.began(job, name)
        recorded[name] += said
        assert (job in calls.names) == said, "CALLS-2"
        if job % 2:
            calls.names.pop(job, None)
    for name, number in Counter(names).items():
        told = calls.counts()[name]
        assert told["calls"] == number, "CALLS-3"
        assert recorded[name] == told["recorded"] == min(number, EACH), "CALLS-1"


@given(CALLS)
def test_the_first_calls_are_recorded_and_all_are_counted(names: list[str]) -> None:
    check(RecordedCalls, names)


class Endless(RecordedCalls):
    def began(self, job: int, name: str) -> bool:
        return super().began(job, name) or not self.names.update({job: name})


class Halved(RecordedCalls):
    def began(self, job: int, name: str) -> bool:
        said = super().began(job, name)
        self.names.pop(job - 1 if len(self.names) > 1 else -1, None)
        return said and job != 2


class Uncounted(RecordedCalls):
    def began(self, job: int, name: str) -> bool:
        if self.begun.get(name, 0) >= self._each:
            return False
        return super().began(job, name)


@pytest.mark.parametrize(("broken", "rule"), [(Endless, "CALLS-1"), (Halved, "CALLS-2"), (Uncounted, "CALLS-3")])
def test_it_falls_without_its_guard(broken: type[RecordedCalls], rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check(broken, ["f"] * 8)


def test_failures_are_told_up_to_a_limit_and_counted_beyond() -> None:
    calls = RecordedCalls(EACH)
    for job in range(8):
        calls.began(job, "f")
    assert [calls.failed("f") for _ in range(5)] == [True, True, True, False, False]
    assert calls.counts() == {"f": {"calls": 8, "recorded": 3, "failed": 5}}
