"""A node's states: LIFECYCLE-1 to 3, and the diagram that is made of them."""

from __future__ import annotations

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from outrider.actors import lifecycle
from outrider.actors.lifecycle import ENDS, SUSPECTS, TABLE, Fact, ImpossibleStep, Lifecycle, State

WITHOUT_GUARD = settings(max_examples=5_000, deadline=None, database=None, derandomize=True, phases=[Phase.generate])


class LifecycleMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.node = Lifecycle()
        self.ended = None

    @rule(fact=st.sampled_from(Fact))
    def something_happens(self, fact):
        before = self.node.state
        possible = self.node.can(fact)
        try:
            after = self.node.step(fact)
        except ImpossibleStep as error:
            assert not possible, "LIFECYCLE-3: it can, and then it cannot"
            told = before.value in str(error)
            assert told, "LIFECYCLE-3: no story"
            assert self.node.state is before, "LIFECYCLE-3: an impossible step moved it"
        else:
            assert (before, fact) in TABLE, "LIFECYCLE-3: a step outside the table"
            assert self.ended is None, "LIFECYCLE-1: it goes on after its end"
            if after in ENDS:
                self.ended = after

    @invariant()
    def the_books_agree(self):
        assert self.ended is None or self.node.state is self.ended, "LIFECYCLE-1"
        assert (self.node.state in ENDS) == (self.ended is not None)


TestLifecycle = LifecycleMachine.TestCase
TestLifecycle.settings = settings(max_examples=50, deadline=None)


@pytest.mark.parametrize(
    ("step", "invariant"),
    [(((State.LOST, Fact.RESUMED), State.READY), "LIFECYCLE-1"), (None, "LIFECYCLE-3")],
)
def test_the_invariant_falls_without_its_guard(step, invariant, monkeypatch):
    if step is not None:
        monkeypatch.setitem(TABLE, *step)
    else:
        monkeypatch.setattr(Lifecycle, "can", lambda self, fact: True)
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(LifecycleMachine, settings=WITHOUT_GUARD)


def reaches(state, seen=()):
    """The states that can follow."""
    found = set(seen)
    for (before, _), after in TABLE.items():
        if before is state and after not in found:
            found.add(after)
            found |= reaches(after, found)
    return found


def test_every_state_but_an_end_leads_to_an_end():
    """LIFECYCLE-2"""
    for state in State:
        assert bool(reaches(state) & ENDS) == (state not in ENDS), f"LIFECYCLE-2: {state}"


def test_lifecycle_2_falls_without_its_guard(monkeypatch):
    for before, fact in [step for step in TABLE if step[0] is State.REACHING]:
        monkeypatch.delitem(TABLE, (before, fact))
    with pytest.raises(AssertionError, match="LIFECYCLE-2"):
        test_every_state_but_an_end_leads_to_an_end()


def test_every_state_can_be_reached():
    assert reaches(lifecycle.START) | {lifecycle.START} == set(State)


def test_a_machine_may_be_gone_whatever_state_its_node_is_in():
    for state in set(State) - ENDS:
        assert TABLE[state, Fact.GONE] in ENDS


def test_a_lost_connection_comes_back_to_where_it_was():
    for state in (State.READY, State.STANDBY, State.NOTICED, State.DRAINING):
        suspect = TABLE[state, Fact.DROPPED]
        assert suspect in SUSPECTS
        assert TABLE[suspect, Fact.RESUMED] is state
