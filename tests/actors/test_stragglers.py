"""STRAGGLER-1 to 5: who is a straggler, and when."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from outrider.actors import stragglers as module
from outrider.actors.interfaces import NodeId
from outrider.actors.stragglers import GRACE_S, TOGETHER_S, Straggler, Stragglers

QUICK = settings(max_examples=150, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
WITHOUT_GUARD = settings(QUICK, max_examples=20_000, database=None, derandomize=True, phases=[Phase.generate])


class LaggardsMachine(RuleBasedStateMachine):
    """Plays the machines and the clock; keeps who was launched with whom, and when each answered."""

    make = Stragglers

    @initialize(wanted=st.integers(1, 8))
    def begin(self, wanted):
        self.stragglers = self.make(wanted)
        self.wanted = wanted
        self.now = 0.0
        self.ids = 0
        self.launches: list[tuple[float, dict[NodeId, float | None]]] = []  # when, and when each answered
        self.longest: float | None = None
        self.queue: dict[NodeId, float] = {}  # those that had to wait for their turn; since when it is theirs
        self.waiting: set[NodeId] = set()  # in their provider's queue
        self.started: tuple[float, dict[NodeId, float | None]] | None = None  # the launch of those that left it last
        self.found: set[NodeId] = set()
        self.ever_found: set[NodeId] = set()

    @rule(count=st.integers(0, 6))
    def machines_are_launched(self, count):
        nodes = [NodeId(self.ids + each) for each in range(count)]
        self.ids += count
        self.launches.append((self.now, dict.fromkeys(nodes)))
        self.stragglers.launched(nodes, self.now)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.silent())
    def one_answers(self, data):
        self.answer(data.draw(st.sampled_from(self.silent())))
        self.look()

    @rule()
    @precondition(lambda self: self.silent())
    def most_answer(self):
        for node in self.silent()[: -(len(self.silent()) // 4) or None]:
            self.answer(node)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.launches and any(nodes for _, nodes in self.launches))
    def one_is_ready(self, data):
        node = data.draw(st.sampled_from(sorted(node for _, nodes in self.launches for node in nodes)))
        self.answered(node)
        self.stragglers.ready(node, self.now)
        self.found.discard(node)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.launches and any(nodes for _, nodes in self.launches))
    def one_ends(self, data):
        node = data.draw(st.sampled_from(sorted(node for _, nodes in self.launches for node in nodes)))
        for _, nodes in self.launches:
            if nodes.get(node, 0.0) is None:
                del nodes[node]
        self.stragglers.ended(node)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.found - {*self.silent()})
    def a_machine_that_was_late_has_ended(self, data):
        node = data.draw(st.sampled_from(sorted(self.found - {*self.silent()})))
        self.stragglers.ended(node)  # it may have answered, and not have been ready
        self.stragglers.gone(node)
        self.found.discard(node)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: self.silent())
    def one_waits_for_its_turn(self, data):
        node = data.draw(st.sampled_from(self.silent()))
        self.queue[node] = inf
        self.stragglers.tried(node, inf)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: inf in self.queue.values())
    def its_turn_comes(self, data):
        node = data.draw(st.sampled_from(sorted(node for node, at in self.queue.items() if at == inf)))
        self.queue[node] = self.now
        self.stragglers.tried(node, self.now)
        self.look()

    @rule(data=st.data())
    @precondition(lambda self: set(self.silent()) - self.ever_found)
    def one_is_queued(self, data):
        node = data.draw(st.sampled_from(sorted(set(self.silent()) - self.ever_found)))
        for _, nodes in self.launches:
            nodes.pop(node, None)
        self.queue.pop(node, None)
        self.waiting.add(node)
        self.stragglers.queued(node)
        self.look()

    @rule(data=st.data(), runs=st.booleans())
    @precondition(lambda self: self.waiting)
    def one_leaves_the_queue(self, data, runs):
        node = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(node)
        if runs:
            if self.started is None or self.now - self.started[0] > TOGETHER_S:
                self.started = self.now, {}
                self.launches.append(self.started)
            self.started[1][node] = None
            self.queue[node] = self.now
            self.stragglers.started(node, self.now)
        else:
            self.stragglers.ended(node)
        self.look()

    @rule(wanted=st.integers(1, 8))
    def the_user_resizes(self, wanted):
        self.wanted = self.stragglers.wanted = wanted
        self.look()

    @rule(seconds=st.sampled_from([0.5, 3.0, GRACE_S, 40.0]))
    def time_passes(self, seconds):
        until = self.now + seconds
        while (at := self.next_due()) <= until:
            self.now = max(self.now, at)
            assert self.look(), "STRAGGLER-1: a straggler that is not found"
        self.now = until
        self.look()

    def silent(self):
        return [node for _, nodes in self.launches for node, answered in nodes.items() if answered is None]

    def answer(self, node):
        self.answered(node)
        self.stragglers.answered(node, self.now)

    def answered(self, node):
        for at, nodes in self.launches:
            if nodes.get(node, 0.0) is None:
                nodes[node] = self.now - at
                if self.measure(nodes) is not None:
                    self.longest = max(self.longest or 0.0, self.now - at)

    def measure(self, nodes):
        """How long three quarters took."""
        took = sorted(answered for answered in nodes.values() if answered is not None)
        quorum = max(1, len(nodes) * 3 // 4)
        return took[quorum - 1] if len(took) >= quorum else None

    def due(self, node):
        ((at, nodes),) = ((at, nodes) for at, nodes in self.launches if node in nodes)
        took = self.measure(nodes)
        took = self.longest if took is None else took
        if took is None:
            return inf
        return max(at + max(1.5 * took, took + GRACE_S), self.queue[node] + GRACE_S if node in self.queue else 0.0)

    def next_due(self):
        return min((self.due(node) for node in self.silent() if self.room and node not in self.ever_found), default=inf)

    @property
    def room(self):
        return max(0, -(-self.wanted // 2) - len(self.found))

    def look(self):
        before = self.room
        overdue = self.stragglers.overdue(self.now)
        for node, waited_s, _ in overdue:
            assert node not in self.waiting, "STRAGGLER-5: it waits in a queue"
            assert node in self.silent(), "STRAGGLER-2: it has answered, or ended"
            assert node not in self.ever_found, "STRAGGLER-1: a second time"
            assert waited_s > 0, "STRAGGLER-1: it was launched just now"
            rule = "STRAGGLER-4" if self.queue.get(node, 0.0) + GRACE_S > self.now else "STRAGGLER-1"
            assert self.now >= self.due(node) - 1e-9, f"{rule}: a straggler too early"
        assert len(overdue) <= before, "STRAGGLER-3: too many"
        self.found |= {each.node for each in overdue}
        self.ever_found |= self.found
        return overdue

    @invariant()
    def nobody_is_waited_for_too_long(self):
        if not hasattr(self, "stragglers") or not self.room:
            return
        for node in self.silent():
            if node not in self.ever_found:
                assert self.now < self.due(node), "STRAGGLER-1: a straggler that is not found"
                if self.due(node) < inf:
                    before = self.stragglers.not_before()
                    assert before is not None, "STRAGGLER-1: nobody will look"
                    assert before <= self.due(node) + 1e-9, "STRAGGLER-1: who looks then looks too late"


TestLaggards = LaggardsMachine.TestCase
TestLaggards.settings = QUICK


class CallsThemAtOnce(Stragglers):
    def _due(self, wave, now):
        return ((wave.launched_at, each) for _, each in super()._due(wave, now))


class CallsThemAgain(Stragglers):
    def overdue(self, now):
        found = super().overdue(now)
        self._reported.clear()
        return found


class WaitsForAll(Stragglers):
    def overdue(self, now):
        return []


class ForgetsWhoAnswered(Stragglers):
    def __init__(self, wanted):
        super().__init__(wanted)
        self.forgotten = set()

    def answered(self, node, now):
        super().answered(node, now)
        self.forgotten.add(node)

    def _due(self, wave, now):
        for at, each in super()._due(wave, now):
            yield at, each
            yield from ((at, each._replace(node=node)) for node in self.forgotten - self._reported)


class CallsAnyNumber(Stragglers):
    @property
    def _room(self):
        return 1000


class CountsNoneThatIsBeingEnded(Stragglers):
    def ended(self, node):
        super().ended(node)
        self.gone(node)


class DoesNotHeedTheQueue(Stragglers):
    def tried(self, node, at):
        pass


class TakesTheQueueForSilence(Stragglers):
    def overdue(self, now):
        late = super().overdue(now)
        return late + [Straggler(node, 1.0, 1.0) for node in self._queued if self._longest_s is not None]


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (CallsThemAtOnce, "STRAGGLER-1"),
        (CallsThemAgain, "STRAGGLER-1"),
        (WaitsForAll, "STRAGGLER-1"),
        (ForgetsWhoAnswered, "STRAGGLER-2"),
        (CallsAnyNumber, "STRAGGLER-3"),
        (CountsNoneThatIsBeingEnded, "STRAGGLER-3"),
        (DoesNotHeedTheQueue, "STRAGGLER-4"),
        (TakesTheQueueForSilence, "STRAGGLER-5"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken, invariant):
    class Machine(LaggardsMachine):
        make = broken

    seed(2)(Machine)  # from which all are found in a second; from most others it takes eight
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=WITHOUT_GUARD)


# --- stories ----------------------------------------------------------------------------------------------------------


def wave(count, answers, wanted=None):
    """So many machines, of which the first have answered after so many seconds."""
    stragglers = Stragglers(wanted or count)
    stragglers.launched([NodeId(node) for node in range(count)], 0.0)
    for node, at in enumerate(answers):
        stragglers.answered(NodeId(node), at)
    return stragglers


def next_at(stragglers):
    """When the next one is due, as it says after a look that found none."""
    assert stragglers.overdue(0.0) == []
    return stragglers.not_before()


@pytest.mark.parametrize(
    ("count", "answers", "at"),
    [
        (4, [1.0, 2.0, 3.0], 13.0),  # ten seconds more
        (4, [1.0, 2.0, 30.0], 45.0),  # or half as long again
        (4, [1.0, 2.0], None),
        (2, [5.0], 15.0),
        (8, [1.0] * 6, 11.0),
        (8, [1.0] * 5, None),
        (1, [], None),
    ],
)
def test_how_long_three_quarters_took_says_when_the_others_are_late(count, answers, at):
    stragglers = wave(count, answers)
    assert next_at(stragglers) == at
    if at is not None:
        assert stragglers.overdue(at - 0.1) == []
        assert [each.node for each in stragglers.overdue(at)] == list(range(len(answers), count))


def test_it_says_how_long_it_waited_and_how_long_the_others_took():
    assert wave(4, [1.0, 2.0, 3.0]).overdue(14.0) == [Straggler(NodeId(3), 14.0, 3.0)]


def test_a_replacement_is_measured_by_the_longest_time_that_was_seen():
    stragglers = wave(4, [1.0, 2.0, 3.0])
    assert [each.node for each in stragglers.overdue(13.0)] == [3]
    stragglers.launched([NodeId(4)], 14.0)
    assert next_at(stragglers) == 14.0 + 13.0
    stragglers.answered(NodeId(3), 40.0)
    assert next_at(stragglers) == 14.0 + 60.0, "the straggler has shown how long it may take"


def test_machines_that_have_gone_are_no_part_of_their_wave():
    stragglers = wave(8, [1.0] * 4)
    assert next_at(stragglers) is None
    for node in (5, 6):
        stragglers.ended(NodeId(node))
    assert next_at(stragglers) == 11.0, "four of six"


def test_more_than_half_are_never_late_at_a_time():
    stragglers = wave(8, [1.0] * 6, wanted=1)
    assert [each.node for each in stragglers.overdue(11.0)] == [6]
    assert next_at(stragglers) is None
    stragglers.ended(NodeId(6))
    assert next_at(stragglers) is None, "its machine has not ended"
    stragglers.gone(NodeId(6))
    assert next_at(stragglers) == 11.0
    assert [each.node for each in stragglers.overdue(20.0)] == [7]


def test_who_waits_for_its_turn_has_its_time_from_then():
    stragglers = wave(4, [1.0] * 3)
    stragglers.tried(NodeId(3), inf)
    assert next_at(stragglers) is None
    stragglers.tried(NodeId(3), 60.0)
    assert next_at(stragglers) == 60.0 + GRACE_S


def test_as_long_as_one_try_to_connect_may_hang():
    from outrider.engine.transport import ssh

    assert module.GRACE_S >= ssh.CONNECT_S


class LooksAtFew(LaggardsMachine):
    """Asks as a pool does: for `Stragglers.overdue` only when the time is over before which it need not."""

    def look(self):
        before = self.stragglers.not_before()
        return super().look() if before is not None and before <= self.now else []


TestLooksAtFew = LooksAtFew.TestCase
TestLooksAtFew.settings = QUICK


class SaysTooLate(Stragglers):
    def _may_be_due(self, wave, tried_from=0.0):
        pass


def test_a_look_that_comes_too_late_is_found():
    class Machine(LooksAtFew):
        make = SaysTooLate

    with pytest.raises(AssertionError, match=r"STRAGGLER-1: (nobody will look|who looks then)"):
        run_state_machine_as_test(Machine, settings=WITHOUT_GUARD)
