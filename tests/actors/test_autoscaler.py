"""SCALE-1 to 5 hold whatever happens, and each of them falls when its guard is taken away."""

from __future__ import annotations

from itertools import count
from math import ceil, inf

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.actors.fleet_controller import CHECK_S, WAIT_S, Autoscaler, Demand, Working
from outrider.actors.interfaces import NodeId, ScaleByLoad

QUICK = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    report_multiple_bugs=False,
)
WITHOUT_GUARD = settings(QUICK, max_examples=20_000, database=None, derandomize=True, phases=[Phase.generate])
SLOTS = 2


class ScalingMachine(RuleBasedStateMachine):
    """Plays the work, the nodes and the clock."""

    make = Autoscaler

    @initialize(least=st.integers(0, 2), room=st.integers(1, 5), idle_s=st.sampled_from([1.0, 5.0, 30.0]))
    def begin(self, least, room, idle_s):
        self.now = 100.0
        self.ids = count(1)
        self.least, self.most, self.idle_s = least, least + room, idle_s
        self.floor = self.wanted = least
        self.missing = 0  # machines that could not be had so far
        self.load: dict[NodeId, int] = {}  # of the nodes that work
        self.idle_since: dict[NodeId, float] = {}
        self.active_at: dict[NodeId, float] = {}
        self.queue = 0
        self.ranks = 0  # nodes that a broadcast has
        self.seats: set[NodeId] = set()
        self.waited_since = inf  # since when work has waited that further nodes could do
        self.enough_since = inf  # since when the nodes that work have been enough
        self.scaler = self.make(ScaleByLoad(self.most, idle_s), slots=SLOTS, least=least)
        self.look()

    # --- what happens -----------------------------------------------------------------------------------------------

    @rule(tasks=st.sampled_from([1, 1, 2, 5, 30]))
    def tasks_come(self, tasks):
        self.queue += tasks
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: any(self.load.values()))
    def a_task_ends(self, data):
        node = data.draw(st.sampled_from(sorted(node for node, load in self.load.items() if load)))
        if self.load[node] - (node in self.seats) > 0:
            self.load[node] -= 1
            self.active_at[node] = self.now
        self.look()

    @rule()
    def all_tasks_are_cancelled(self):
        self.queue = 0
        for node in self.load:
            if self.load[node] > (node in self.seats):
                self.load[node] = int(node in self.seats)
                self.active_at[node] = self.now
        self.look()

    @rule()
    @precondition(lambda self: self.ranks == 0 and all(load < SLOTS for load in self.load.values()) and self.load)
    def a_broadcast_begins(self):
        self.ranks = len(self.load)
        self.seats = set(self.load)
        for node in self.load:
            self.load[node] += 1
        self.look()

    @rule()
    @precondition(lambda self: self.ranks)
    def the_broadcast_ends(self):
        self.ranks = 0
        for node in self.seats:
            self.load[node] -= 1
        self.seats.clear()
        self.look()

    @rule()
    @precondition(lambda self: self.booting > 0)
    def a_node_is_ready(self):
        node = NodeId(next(self.ids))
        self.load[node] = 0
        self.active_at[node] = self.now
        self.look()

    @rule()
    @precondition(lambda self: self.booting > 0)
    def a_machine_cannot_be_had(self):
        self.missing += 1
        self.look()

    @rule()
    @precondition(lambda self: self.missing)
    def it_is_asked_for_again(self):
        self.missing -= 1
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.load)
    def a_node_is_lost(self, data):
        node = data.draw(st.sampled_from(sorted(self.load)))
        self.queue += self.load.pop(node) - (node in self.seats)
        self.seats.discard(node)
        self.missing += 1
        self.look()

    @rule(floor=st.integers(0, 8))
    def the_user_resizes(self, floor):
        self.floor = min(max(floor, self.least), self.most)
        self.scaler.resize(max(floor, self.least))
        self.look()

    @rule(seconds=st.sampled_from([0.5, 1.0, 3.0, 40.0]))
    def time_passes(self, seconds):
        until = self.now + seconds
        while (at := self.scaler.wake_at(self.now)) is not None and at <= until:
            assert at <= self.now + CHECK_S, "it looks too late"
            self.now = at
            self.look()
        self.now = until
        self.look()

    # --- what follows -----------------------------------------------------------------------------------------------

    @property
    def booting(self):
        return self.wanted - len(self.load) - self.missing

    def dispatch(self):
        for node in self.load:
            while self.queue and self.load[node] < SLOTS:
                self.load[node] += 1
                self.queue -= 1

    def look(self):
        self.dispatch()
        busy = sum(self.load.values())
        for node, load in self.load.items():
            if load:
                self.idle_since.pop(node, None)
            else:
                self.idle_since[node] = max(self.idle_since.get(node, self.now), self.active_at[node])
        asked = min(max(self.floor, self.ranks), self.most)
        needed = min(max(asked, ceil((busy + self.queue) / SLOTS)), self.most)
        waits = self.queue > 0
        self.waited_since = min(self.waited_since, self.now) if waits and needed > self.wanted else inf
        self.enough_since = min(self.enough_since, self.now) if needed <= len(self.load) else inf
        before, missing = self.wanted, self.missing
        change = self.scaler.decide(
            Demand(busy, float(self.queue), self.queue, self.ranks, waits),
            [Working(node, load > 0, self.active_at[node]) for node, load in self.load.items()],
            missing,
            self.now,
        )
        if change is not None:
            assert change.wanted != before, "nothing changes"
            assert 0 <= change.wanted <= self.most, "SCALE-1: more than the most"
            self.wanted = change.wanted
            if change.wanted > before:
                self.grown(change, before, asked, needed, waits)
            else:
                self.shrunk(change, before, needed, waits)
        self.nothing_is_due(asked, needed, waits)

    def grown(self, change, before, asked, needed, waits):
        assert not change.leaving, "SCALE-3: one leaves while the pool grows"
        assert change.wanted <= needed, "SCALE-2: more than the work can use"
        waited = self.now - self.waited_since >= WAIT_S
        assert change.wanted <= asked or (waits and (waited or before == 0)), "SCALE-2: before work had waited"
        self.waited_since = inf

    def shrunk(self, change, before, needed, waits):
        assert not waits, "SCALE-3: nodes leave while work waits"
        assert change.wanted >= needed, "SCALE-4: fewer than are needed"
        for node in change.leaving:
            assert self.load[node] == 0, "SCALE-3: it holds something"
            assert self.now - self.idle_since[node] >= self.idle_s, "SCALE-3: it has not been idle for long"
            stay = [each for each in self.idle_due() if each > node and each not in change.leaving]
            assert not stay, "SCALE-3: the newest first"
        for node in change.leaving:
            del self.load[node], self.idle_since[node]
        booting = before - len(change.leaving) - len(self.load) - self.missing
        gone = before - len(change.leaving) - change.wanted
        self.missing -= min(gone, self.missing)
        if gone > before - len(change.leaving) - len(self.load) - max(booting, 0):
            assert self.now - self.enough_since >= self.idle_s, "SCALE-5: given up on its way, too soon"
        self.missing = max(0, min(self.missing, self.wanted - len(self.load)))

    def idle_due(self):
        return [node for node in self.load if self.load[node] == 0 and self.now - self.idle_since[node] >= self.idle_s]

    def nothing_is_due(self, asked, needed, waits):
        assert self.wanted >= self.floor, "SCALE-1: less than the floor"
        assert self.wanted >= asked, "SCALE-2: what is asked for comes at once"
        assert self.wanted or not waits, "SCALE-2: work waits, and there is no node"
        assert self.now - self.waited_since < WAIT_S, "SCALE-2: work has waited"
        if waits or self.wanted <= needed:
            return
        assert not self.idle_due(), "SCALE-3: an idle node stays"
        assert not self.missing or len(self.load) >= self.wanted, "SCALE-5: it is replaced for nothing"
        if self.now - self.enough_since >= self.idle_s:
            assert self.wanted <= max(needed, len(self.load)), "SCALE-5: nothing needs what is on its way"


