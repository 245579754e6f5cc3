"""The way of an object to many nodes: whatever breaks, each gets it from one that has it, or from the client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.actors.interfaces import NodeId
from outrider.engine.objects import distribution
from outrider.engine.objects.distribution import APART, CHAIN_NODES, TRIES, Distribution, Reach

NODES = [NodeId(number) for number in range(24)]


class Model(RuleBasedStateMachine):
    kind = Distribution
    reach_kind = Reach

    @initialize()
    def begin(self) -> None:
        self.reach = self.reach_kind()
        self.way = self.kind(self.reach)
        self.sources: dict[NodeId, NodeId | None] = {}  # of those that receive
        self.whole: set[NodeId] = set()
        self.broken: dict[NodeId, set[NodeId]] = {}
        self.unreached: set[tuple[NodeId, NodeId]] = set()
        self.proven = False
        self.detours: set[NodeId] = set()
        self.most = 0

    def given(self, node: NodeId, source: NodeId | None) -> None:
        assert source == self.way.source_of(node)
        self.sources[node] = source
        if source is None:
            return
        assert source != node
        assert source in self.whole or source in self.sources
        assert source not in self.broken[node], "CHAIN-4"
        assert (node, source) not in self.unreached, "CHAIN-4"
        assert self.proven or len(self.unreached) < APART, "CHAIN-5"
        at = source
        while at in self.sources:
            assert at != node, "CHAIN-1"
            before = self.sources[at]
            if before is None:
                break
            at = before

    @rule(node=st.sampled_from(NODES))
    def wants(self, node: NodeId) -> None:
        if node in self.whole or node in self.sources:
            return
        self.broken[node] = set()
        self.most = max(self.most, len(self.whole) + len(self.sources) + 1)
        free = [each for each in {*self.whole, *self.sources} if self.may(node, each) and self.has_room(each)]
        source = self.way.wants(node)
        if source is None:
            assert not free, "CHAIN-2"
        else:
            assert self.has_room(source), "CHAIN-3"
        self.given(node, source)

    @precondition(lambda self: self.sources)
    @rule(data=st.data())
    def arrives(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.sources)))
        if self.sources.pop(node) is not None:
            self.detours.discard(node)
        self.whole.add(node)
        self.way.has(node)

    @precondition(lambda self: any(source is not None for source in self.sources.values()))
    @rule(data=st.data(), how=st.sampled_from(["broken", "unreached", "wrong", "came"]))
    def breaks(self, data: st.DataObject, how: str) -> None:
        node = data.draw(st.sampled_from(sorted(each for each, source in self.sources.items() if source is not None)))
        source = self.sources[node]
        assert source is not None
        if how == "unreached":
            self.unreached.add((node, source))
            self.reach.failed(node, source)
        if how == "came":
            self.proven = True
            self.reach.connected()
        self.broken[node].add(source)
        before = self.sources.get(source)
        self.detours.discard(node)
        self.sources[node] = None
        free = [each for each in {*self.whole, *self.sources} if self.may(node, each) and self.has_room(each)]
        following = self.way.broke(node, more=how != "wrong")
        if how == "wrong" or len(self.broken[node]) >= TRIES:
            assert following is None
        elif before is not None and before not in self.gone and self.may(node, before):
            assert following == before, "the broken one is taken around"
            self.detours.add(node)
        else:
            assert following is not None or not free, "CHAIN-2"
        self.given(node, following)

    @precondition(lambda self: self.sources or self.whole)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted({*self.sources, *self.whole})))
        self.sources.pop(node, None)
        self.whole.discard(node)
        self.detours.discard(node)
        self.way.left(node)

    @property
    def gone(self) -> set[NodeId]:
        return {*NODES} - self.whole - self.sources.keys()

    def receivers(self, source: NodeId) -> list[NodeId]:
        return [node for node, its in self.sources.items() if its == source]

    def has_room(self, source: NodeId) -> bool:
        return len(self.receivers(source)) < (2 if self.most > CHAIN_NODES else 1)

    def may(self, node: NodeId, source: NodeId) -> bool:
        if source == node or source in self.gone or source in self.broken[node] or (node, source) in self.unreached:
            return False
        if not self.proven and len(self.unreached) >= APART:
            return False
        at: NodeId | None = source
        while at is not None and at not in self.whole:
            if at == node:
                return False
            at = self.sources.get(at)
        return True

    @invariant()
    def the_way_ends_at_one_that_has_it(self) -> None:
        for node in self.sources if hasattr(self, "sources") else ():
            seen, at = set[NodeId](), self.sources[node]
            while at is not None and at in self.sources:
                assert at not in seen, "CHAIN-1"
                seen.add(at)
                at = self.sources[at]
        if hasattr(self, "way"):
            assert self.way.empty == (not self.sources and not self.whole)


def test_the_invariants_hold() -> None:
    run_state_machine_as_test(Model, settings=settings(max_examples=40, stateful_step_count=50, deadline=None))


class Circles(Distribution):
    def _way(self, node: NodeId) -> Iterator[NodeId]:
        return iter(())


class FromTheClient(Distribution):
    def has(self, node: NodeId) -> None:
        super().has(node)
        self._places.clear()


class Crowds(Distribution):
    def _offer(self, node: NodeId) -> None:
        self._each = 3
        super()._offer(node)


class Again(Distribution):
    def _may(self, node: NodeId, member: distribution._Member, source: NodeId) -> bool:
        member.broken = set()
        return super()._may(node, member, source)


class NeverApart(Reach):
    apart = False  # type: ignore[assignment]  # a property


@pytest.mark.parametrize(
    ("broken", "reach", "invariant"),
    [
        (Circles, Reach, "CHAIN-1"),
        (FromTheClient, Reach, "CHAIN-2"),
        (Crowds, Reach, "CHAIN-3"),
        (Again, Reach, "CHAIN-4"),
        (Distribution, NeverApart, "CHAIN-5"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken: type[Distribution], reach: type[Reach], invariant: str) -> None:
    class Machine(Model):
        kind = broken
        reach_kind = reach

    once = settings(
        max_examples=2000,
        stateful_step_count=50,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
    )
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=once)


def test_those_that_want_it_together_are_a_chain_and_above_sixteen_a_tree() -> None:
    way = Distribution(Reach())
    sources = [way.wants(node) for node in NODES]
    assert sources[:CHAIN_NODES] == [None, *NODES[: CHAIN_NODES - 1]]
    assert sources[CHAIN_NODES:] == [NODES[each] for each in (0, 1, 16, 16, 2, 17, 17, 18)]


def test_one_that_is_cut_off_is_taken_around_without_the_client() -> None:
    way = Distribution(Reach())
    for node in NODES[:8]:
        way.wants(node)
    way.left(NODES[3])
    assert way.broke(NODES[4]) == NODES[2]
    assert [way.source_of(node) for node in NODES[5:8]] == NODES[4:7]


def test_a_later_one_gets_it_from_one_that_has_it() -> None:
    way = Distribution(Reach())
    assert way.wants(NODES[0]) is None
    way.has(NODES[0])
    assert way.wants(NODES[1]) == NODES[0]
    assert way.wants(NODES[2]) == NODES[1]
    way.has(NODES[1])
    assert way.wants(NODES[3]) in {NODES[0], NODES[2]}
