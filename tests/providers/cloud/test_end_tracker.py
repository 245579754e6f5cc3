"""Which machines are left when a pool ends, and when to give up waiting for them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from outrider.providers.base import MachineId
from outrider.providers.cloud.calls import CallRefused
from outrider.providers.cloud.inventory import (
    CONFIRM_S,
    GRACE_S,
    LEASE_MORE_S,
    EndTracker,
    InstanceView,
    State,
    Unsure,
    patience_s,
)
from outrider.providers.errors import NotAuthorized, ProviderError

AWAY = CallRefused("AWS cannot be reached", retry_after_s=2.0, code="EndpointConnectionError")
names = st.sampled_from([MachineId("i-1"), MachineId("i-2"), MachineId("i-3")])
states = st.sampled_from(["pending", "running", "stopped", "shutting-down", "terminated"])
errors = st.sampled_from([AWAY, NotAuthorized("no"), ProviderError("x", retry_after_s=0.0)])
steps = st.lists(st.tuples(st.floats(0.0, 60.0), st.one_of(st.dictionaries(names, states), errors)), max_size=20)


endings = given(st.sets(names), st.floats(0, 200), st.one_of(st.none(), st.floats(1, 2000)), steps)


@endings
def test_who_gives_up_names_every_machine_and_no_sooner_than_its_lease(
    known: set[MachineId], unsure_s: float, lease_s: float | None, steps: list[tuple[float, Any]]
) -> None:
    patience = 0.0 if lease_s is None else patience_s(lease_s)
    tracker = EndTracker(
        dict.fromkeys(known, 0.0),
        unsure={"token": Unsure(unsure_s)},
        patience_s=patience,
        lease_s=lease_s,
        all_known=True,
    )
    now, ended, ever = 0.0, set[MachineId](), set(known)
    for later_s, what in steps:
        now += later_s
        if isinstance(what, ProviderError):
            again_s = tracker.again_s(what, now)
            passes = what.retry_after_s is not None
            assert (again_s is not None) == (passes and now < patience)  # TEARDOWN-2
            if again_s is None:
                break
            continue
        tracker.full_answer([InstanceView(machine, state) for machine, state in what.items()], now)
        ended |= {machine for machine, state in what.items() if state == "terminated"}
        ever |= what.keys()
    error = tracker.not_gone_error("why", now, 1e9 + now)
    shown_alive = {each for each in ever - ended if each in tracker.left}
    assert set(error.machines) == tracker.left == shown_alive  # TEARDOWN-1
    assert tracker.left >= {each for each in ever - ended if now < 60.0}
    assert error.unsure == (now < unsure_s)
    assert error.by == (None if lease_s is None else pytest.approx(1e9 + lease_s + LEASE_MORE_S))
    assert patience <= CONFIRM_S


def _forgets_what_was_shown(patch: pytest.MonkeyPatch) -> None:
    full_answer = EndTracker.full_answer
    patch.setattr(
        EndTracker,
        "full_answer",
        lambda tracker, shown, at: full_answer(tracker, [each for each in shown if each.id in tracker._at], at),
    )


def _gives_up_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EndTracker, "again_s", lambda tracker, error, now: None)


@pytest.mark.parametrize(
    ("invariant", "breaks"), [("TEARDOWN-1", _forgets_what_was_shown), ("TEARDOWN-2", _gives_up_at_once)]
)
def test_the_invariant_falls_without_its_guard(invariant: str, breaks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    breaks(monkeypatch)
    whole: Any = test_who_gives_up_names_every_machine_and_no_sooner_than_its_lease
    once = settings(max_examples=10_000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):  # the hundred of the test itself did not find it each time
        once(endings(whole.hypothesis.inner_test))()


answers = st.lists(st.tuples(st.floats(0.1, 40), st.dictionaries(names, states), st.sets(names)), max_size=15)


@given(st.sets(names), answers)
def test_a_machine_is_left_until_its_end_is_shown_or_nothing_shows_it(
    known: set[MachineId], shown: list[tuple[float, dict[MachineId, State], set[MachineId]]]
) -> None:
    tracker = EndTracker(dict.fromkeys(known, 0.0))
    now, last, terminated, ending = 0.0, dict.fromkeys(known, 0.0), set[MachineId](), set[MachineId]()
    for later_s, answer, told in shown:
        now += later_s
        tracker.full_answer([InstanceView(machine, state) for machine, state in answer.items()], now)
        terminated |= {machine for machine, state in answer.items() if state == "terminated"}
        ending |= {machine for machine, state in answer.items() if state in {"shutting-down", "terminated"}}
        last |= dict.fromkeys(answer, now)
        assert tracker.left == {each for each, at in last.items() if now - at < GRACE_S} - terminated
        assert set(tracker.to_end) == tracker.left - ending
        assert set(tracker.hidden) == tracker.left - answer.keys()
        tracker.partial_answer([InstanceView(machine, "shutting-down") for machine in told])
        ending |= told
