"""SILENCE-1 to 3: one silent node is lost, a silent network is waited for."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.ports import NodeId
from outrider.actors.silence import Silence

RECONNECT_S, LEASE_S = 10.0, 120.0
QUICK = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


class SilenceMachine(RuleBasedStateMachine):
    """Plays the connections and the clock; what is overdue is given up at once, as the pool does."""

    make = Silence

    def __init__(self):
        super().__init__()
        self.silence = self.make(reconnect_s=RECONNECT_S, lease_s=LEASE_S)
        self.now = 0.0
        self.heard: dict[NodeId, float] = {}  # connected; since when
        self.away: dict[NodeId, tuple[float, bool]] = {}
        self.ids = 0
        self.back_at = None  # when one was heard again after all had been silent
        self.all_silent_before = False

    @rule()
    @precondition(lambda self: len(self.heard) + len(self.away) < 4)
    def a_node_connects(self):
        self.ids += 1
        self.heard[NodeId(self.ids)] = self.now
        self.silence.connected(NodeId(self.ids), self.now)
        self.look()

    @rule(data=st.data(), silent=st.sampled_from([True, True, False]))
    @precondition(lambda self: self.heard)
    def a_connection_is_lost(self, data, silent):
        self.drop(data.draw(st.sampled_from(sorted(self.heard))), silent=silent)

    @rule()
    @precondition(lambda self: self.heard)
    def the_network_is_cut(self):
        for node in list(self.heard):
            self.drop(node, silent=True)

    @rule(data=st.data())
    @precondition(lambda self: self.away)
    def a_node_is_heard_again(self, data):
        node = data.draw(st.sampled_from(sorted(self.away)))
        if self.all_silent_before:
            self.back_at, self.all_silent_before = self.now, False
        del self.away[node]
        self.heard[node] = self.now
        self.silence.connected(node, self.now)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.away)
    def the_provider_says_it_is_gone(self, data):
        node = data.draw(st.sampled_from(sorted(self.away)))
        del self.away[node]
        self.silence.ended(node)
        self.look()

    @rule(seconds=st.sampled_from([1.0, 4.0, RECONNECT_S, LEASE_S / 2]))
    def time_passes(self, seconds):
        until = self.now + seconds
        while (at := self.silence.wake_at()) is not None and at <= until:
            self.now = max(self.now, at)
            assert self.look(), "it woke somebody for nothing"
        self.now = until
        self.look()

    def drop(self, node, *, silent):
        del self.heard[node]
        self.away[node] = (self.now, silent)
        self.silence.dropped(node, self.now, silent=silent)
        self.all_silent_before |= self.all_silent()
        self.look()

    def all_silent(self):
        if self.heard or not self.away:
            return False
        since = [at for at, _ in self.away.values()]
        return all(silent for _, silent in self.away.values()) and max(since) - min(since) <= RECONNECT_S

    def look(self):
        overdue = self.silence.overdue(self.now)
        for node in overdue:
            since, _ = self.away[node]
            if self.all_silent():
                assert self.now >= since + LEASE_S, "SILENCE-2: lost although the whole network is silent"
            else:
                start = since if self.back_at is None else max(since, self.back_at)
                assert self.now >= start + RECONNECT_S, "SILENCE-3: lost before it could come back"
        for node in overdue:
            del self.away[node]
            self.silence.ended(node)
        return overdue

    @invariant()
    def nobody_is_waited_for_too_long(self):
        for since, _ in self.away.values():
            start = since if self.back_at is None else max(since, self.back_at)
            assert self.all_silent() or self.now < start + RECONNECT_S, "SILENCE-1: waited for too long"
            assert self.now < max(start + RECONNECT_S, since + LEASE_S), "SILENCE-1: waited for longer than the lease"
        assert self.silence.network_wide == self.all_silent()


TestSilence = SilenceMachine.TestCase
TestSilence.settings = QUICK


class WaitsForAll(Silence):
    def _due(self):
        return {node: since + LEASE_S for node, (since, _) in self._away.items()}


class NeverBlamesTheNetwork(Silence):
    def _due(self):
        return {node: since + RECONNECT_S for node, (since, _) in self._away.items()}


class ForgetsThatItCameBack(Silence):
    def connected(self, node, now):
        super().connected(node, now)
        self._back_at = None


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [(WaitsForAll, "SILENCE-1"), (NeverBlamesTheNetwork, "SILENCE-2"), (ForgetsThatItCameBack, "SILENCE-3")],
)
def test_the_invariant_falls_without_its_guard(broken, invariant):
    class Machine(SilenceMachine):
        make = broken

    without = settings(QUICK, max_examples=500, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=without)


def test_the_network_is_told_silent_once():
    silence = Silence(reconnect_s=RECONNECT_S, lease_s=LEASE_S)
    for node in (1, 2, 3):
        silence.connected(NodeId(node), 0.0)
    assert [silence.dropped(NodeId(node), 1.0, silent=True) for node in (1, 2, 3)] == [False, False, True]
    silence.connected(NodeId(1), 60.0)
    assert silence.wake_at() == 60.0 + RECONNECT_S
