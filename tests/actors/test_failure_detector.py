"""DETECTOR-1 to 5: one silent node is lost, a silent network is waited for, and others tell the two apart."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.failure_detector import RETURN_S, FailureDetector
from outrider.actors.interfaces import NodeId

RECONNECT_S, LEASE_S = 10.0, 120.0
QUICK = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))


class SilenceMachine(RuleBasedStateMachine):
    """Plays the connections and the clock; what is overdue is given up at once, as the pool does."""

    make = FailureDetector

    def __init__(self):
        super().__init__()
        self.detector = self.make(reconnect_s=RECONNECT_S, lease_s=LEASE_S)
        self.now = 0.0
        self.heard: dict[NodeId, float] = {}  # connected; since when
        self.away: dict[NodeId, tuple[float, bool]] = {}
        self.ids = 0
        self.cut_off = False
        self.stranded: set[NodeId] = set()  # silent with all others, and not heard since
        self.back_at = 0.0  # when one was heard again after that, or the last of them
        self.fell_at = 0.0
        self.stood = False
        self.answered_at = 0.0  # by somebody else, as soon as all were silent

    @rule()
    @precondition(lambda self: len(self.heard) + len(self.away) < 4)
    def a_node_connects(self):
        self.ids += 1
        self.connect(NodeId(self.ids))

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
        del self.away[node]
        self.connect(node)

    @rule(data=st.data())
    @precondition(lambda self: self.away)
    def the_provider_says_it_is_gone(self, data):
        node = data.draw(st.sampled_from(sorted(self.away)))
        del self.away[node]
        self.stranded.discard(node)
        self.detector.ended(node)
        self.look()

    @rule()
    def somebody_else_answers(self):
        self.detector.answered(self.now)
        if self.now - self.fell_at <= RECONNECT_S and (self.cut_off or self.stranded):
            self.cut_off, self.answered_at = False, self.now
            self.stranded.clear()
        elif self.cut_off:
            self.cut_off, self.stranded, self.back_at = False, set(self.away), self.now
        self.look()

    @rule(seconds=st.sampled_from([1.0, 4.0, RECONNECT_S, LEASE_S / 2]))
    def time_passes(self, seconds):
        until = self.now + seconds
        while (at := self.detector.wake_at()) is not None and at <= until:
            self.now = max(self.now, at)
            assert self.look(), "it woke somebody for nothing"
        self.now = until
        self.look()

    @rule(seconds=st.sampled_from([0.5, 4.0, RECONNECT_S, LEASE_S]))
    def the_program_stands_still(self, seconds):
        self.now += seconds
        self.detector.stood_still(seconds)
        self.away = {node: (since + seconds, silent) for node, (since, silent) in self.away.items()}
        self.back_at += seconds
        self.fell_at += seconds
        self.answered_at += seconds
        self.stood = True
        try:
            self.look()
        finally:
            self.stood = False

    def connect(self, node):
        if self.cut_off or node in self.stranded:
            self.back_at = self.now
        if self.cut_off:
            self.cut_off, self.stranded = False, set(self.away)
        self.stranded.discard(node)
        self.heard[node] = self.now
        self.detector.connected(node, self.now)
        self.look()

    def drop(self, node, *, silent):
        del self.heard[node]
        self.away[node] = (self.now, silent)
        fell = self.detector.dropped(node, self.now, silent=silent)
        rule = "DETECTOR-3" if self.stranded else "DETECTOR-2"
        assert fell is (self.all_silent() and not self.cut_off), f"{rule}: whether the network is silent"
        if fell:
            self.cut_off, self.fell_at = True, self.now
        self.look()

    def all_silent(self):
        if self.heard or not self.away or not all(silent for _, silent in self.away.values()):
            return False
        since = [at for node, (at, _) in self.away.items() if node not in self.stranded]
        return not since or max(since) - min(since) <= RECONNECT_S

    def due(self, node):
        since, _ = self.away[node]
        if self.cut_off:
            return since + LEASE_S
        if node in self.stranded:
            return max(since, self.back_at) + RETURN_S
        return max(since, self.answered_at) + RECONNECT_S

    def look(self):
        overdue = self.detector.overdue(self.now)
        for node in overdue:
            answered = self.answered_at > self.away[node][0]
            others = "DETECTOR-3" if node in self.stranded else "DETECTOR-4" if answered else "DETECTOR-1"
            which = "DETECTOR-5" if self.stood else "DETECTOR-2" if self.cut_off else others
            assert self.now >= self.due(node), f"{which}: lost before it could come back"
        for node in overdue:
            del self.away[node]
            self.stranded.discard(node)
            self.detector.ended(node)
        return overdue

    @invariant()
    def nobody_is_waited_for_too_long(self):
        for node in self.away:
            assert self.now < self.due(node), "DETECTOR-1: waited for too long"


TestSilence = SilenceMachine.TestCase
TestSilence.settings = QUICK


class WaitsForAll(FailureDetector):
    def _due(self):
        return {node: since + LEASE_S for node, (since, _) in self._away.items()}


class NeverBlamesTheNetwork(FailureDetector):
    def _due(self):
        return {node: since + RECONNECT_S for node, (since, _) in self._away.items()}


class GivesUpAtAWord(FailureDetector):
    def answered(self, now):
        super().answered(now)
        self._answered_at = 0.0


class TrustsALateAnswer(FailureDetector):
    def answered(self, now):
        self._fell_at = now
        super().answered(now)


class ForgetsThatItCameBack(FailureDetector):
    def connected(self, node, now):
        super().connected(node, now)
        self._stranded.clear()


class HearsOnlyThoseItKnows(FailureDetector):
    def connected(self, node, now):
        cut_off = self._cut_off
        known = node in self._connected
        super().connected(node, now)
        if cut_off and not known:
            self._stranded.clear()


class CountsItsOwnStalls(FailureDetector):
    def stood_still(self, for_s):
        pass


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (CountsItsOwnStalls, "DETECTOR-5"),
        (WaitsForAll, "DETECTOR-1"),
        (NeverBlamesTheNetwork, "DETECTOR-2"),
        (ForgetsThatItCameBack, "DETECTOR-3|DETECTOR-4"),
        (HearsOnlyThoseItKnows, "DETECTOR-3"),
        (TrustsALateAnswer, "DETECTOR-3"),
        (GivesUpAtAWord, "DETECTOR-4"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken, invariant):
    class Machine(SilenceMachine):
        make = broken

    without = settings(QUICK, max_examples=20_000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=without)


def test_the_network_is_told_silent_once():
    detector = FailureDetector(reconnect_s=RECONNECT_S, lease_s=LEASE_S)
    for node in (1, 2, 3):
        detector.connected(NodeId(node), 0.0)
    assert [detector.dropped(NodeId(node), 1.0, silent=True) for node in (1, 2, 3)] == [False, False, True]
    detector.connected(NodeId(1), 60.0)
    assert detector.wake_at() == 60.0 + RETURN_S


def test_a_new_node_that_is_heard_shows_that_the_network_is_back():
    """Found by the simulator: it counted as one that had never been silent, and the others were given up at once."""
    detector = FailureDetector(reconnect_s=3.0, lease_s=LEASE_S)
    for node in (1, 2, 3):
        detector.connected(NodeId(node), 0.0)
    for node in (1, 2, 3):
        detector.dropped(NodeId(node), 10.0, silent=True)
    detector.connected(NodeId(4), 70.0)
    assert detector.overdue(70.0) == []
    detector.connected(NodeId(1), 80.0)
    assert detector.overdue(80.0 + RETURN_S - 0.1) == []
    assert detector.overdue(80.0 + RETURN_S) == [2, 3]


def test_a_network_that_goes_again_takes_those_with_it_that_had_not_come_back():
    detector = FailureDetector(reconnect_s=3.0, lease_s=LEASE_S)
    for node in (1, 2):
        detector.connected(NodeId(node), 0.0)
    for node in (1, 2):
        detector.dropped(NodeId(node), 10.0, silent=True)
    detector.connected(NodeId(1), 70.0)
    assert detector.dropped(NodeId(1), 76.0, silent=True)
    assert detector.wake_at() == 10.0 + LEASE_S


def test_one_node_is_lost_as_one_of_many_is_where_somebody_else_answers_at_once():
    detector = FailureDetector(reconnect_s=3.0, lease_s=LEASE_S)
    detector.connected(NodeId(1), 0.0)
    assert detector.dropped(NodeId(1), 10.0, silent=True)
    detector.answered(10.1)
    assert not detector.cut_off
    assert detector.wake_at() == 13.1


def test_an_answer_at_once_counts_also_when_a_new_node_was_heard_before_it():
    """Found by the simulator: two machines that had died were waited for as if the network had been away."""
    detector = FailureDetector(reconnect_s=3.0, lease_s=LEASE_S)
    detector.connected(NodeId(1), 0.0)
    assert detector.dropped(NodeId(1), 10.0, silent=True)
    detector.connected(NodeId(2), 10.05)
    detector.answered(10.1)
    assert detector.wake_at() == 13.1


def test_an_answer_after_a_while_means_that_the_network_is_back():
    detector = FailureDetector(reconnect_s=3.0, lease_s=LEASE_S)
    detector.connected(NodeId(1), 0.0)
    detector.dropped(NodeId(1), 10.0, silent=True)
    detector.answered(40.0)
    assert detector.overdue(40.0 + RETURN_S - 0.1) == []
    assert detector.overdue(40.0 + RETURN_S) == [1]
