"""ROSTER-1 and 2: ranks are dense, and a replacement takes the seat that became empty, or the one kept for it.

ROSTER-3: once the pool is ready, who comes late moves nobody's rank.

RANKS-1: a rank is overdue when it has been missed for so long on end, and not before.
RANKS-2: the time for which a machine waits in its provider's queue does not count.
"""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.actors import membership as module
from outrider.actors.interfaces import Link, NodeFacts, NodeId
from outrider.actors.membership import Membership, Roster, Waits
from outrider.providers.base import Machine, MachineId


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


KEPT_EVENTS = st.lists(st.tuples(st.sampled_from(["keep", "join", "leave", "opened"]), st.integers(0, 7)), max_size=40)


def check_kept(roster_kind, events):
    """Seats that are kept: against a list of seats, each with its node, None, or ("kept", node)."""
    roster, seats, ready = roster_kind(), [], False
    for what, number in events:
        node = NodeId(number)
        before = roster.ranked
        match what:
            case "keep":
                roster.keep(node)
                if not (ready or None in seats or node in seats or ("kept", node) in seats):
                    seats.append(("kept", node))
            case "join":
                roster.join(node)
                if node not in seats:
                    if not ready and ("kept", node) in seats:
                        seats[seats.index(("kept", node))] = node
                    elif None in seats:
                        seats[seats.index(None)] = node
                    else:
                        seats.append(node)
            case "leave":
                roster.leave(node)
                seats = [None if each == node else each for each in seats]
            case _:
                roster.opened()
                ready = True
        assert [node for node in roster.ranked if node in before] == [node for node in before if node in roster]
        ranked = tuple(node for node in seats if node is not None and not isinstance(node, tuple))
        assert len(roster.ranked) == len(ranked), "ROSTER-1"
        assert roster.ranked == ranked, "ROSTER-3" if ready else "ROSTER-2"


@given(KEPT_EVENTS)
@settings(max_examples=200, deadline=None)
def test_ranks_follow_the_order_in_which_seats_were_kept(events):
    """ROSTER-1, ROSTER-2, ROSTER-3."""
    check_kept(Roster, events)


def test_nodes_that_are_ready_in_any_order_have_the_ranks_of_their_order():
    roster = Roster()
    for node in range(4):
        roster.keep(NodeId(node))
    for node in (2, 0, 3):
        roster.join(NodeId(node))
    assert roster.ranked == (0, 2, 3)
    roster.opened()
    roster.join(NodeId(1))  # late
    roster.leave(NodeId(0))
    roster.join(NodeId(4))  # its replacement
    assert roster.ranked == (4, 2, 3, 1)


class TakesAnySeat(Roster):
    def keep(self, node):
        pass


class KeepsForEver(Roster):
    def opened(self):
        pass


KEPT_BREAKS = [
    (TakesAnySeat, "ROSTER-2", [("keep", 0), ("keep", 1), ("join", 1), ("join", 0)]),
    (KeepsForEver, "ROSTER-3", [("keep", 0), ("keep", 1), ("join", 1), ("opened", 0), ("join", 0)]),
]


@pytest.mark.parametrize(("broken", "invariant", "events"), KEPT_BREAKS)
def test_keeping_seats_falls_without_its_guard(broken, invariant, events):
    """See `KEPT_BREAKS`."""
    check_kept(Roster, events)
    with pytest.raises(AssertionError, match=invariant):
        check_kept(broken, events)


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


def test_a_rank_is_overdue_when_it_has_been_missed_on_end():
    waits = Waits(600.0)
    assert waits.wake_at() is None
    waits.missed([3], 100.0)
    waits.missed([0, 3], 400.0)
    assert (waits.overdue(699.0), waits.wake_at()) == ([], 700.0)
    assert (waits.overdue(700.0), waits.wake_at()) == ([3], 1000.0)