TestScaling = ScalingMachine.TestCase
TestScaling.settings = QUICK


class KnowsNoMost(Autoscaler):
    def __init__(self, scale, **options):
        super().__init__(ScaleByLoad(99, scale.idle_s), **options)


class ForgetsTheFloor(Autoscaler):
    def resize(self, floor):
        pass


class GrowsAtATask(Autoscaler):
    def _grow(self, demand, asked, needed, now):
        self._waiting_since = -inf if demand.waits else None
        return super()._grow(demand, asked, needed, now)


class AsksForAll(Autoscaler):
    def _grow(self, demand, asked, needed, now):
        return super()._grow(demand, asked, self._most, now)


class WaitsWithNoNode(Autoscaler):
    def _grow(self, demand, asked, needed, now):
        return super()._grow(demand._replace(waits=False), asked, needed, now)


class TakesTheBusy(Autoscaler):
    def _see(self, working, now):
        there = list(working)
        super()._see(there, now)
        self._idle_since.update({each.node: -inf for each in there})
        return len(there)


class TakesTheOldest(Autoscaler):
    def _change(self, wanted, leaving, reason):
        return super()._change(wanted, tuple(sorted(self._idle_since))[: len(leaving)], reason)


class HasNoPatience(Autoscaler):
    def _see(self, working, now):
        there = super()._see(working, now)
        self._idle_since = dict.fromkeys(self._idle_since, -inf)
        return there


