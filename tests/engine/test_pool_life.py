"""LIFE-1: the states of a pool follow their table, and the invariant falls when its guard is taken away."""

from __future__ import annotations

from itertools import product

import pytest

from outrider import Local, Pool
from outrider.engine import pool_life
from outrider.engine.pool_life import NEXT, UNUSABLE, State

# what happens to a pool, from its making on; the last two are an opening that fails, without and with a core
LIVES = [
    [State.OPENING, State.OPEN, State.CLOSING, State.ENDED],
    [State.OPENING, State.NEW, State.OPENING],
    [State.OPENING, State.CLOSING, State.ENDED],
]


def pool_in(state: State) -> Pool:
    pool = Pool(provider=Local())
    pool._state = state
    return pool


@pytest.mark.parametrize("life", LIVES)
def test_pool_becomes_what_its_life_needs(life: list[State]) -> None:
    pool = Pool(provider=Local())
    for state in life:
        pool._become(state)
        assert pool.unusable == UNUSABLE[state]


@pytest.mark.parametrize(
    ("before", "after"), [pair for pair in product(State, State) if pair[1] not in NEXT[pair[0]]], ids=str
)
def test_pool_skips_no_state(before: State, after: State) -> None:
    with pytest.raises(AssertionError, match=f"a pool that is {before.name} cannot become {after.name}"):
        pool_in(before)._become(after)


def test_every_state_is_reached_and_the_last_is_final() -> None:
    assert {state for states in NEXT.values() for state in states} == {*State}
    assert [state for state in State if not NEXT[state]] == [State.ENDED]


def test_order_of_states_falls_without_its_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """LIFE-1"""
    monkeypatch.setattr(pool_life, "NEXT", {state: {*State} for state in State})
    with pytest.raises(pytest.fail.Exception):
        test_pool_skips_no_state(State.ENDED, State.OPEN)
