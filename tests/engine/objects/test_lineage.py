"""The calls that have made what nodes keep: which are remembered, and which run again, whatever happens."""

from __future__ import annotations

from typing import Any

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

from outrider.engine.objects.lineage import Lineage, Need, Origin, State

AT = st.integers(0, 9)  # which of the calls, counted from the one that has ended last


class Model(RuleBasedStateMachine):
    kind = Lineage

    @initialize(most=st.integers(0, 6), most_bytes=st.integers(0, 40))
    def begin(self, most: int, most_bytes: int) -> None:
        self.most, self.most_bytes = most, most_bytes
        self.lineage = self.kind(most, most_bytes)
        self.all: list[Origin] = []  # in the order in which their calls ended
        self.remembered: dict[Origin, None] = {}
        self.references: dict[Origin, int] = {}
        self.running: dict[Origin, None] = {}
        self.times: dict[Origin, int] = {}  # for which each may run still

    def take_forgotten(self) -> list[Origin]:
        gone, self.lineage.forgotten = self.lineage.forgotten, []
        for each in gone:
            assert each in self.remembered, "LINEAGE-6"
            assert each not in self.running, "LINEAGE-5"
            del self.remembered[each]
        return gone

    def needed(self, origin: Origin) -> bool:
        return bool(self.references[origin]) or any(origin in each.sources for each in self.remembered)

    def chosen(self, at: int) -> Origin:
        return self.all[-1 - at % len(self.all)]

    @rule(size=st.integers(0, 20), times=st.integers(1, 3), given=st.lists(AT, max_size=3))
    def end_a_call(self, size: int, times: int, given: list[int]) -> None:
        sources = [*dict.fromkeys(map(self.chosen, given))] if self.all else []
        origin = Origin(None, size, times, sources)
        may_go = [each for each in self.remembered if each not in self.running] + [origin]
        self.all.append(origin)
        self.remembered[origin] = None
        self.references[origin], self.times[origin] = 1, times
        self.lineage.remember(origin)
        gone = self.take_forgotten()
        assert not gone or may_go[0] in gone, "LINEAGE-2"

    @precondition(lambda self: self.all)
    @rule(at=AT)
    def refer(self, at: int) -> None:
        self.references[self.chosen(at)] += 1
        self.lineage.refer(self.chosen(at))

    @precondition(lambda self: self.all)
    @rule(at=AT)
    def let_go(self, at: int) -> None:
        if self.references[self.chosen(at)]:
            self.references[self.chosen(at)] -= 1
            self.lineage.let_go(self.chosen(at))
            assert not any(map(self.needed, self.take_forgotten())), "LINEAGE-1"

    @precondition(lambda self: self.all)
    @rule(at=AT)
    def lose(self, at: int) -> None:
        self.lineage.lost(self.chosen(at))

    @precondition(lambda self: self.all)
    @rule(at=AT)
    def need(self, at: int) -> None:
        origin = self.chosen(at)
        state = origin.state
        match self.lineage.need(origin):
            case Need.RUN:
                assert origin not in self.running, "LINEAGE-3"
                assert origin in self.remembered, "LINEAGE-5"
                assert self.times[origin], "LINEAGE-4"
                self.times[origin] -= 1
                self.running[origin] = None
            case Need.WAIT:
                assert origin in self.running, "LINEAGE-3"
            case Need.NOTHING:
                assert state is State.THERE
            case Need.GIVE_UP:
                assert origin not in self.remembered or not self.times[origin], "LINEAGE-4"

    @precondition(lambda self: self.running)
    @rule(how=st.sampled_from(["made", "failed", "called off"]), at=AT)
    def end_running(self, how: str, at: int) -> None:
        origin = [*self.running][at % len(self.running)]
        del self.running[origin]
        if how == "called off":
            self.times[origin] += 1
            self.lineage.called_off(origin)
        elif how == "made":
            self.lineage.restored(origin)
        else:
            self.lineage.failed(origin)
        self.take_forgotten()

    @invariant()
    def holds(self) -> None:
        for each in self.all:
            assert each.remembered == (each in self.remembered), "LINEAGE-6"
            if each in self.remembered:
                assert self.needed(each) or each in self.running, "LINEAGE-1"
            assert self.references[each] or each.state is not State.THERE, "what nobody refers to is freed"
            assert each.users == sum(each in user.sources for user in self.remembered), "LINEAGE-1"
        assert len(self.lineage) == len(self.remembered), "LINEAGE-6"
        total = sum(each.size_bytes for each in self.remembered)
        may_go = self.remembered.keys() - self.running.keys()
        assert not may_go or (len(self.remembered) <= self.most and total <= self.most_bytes), "LINEAGE-2"


QUICK = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_whatever_happens_the_invariants_hold() -> None:
    run_state_machine_as_test(Model, settings=QUICK)


class ForgetsWhatIsNeeded(Lineage):
    def let_go(self, origin: Origin) -> None:
        origin.references -= 1
        origin.state = State.GONE if origin.state is State.THERE and not origin.references else origin.state
        if not origin.references and origin.remembered and origin.state is not State.RUNNING:
            self._forget(origin)


class NeverFull(Lineage):
    def _make_room(self) -> None:
        pass


class RunsTwice(Lineage):
    def need(self, origin: Origin) -> Need:
        if origin.state is State.RUNNING and origin.left:
            origin.left -= 1
            return Need.RUN
        return super().need(origin)


class CountsNone(Lineage):
    def need(self, origin: Origin) -> Need:
        need = super().need(origin)
        origin.left += need is Need.RUN
        return need


class RunsWhatIsForgotten(Lineage):
    def need(self, origin: Origin) -> Need:
        need = super().need(origin)
        return Need.RUN if need is Need.GIVE_UP and origin.left else need


class ForgetsTwice(Lineage):
    def _forget(self, origin: Origin) -> Any:
        self.forgotten.append(origin)
        return super()._forget(origin)


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (ForgetsWhatIsNeeded, "LINEAGE-1"),
        (NeverFull, "LINEAGE-2"),
        (RunsTwice, "LINEAGE-3"),
        (CountsNone, "LINEAGE-4"),
        (RunsWhatIsForgotten, "LINEAGE-5"),
        (ForgetsTwice, "LINEAGE-6"),
    ],
)
def test_it_falls_without_its_guard(broken: type[Lineage], named: str) -> None:
    class Broken(Model):
        kind = broken

    with pytest.raises(AssertionError, match=named):
        run_state_machine_as_test(
            Broken,
            settings=settings(QUICK, max_examples=2000, database=None, phases=[Phase.generate], derandomize=True),
        )


def test_a_chain_is_forgotten_with_its_end_however_long_it_is() -> None:
    lineage = Lineage()
    chain = [Origin(None, 1, 3)]
    lineage.remember(chain[0])
    for _ in range(5_000):
        chain.append(Origin(None, 1, 3, [chain[-1]]))
        lineage.remember(chain[-1])
        lineage.let_go(chain[-2])
    assert (len(lineage), lineage.size_bytes) == (5_001, 5_001)
    lineage.let_go(chain[-1])
    assert (len(lineage), lineage.size_bytes) == (0, 0)
    assert len(lineage.forgotten) == 5_001