class ShrinksWhileWorkWaits(Autoscaler):
    def decide(self, demand, working, missing, now):
        change = super().decide(demand, working, missing, now)
        if change is not None or self._waiting_since is not None:
            return change
        return super().decide(demand._replace(waits=False), working, missing, now)


class NeedsNobody(Autoscaler):
    def _shrink(self, needed, there, missing, now):
        return super()._shrink(0, there, missing, now)


class ReplacesAll(Autoscaler):
    def _shrink(self, needed, there, missing, now):
        return super()._shrink(needed, there, 0, now)


class SendsMachinesBack(Autoscaler):
    def _shrink(self, needed, there, missing, now):
        self._unneeded_since = -inf
        return super()._shrink(needed, there, missing, now)


class KeepsWhatIsOnItsWay(Autoscaler):
    def _shrink(self, needed, there, missing, now):
        self._unneeded_since = None
        return super()._shrink(needed, there, missing, now)


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (KnowsNoMost, "SCALE-1"),
        (ForgetsTheFloor, "SCALE-1"),
        (GrowsAtATask, "SCALE-2"),
        (AsksForAll, "SCALE-2"),
        (WaitsWithNoNode, "SCALE-2"),
        (TakesTheBusy, "SCALE-3"),
        pytest.param(TakesTheOldest, "SCALE-3", marks=pytest.mark.nightly),
        (HasNoPatience, "SCALE-3"),
        (ShrinksWhileWorkWaits, "SCALE-3"),
        (NeedsNobody, "SCALE-4"),
        (ReplacesAll, "SCALE-5"),
        (SendsMachinesBack, "SCALE-5"),
        pytest.param(KeepsWhatIsOnItsWay, "SCALE-5", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_the_invariant_falls_without_its_guard(broken, invariant):
    class Broken(ScalingMachine):
        make = broken

    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Broken, settings=WITHOUT_GUARD)


def test_a_change_says_why() -> None:
    scaler = Autoscaler(ScaleByLoad(8, 600.0), slots=1, least=0)
    first = scaler.decide(Demand(0, 1.0, 1, 0, True), (), 0, 0.0)
    assert first == (1, (), "1 task waits")
    assert scaler.decide(Demand(0, 20.0, 20, 0, True), (), 0, 1.0) is None
    assert scaler.decide(Demand(0, 20.0, 20, 0, True), (), 0, 1.0 + WAIT_S) == (8, (), "20 tasks wait")
    assert scaler.decide(Demand(0, 0.0, 0, 0, False), (), 5, 9.0) == (3, (), "no work for it")
    idle = [Working(NodeId(each), False, 9.0) for each in range(3)]
    assert scaler.decide(Demand(0, 0.0, 0, 0, False), idle, 0, 10.0) is None
    assert scaler.decide(Demand(0, 0.0, 0, 0, False), idle, 0, 610.0) == (0, (2, 1, 0), "no work for 600 s")
    scaler.resize(2)
    assert scaler.decide(Demand(0, 0.0, 0, 0, False), (), 0, 611.0) == (2, (), "by resize")
    asked = scaler.decide(Demand(0, 0.0, 0, 4, True), (), 0, 612.0)
    assert asked == (4, (), "4 are asked for by a broadcast, or by on=")
