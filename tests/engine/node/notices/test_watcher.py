"""Many sources, one notice: every invariant, and the proof that each can fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from outrider.engine.node.notice_page import PostedNotice
from outrider.engine.node.notices.watcher import LONGEST_S, NAME_CHARS, SAME_S, Pending

SOURCES = st.sampled_from(["file", "aws", "aws-rebalance"])


class PendingMachine(RuleBasedStateMachine):
    """A model with whole seconds: what each source said last, and under which number."""

    checked: str | None = None  # only this invariant, to prove that it can fail

    def __init__(self) -> None:
        super().__init__()
        self.pending = Pending()
        self.now = 1000.0
        self.said: dict[str, float] = {}
        self.numbers: dict[str, int] = {}
        self.used: set[int] = set()
        self.asked_at = self.now

    def _hold(self, name: str, *, true: bool) -> None:
        assert true or self.checked not in (None, name), name

    @rule(seconds=st.integers(1, 50))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(source=SOURCES, seconds=st.none() | st.integers(0, 100))
    def a_source_speaks(self, source: str, seconds: int | None) -> None:
        before = self.said.get(source)
        changed = self.pending.record(source, None if seconds is None else float(seconds), self.now)
        self.asked_at = self.now
        self._hold("PENDING-4", true=changed == (before != (None if seconds is None else self.now + seconds)))
        if seconds is None:
            self.said.pop(source, None)
            self.numbers.pop(source, None)
        else:
            self.said[source] = self.now + seconds
        holds = self.pending.holds
        if holds is not None:
            known = self.numbers.get(holds.source)
            fresh = holds.number not in self.used
            self._hold("PENDING-2", true=fresh if known is None else holds.number == known)
            self.numbers[holds.source] = holds.number
            self.used.add(holds.number)

    @invariant()
    def the_soonest_end_ahead_holds(self) -> None:
        holds = self.pending.holds
        self._hold("PENDING-3", true=(holds is None) == (not self.said))
        if holds is None or not self.said:
            return
        ahead = [at for at in self.said.values() if at > self.asked_at]
        right = min(ahead) if ahead else max(self.said.values())
        self._hold("PENDING-1", true=holds.at == right and self.said.get(holds.source) == right)


MACHINE = settings(
    max_examples=60, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def test_many_sources_are_one_notice() -> None:
    run_state_machine_as_test(PendingMachine, settings=MACHINE)


def _latest(self: Pending, now: float) -> PostedNotice | None:
    return max(self.known.values(), key=lambda notice: notice.at, default=None)


def _ahead_alone(self: Pending, now: float) -> PostedNotice | None:
    return min(
        (notice for notice in self.known.values() if notice.at > now), key=lambda notice: notice.at, default=None
    )


def _renumbered(self: Pending, source: str, seconds: float | None, now: float) -> bool:
    before = self.known.get(source)
    if seconds is None:
        self.known.pop(source, None)
    else:
        self.known[source] = PostedNotice(1, source, seconds, now + seconds)
    self.holds = self._soonest(now)
    return before != self.known.get(source)


def _always_news(heard: Callable[..., bool]) -> Callable[..., bool]:
    def always(self: Pending, source: str, seconds: float | None, now: float) -> bool:
        heard(self, source, seconds, now)
        return True

    return always


MUTATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "the latest end holds": ("PENDING-1", {"_soonest": _latest}),
    "an end that has passed is forgotten": ("PENDING-3", {"_soonest": _ahead_alone}),
    "every notice has the same number": ("PENDING-2", {"record": _renumbered}),
    "everything is changed": ("PENDING-4", {"record": _always_news(Pending.record)}),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_machine_sees_when(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, changes = MUTATIONS[mutation]
    for attribute, value in changes.items():
        monkeypatch.setattr(Pending, attribute, value)
    monkeypatch.setattr(PendingMachine, "checked", name)
    with pytest.raises(AssertionError, match=name):
        run_state_machine_as_test(
            PendingMachine, settings=settings(MACHINE, max_examples=5_000, derandomize=True, phases=[Phase.generate])
        )


def test_an_end_that_differs_by_rounding_is_the_same() -> None:
    known = Pending()
    assert known.record("aws", 60.0, 0.0)
    assert not known.record("aws", 58.0 + SAME_S / 2, 2.0)
    assert known.record("aws", 58.0 + SAME_S, 2.0)
    assert known.holds is not None
    assert (known.holds.number, known.holds.at) == (1, 61.0)


@pytest.mark.parametrize(("said", "meant"), [(-3.0, 0.0), (math.nan, 0.0), (math.inf, LONGEST_S), (1e300, LONGEST_S)])
def test_seconds_that_cannot_be_are_made_some_that_can(said: float, meant: float) -> None:
    known = Pending()
    known.record("x" * 1000, said, 0.0)
    assert known.holds == (1, "x" * NAME_CHARS, meant, meant, None)
