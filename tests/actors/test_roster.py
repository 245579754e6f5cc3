"""ROSTER-1 and 2: ranks are dense, and a replacement takes the seat that became empty."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.actors.ports import NodeId
from outrider.actors.roster import Roster


def check(roster_kind, joins_and_leaves):
    roster, seats = roster_kind(), []
    fresh = iter(range(1, 1000))
    for leaver in joins_and_leaves:
        if leaver is None:
            node = NodeId(next(fresh))
            roster.join(node)
            roster.join(node)
            if None in seats:
                seats[seats.index(None)] = node
            else:
                seats.append(node)
        elif present := [node for node in seats if node is not None]:
            node = present[leaver % len(present)]
            roster.leave(node)
            roster.leave(node)
            seats[seats.index(node)] = None
        ranked = [node for node in seats if node is not None]
        assert sorted(roster.ranked) == sorted(ranked), "ROSTER-1"
        assert [roster.rank(node) for node in roster.ranked] == list(range(len(ranked))), "ROSTER-1"
        assert [roster.at(rank) for rank in range(-1, len(ranked) + 1)] == [None, *roster.ranked, None], "ROSTER-1"
        assert roster.ranked == tuple(ranked), "ROSTER-2"
        assert roster.ranked is roster.ranked
        assert len(roster) == len(ranked)


EVENTS = st.lists(st.none() | st.integers(0, 9), max_size=40)


@given(EVENTS)
@settings(max_examples=100, deadline=None)
def test_ranks_are_dense_and_the_lowest_empty_seat_is_filled_first(joins_and_leaves):
    check(Roster, joins_and_leaves)


class KeepsOldRanks(Roster):
    def leave(self, node):
        ranked = self.ranked
        super().leave(node)
        self._ranked = ranked


class SeatsAtTheEnd(Roster):
    def join(self, node):
        self._empty = []
        super().join(node)


@pytest.mark.parametrize(("broken", "invariant"), [(KeepsOldRanks, "ROSTER-1"), (SeatsAtTheEnd, "ROSTER-2")])
def test_the_invariant_falls_without_its_guard(broken, invariant):
    @given(EVENTS)
    @settings(max_examples=300, deadline=None, database=None, derandomize=True)
    def broken_test(joins_and_leaves):
        check(broken, joins_and_leaves)

    with pytest.raises(AssertionError, match=invariant):
        broken_test()
