"""SEATS-1: the ranks that a reader counts from events are those of the roster."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.actors import events as ev
from outrider.actors import seats as module
from outrider.actors.interfaces import NodeId
from outrider.actors.membership import Roster
from outrider.actors.seats import UNSEATING, Seats
from outrider.engine.client.observer import Observer
from outrider.engine.record.runs.lines import event_in, event_line, parsed_events
from outrider.engine.record.runs.nodes import nodes_now
from outrider.engine.record.sinks import PoolSinks

STEPS = st.lists(st.tuples(st.sampled_from(["keep", "join", "leave", "opened"]), st.integers(0, 5)), max_size=30)
ENDINGS = {
    ev.NodeStandby: lambda node: ev.NodeStandby(node),
    ev.NodeNoticed: lambda node: ev.NodeNoticed(node, "spot", 9.0),
    ev.NodeDraining: lambda node: ev.NodeDraining(node),
    ev.NodeFailed: lambda node: ev.NodeFailed(node, "bad"),
    ev.NodeLost: lambda node: ev.NodeLost(node, "gone"),
    ev.NodeDismissed: lambda node: ev.NodeDismissed(node),
}


def play(steps, by):
    """Change a roster, and read its events as an observer, a record's reader and a plain reader do."""
    roster, observer, seats, lines = Roster(), Observer(PoolSinks("silent"), slots=1), Seats(), []
    expected = {}
    observer.open()

    def tell(event):
        observer(event)
        seats.apply(event)
        lines.append(event_line(event, 1.0, "", str))

    for what, number in steps:
        node = NodeId(number)
        match what:
            case "keep":
                roster.keep(node)
            case "opened":
                roster.opened()
            case "join" if node not in roster:
                roster.join(node)
                tell(ev.NodeReady(node, roster.rank(node) or 0, len(roster), 6, seat=roster.seat(node)))
                tell(ev.NodeSuspect(node, "quiet", silent=True))
                tell(ev.NodeResumed(node))
            case "leave" if node in roster:
                roster.leave(node)
                tell(by(node))
            case _:
                pass
        expected = {int(node): rank for rank, node in enumerate(roster.ranked)}
        assert seats.ranks() == expected, "SEATS-1"
        shown = {node.node: node.rank for node in observer.snapshot().nodes if node.rank is not None}
        assert shown == expected, "SEATS-1"
    recorded = nodes_now(parsed_events(b"".join(lines)))
    assert recorded.ranks == {rank: node for node, rank in expected.items()}, "SEATS-1"
    ranked = {each.number: each.rank for each in recorded.nodes.values() if each.rank is not None}
    assert ranked == expected, "SEATS-1"


@pytest.mark.parametrize("kind", UNSEATING)
@given(steps=STEPS)
@settings(max_examples=30, deadline=None)
def test_ranks_from_events_are_those_of_the_roster(kind, steps):
    play(steps, ENDINGS[kind])


def test_node_before_others_moves_their_ranks():
    """SEATS-1, as on a provider that keeps seats in its own order."""
    play([("keep", 0), ("keep", 1), ("join", 1), ("join", 0), ("leave", 0)], ENDINGS[ev.NodeLost])


def test_counting_ranks_falls_without_its_guard(monkeypatch):
    monkeypatch.setattr(module.Seats, "apply", lambda self, event: self.take(event.node, getattr(event, "rank", 0)))
    with pytest.raises(AssertionError, match="SEATS-1"):
        test_node_before_others_moves_their_ranks()


def test_a_record_without_seats_has_the_ranks_of_its_events():
    (event,) = parsed_events(b'{"event":"node_ready","at":1.0,"node":4,"rank":1,"ready":2,"wanted":2}\n')
    assert nodes_now([event]).ranks == {0: 4}
    seats, ready = Seats(), event_in(event)
    assert isinstance(ready, ev.NodeReady)
    seats.apply(ready)
    assert seats.ranks() == {4: 0}
