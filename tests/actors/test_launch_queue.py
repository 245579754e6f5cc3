"""Machines that wait in their provider's queue: what is told of them, and when they have waited for too long."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from outrider.actors.interfaces import NodeId
from outrider.actors.stragglers import LaunchQueue

QUICK = settings(max_examples=60, stateful_step_count=30, deadline=None)
WITHOUT_GUARD = settings(QUICK, max_examples=20_000, database=None, derandomize=True, phases=[Phase.generate])
NODES = st.integers(0, 4).map(NodeId)
REASONS = st.sampled_from(["Priority", "Resources"])
TIMES = st.sampled_from([None, 100.0, 200.0])


class QueueMachine(RuleBasedStateMachine):
    """Follows which node waits since when, and for what, and holds the queue to it."""

    make = LaunchQueue

    @initialize(limit_s=st.sampled_from([None, 10.0, 60.0]))
    def begins(self, limit_s):
        self.queue, self.limit_s, self.now = self.make(limit_s), limit_s, 0.0
        self.waiting: dict[NodeId, tuple[float, str, float | None]] = {}
        self.left_at: float | None = None

    @rule(seconds=st.sampled_from([0.0, 1.0, 9.0, 30.0]))
    def time_passes(self, seconds):
        self.now += seconds
        overdue = self.queue.overdue(self.now)
        due = [node for node, (since, _, _) in self.waiting.items() if since + (self.limit_s or inf) <= self.now]
        assert [each.node for each in overdue] == due, "QUEUE-2: too early, too late or again"
        for each in overdue:
            assert (each.since, each.reason, each.starts_at) == self.waiting.pop(each.node)
            self.left_at = self.now

    @rule(node=NODES, reason=REASONS, starts_at=TIMES)
    def a_machine_waits(self, node, reason, starts_at):
        told = self.queue.queued(node, reason, starts_at, self.now)
        known = self.waiting.get(node)
        assert told == (known is None or known[1:] != (reason, starts_at)), "QUEUE-1: told twice, or not at all"
        self.waiting[node] = (self.now if known is None else known[0], reason, starts_at)

    @rule(node=NODES)
    def a_machine_runs_or_ends(self, node):
        known = self.waiting.pop(node, None)
        waited_s = None if known is None else self.now - known[0]
        assert self.queue.left(node, self.now) == waited_s, "QUEUE-3: it has waited since another time"
        self.left_at = self.left_at if known is None else self.now

    @invariant()
    def who_waits_is_known(self):
        if not hasattr(self, "queue"):
            return
        assert len(self.queue) == len(self.waiting), "QUEUE-4"
        assert all(node in self.queue for node in self.waiting), "QUEUE-4"
        ago = 0.0 if self.waiting else None if self.left_at is None else self.now - self.left_at
        assert self.queue.without_s(self.now) == ago
        assert self.queue.holds(self.now) == (ago == 0.0)
        first = min((since for since, _, _ in self.waiting.values()), default=inf) + (self.limit_s or inf)
        assert (self.queue.wake_at() or inf) == first, "QUEUE-3: nobody looks when it is due"


TestQueue = QueueMachine.TestCase
TestQueue.settings = QUICK


class TellsNoChange(LaunchQueue):
    def queued(self, node, reason, starts_at, now):
        new = node not in self
        super().queued(node, reason, starts_at, now)
        return new


class TellsAlways(LaunchQueue):
    def queued(self, node, reason, starts_at, now):
        super().queued(node, reason, starts_at, now)
        return True


class NeverLosesPatience(LaunchQueue):
    def overdue(self, now):
        return []


class BeginsAnew(LaunchQueue):
    def queued(self, node, reason, starts_at, now):
        told = super().queued(node, reason, starts_at, now)
        self._waiting[node].since = now
        return told


class ForgetsNobody(LaunchQueue):
    def left(self, node, now):
        waiting = self._waiting.get(node)
        return None if waiting is None else now - waiting.since


@pytest.mark.parametrize(
    ("broken", "rule"),
    [
        (TellsNoChange, "QUEUE-1"),
        (TellsAlways, "QUEUE-1"),
        (NeverLosesPatience, "QUEUE-2"),
        (BeginsAnew, "QUEUE-3"),
        (ForgetsNobody, "QUEUE-4"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken, rule):
    class Machine(QueueMachine):
        make = broken

    with pytest.raises(AssertionError, match=rule):
        run_state_machine_as_test(Machine, settings=WITHOUT_GUARD)