def test_one_that_was_there_meanwhile_is_waited_for_anew():
    waits = Waits(600.0)
    waits.missed([1], 0.0)
    waits.missed([], 500.0)
    assert waits.wake_at() is None
    waits.missed([1], 550.0)
    assert waits.overdue(600.0) == []
    assert waits.overdue(1150.0) == [1]


def test_who_misses_it_after_that_waits_as_long_again():
    waits = Waits(600.0)
    waits.missed([0], 0.0)
    assert waits.overdue(600.0) == [0]
    waits.missed([0], 600.0)
    assert waits.wake_at() == 1200.0


class CountsAnew(Waits):
    def missed(self, ranks, now, **options):
        super().missed([], now)
        super().missed(ranks, now, **options)


class ForgetsNobody(Waits):
    def missed(self, ranks, now, **options):
        super().missed({*ranks, *self._due_at}, now, **options)


@pytest.mark.parametrize("broken", [CountsAnew, ForgetsNobody])
def test_the_invariant_of_waits_falls_without_its_guard(broken, monkeypatch):
    """RANKS-1"""
    monkeypatch.setitem(globals(), "Waits", broken)
    with pytest.raises(AssertionError):
        test_a_rank_is_overdue_when_it_has_been_missed_on_end()
        test_one_that_was_there_meanwhile_is_waited_for_anew()


def test_a_wait_begins_anew_when_no_machine_is_queued_any_more():
    waits = Waits(60.0)
    waits.missed([1], 0.0)
    for now in (50.0, 500.0):
        waits.missed([1], now, queued=True)
        assert waits.overdue(now) == []
    waits.missed([1, 2], 550.0)
    assert waits.overdue(559.0) == []
    assert waits.overdue(560.0) == [1]
    assert waits.overdue(610.0) == [2]


class CountsTheQueue(Waits):
    def missed(self, ranks, now, *, queued=False):
        super().missed(ranks, now)


def test_the_invariant_of_queued_waits_falls_without_its_guard(monkeypatch):
    """RANKS-2"""
    monkeypatch.setitem(globals(), "Waits", CountsTheQueue)
    with pytest.raises(AssertionError):
        test_a_wait_begins_anew_when_no_machine_is_queued_any_more()


class Told:
    """What a node is told of the others."""

    def __init__(self):
        self.last = None
        self.times = 0

    def view(self, members):
        self.last, self.times = [node for node, _ in members], self.times + 1

    def place(self, rank, facts, *, nodes, accelerators):
        self.last, self.times = (rank, facts.hostname, nodes, accelerators), self.times + 1


def test_in_a_large_pool_who_the_others_are_is_told_for_a_generation_alone(monkeypatch):
    monkeypatch.setattr(module, "NAMED_MOST", 2)
    nodes = Membership()
    members = [nodes.add(Machine(MachineId(f"m{each}"), None, "key", "/run")) for each in range(4)]
    ends = [Told() for _ in members]
    for member, end in zip(members, ends, strict=True):
        member.facts = NodeFacts(f"host{member.id}", "10.0.0.1", (), accelerators=(("L4", 24.0),))
        member.link = nodes.links[member.id] = cast("Link", end)

    def told():
        return [end.last for end in ends]

    for member in members[:3]:
        nodes.joined(member)
    assert told() == [None, None, (2, "host2", 3, 3), None]
    nodes.send_views()
    assert told() == [(0, "host0", 3, 3), (1, "host1", 3, 3), (2, "host2", 3, 3), None]
    nodes.send_views()
    nodes.send_views(named=True)
    assert told() == [[0, 1, 2]] * 4
    nodes.send_views(named=True)
    assert [end.times for end in ends] == [2, 2, 3, 1], "nothing has changed"
    nodes.joined(members[3])
    nodes.left(members[0])
    nodes.left(members[0])
    nodes.send_views()
    assert told()[1:] == [(0, "host1", 3, 3), (1, "host2", 3, 3), (2, "host3", 3, 3)]
    nodes.left(members[1])
    nodes.send_views()
    assert told() == [[2, 3]] * 4, "it is small again"
