"""The two counts of a node's free ports, `PortBook` and `OfferedPorts`, over a wire that may lose any message."""

from __future__ import annotations

from collections import deque
from itertools import count

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.membership import PORTS_MOST, OfferedPorts
from outrider.engine.node.freeports import PortBook
from outrider.engine.wire import messages as wire

MOST, FEW = 6, 2
QUICK = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=[*HealthCheck], database=None
)


def book(most: int = MOST, few: int = FEW) -> tuple[PortBook, set[int]]:
    numbers, opened = count(4000), set[int]()

    def open_port() -> int:
        opened.add(port := next(numbers))
        return port

    made = PortBook(open_port, opened.remove, most=most, few=few)
    made.fill()
    return made, opened


class Counts(RuleBasedStateMachine):
    """A client and a node. Each attempt has one port; its `Run` is sent, held back, or never sent."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.opened = book()
        self.client = OfferedPorts()
        self.client.offer(0, tuple(self.book.offered))
        self.to_node: deque[tuple[str, int, object]] = deque()
        self.to_client: deque[wire.Ports] = deque()
        self.attempts = count(1)
        self.held: dict[int, int] = {}  # attempts that are not sent yet, with their ports
        self.used: set[int] = set()
        self.lost_any = False

    @rule(held=st.booleans())
    @precondition(lambda self: len(self.client) > 0)
    def generation_begins(self, held: bool) -> None:
        (port,) = self.client.first(1)
        assert self.client.take(1) == (port,)
        assert port not in self.used, "OFFER-1"
        self.used.add(port)
        attempt = next(self.attempts)
        if held:
            self.held[attempt] = port
        else:
            self.to_node.append(("run", attempt, port))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def arguments_arrive(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.held)))
        self.to_node.append(("run", attempt, self.held.pop(attempt)))

    @rule(data=st.data())
    @precondition(lambda self: self.held)
    def held_attempt_is_cancelled(self, data: st.DataObject) -> None:
        del self.held[data.draw(st.sampled_from(sorted(self.held)))]
        self.compare()

    @rule(data=st.data())
    @precondition(lambda self: self.book.kept)
    def attempt_is_delivered_or_over(self, data: st.DataObject) -> None:
        attempt = data.draw(st.sampled_from(sorted(self.book.kept)))
        port = self.book.kept[attempt]
        assert port in self.opened, "PORTS-1"
        self.book.close_for(attempt)
        assert port not in self.opened, "PORTS-2"
        self.book.close_for(attempt)

    @rule()
    def compare(self) -> None:
        self.to_node.append(("taken", self.client.taken, tuple(self.held.values())))

    @rule()
    @precondition(lambda self: self.to_node)
    def node_reads(self) -> None:
        kind, number, rest = self.to_node.popleft()
        if kind == "run":
            assert isinstance(rest, int)
            self.book.named(number, rest)
            assert self.lost_any or self.book.kept.get(number) == rest
        else:
            assert isinstance(rest, tuple)
            self.book.compare(number, rest)
        if kind == "taken" or self.book.is_short:
            self.book.fill()
            self.to_client.append(wire.Ports(self.book.taken, tuple(self.book.offered)))
        assert len(self.book.offered) > FEW, "PORTS-3"

    @rule(twice=st.booleans())
    @precondition(lambda self: self.to_client)
    def client_reads(self, twice: bool) -> None:
        for _ in range(1 + twice):
            self.client.offer(*self.to_client[0])
        first, ports = self.to_client.popleft()
        known = {*self.client.first(len(self.client)), *self.used}
        assert first > self.client.taken or known.issuperset(ports), "OFFER-2"

    @rule(way=st.booleans())
    @precondition(lambda self: self.to_node or self.to_client)
    def message_is_lost(self, way: bool) -> None:
        queue = (self.to_node if way else self.to_client) or self.to_node or self.to_client
        queue.pop()
        self.lost_any = True

    @invariant()
    def no_port_is_in_two_places(self) -> None:
        """PORTS-1."""
        places = [*self.book.offered, *self.book.awaiting, *self.book.kept.values()]
        assert sorted(places) == sorted(self.opened)

    def teardown(self) -> None:
        """After one comparison that arrives, both sides count the same, whatever was lost before."""
        while self.to_node:
            self.node_reads()
        self.compare()
        self.node_reads()
        while self.to_client:
            self.client_reads(False)
        assert self.client.taken == self.book.taken
        assert list(self.client.first(len(self.client))) == list(self.book.offered)
        assert {*self.book.awaiting} <= {*self.held.values()}, "PORTS-2"


def test_one_comparison_repairs_whatever_was_lost() -> None:
    run_state_machine_as_test(Counts, settings=QUICK)


def _keeps_what_nobody_awaits(patch: pytest.MonkeyPatch) -> None:
    compare = PortBook.compare
    patch.setattr(PortBook, "compare", lambda self, taken, _: compare(self, taken, range(65536)))


def _forgets_to_close(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PortBook, "close_for", lambda self, attempt: self.kept.pop(attempt, None))


def _offers_what_was_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PortBook, "named", lambda self, attempt, port: self.kept.setdefault(attempt, port))


def _opens_no_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PortBook, "is_short", False)


def _takes_the_last_offer_alone(patch: pytest.MonkeyPatch) -> None:
    def offer(self: OfferedPorts, first: int, ports: tuple[int, ...]) -> None:
        self.taken = first
        self._free = deque(ports)

    patch.setattr(OfferedPorts, "offer", offer)


def _adds_no_offer(patch: pytest.MonkeyPatch) -> None:
    offer = OfferedPorts.offer
    patch.setattr(OfferedPorts, "offer", lambda self, first, ports: None if self.taken else offer(self, first, ports))


@pytest.mark.parametrize(
    ("number", "without"),
    [
        ("PORTS-1", _offers_what_was_taken),
        ("PORTS-2", _keeps_what_nobody_awaits),
        ("PORTS-2", _forgets_to_close),
        ("PORTS-3", _opens_no_others),
        ("OFFER-1", _takes_the_last_offer_alone),
        ("OFFER-2", _adds_no_offer),
    ],
)
def test_an_invariant_falls_without_its_guard(number: str, without: object, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)  # type: ignore[operator]
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Counts, settings=settings(QUICK, max_examples=1000, phases=[Phase.generate]))


def test_count_beyond_all_ports_is_taken_over() -> None:
    """Whatever has made the counts differ, the greater one holds for both."""
    node, opened = book()
    node.compare(100, ())
    assert not opened
    node.fill()
    client = OfferedPorts()
    client.offer(0, (1, 2))
    client.offer(node.taken, tuple(node.offered))
    assert (client.taken, len(client)) == (100, MOST)


def test_client_remembers_a_bounded_number_of_ports_and_no_port_twice() -> None:
    client = OfferedPorts()
    client.offer(0, (4000, 4000))
    assert not len(client)
    client.offer(0, range(4000, 9000))
    client.offer(30, range(1, 3000))
    assert client.first(99) == tuple(range(4000, 4000 + PORTS_MOST))
