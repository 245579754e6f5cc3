"""The stop agreement: a model of nodes and their ranks, every invariant, and that each can fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from outrider.actors import broadcasts as module
from outrider.actors.broadcasts import StopAgreement
from outrider.actors.interfaces import JobId, NodeId, Peer, StopAt, StopChecks, World
from outrider.providers.base import MachineId, PreemptionNotice

SIZE = 3
JOB = JobId(7)
NODES = st.integers(0, SIZE).map(NodeId)  # the last is of no generation at first
SOURCES = st.sampled_from(["file", "spot"])


class Ranks:
    """One node's ranks of one generation, with the link to them: what is sent arrives in order, at any time."""

    def __init__(self) -> None:
        self.inbox: list[tuple[PreemptionNotice, Peer] | StopAt] = []
        self.outbox: list[StopChecks] = []
        self.notice: tuple[PreemptionNotice, Peer] | None = None
        self.stop_at: int | None = None
        self.asked = 0
        self.waits = False  # in its question
        self.stopped: int | None = None


class StopAgreementMachine(RuleBasedStateMachine):
    checked: str | None = None  # only this invariant, to prove that it can fail

    @initialize()
    def begin(self) -> None:
        self.agreement = StopAgreement()
        self.now = 100.0
        self.notices: dict[NodeId, dict[str, float]] = {}
        self.generation = 0
        self.nodes: list[NodeId] = []
        self.ranks: dict[NodeId, Ranks] = {}
        self.over = True
        self.next_node = SIZE
        self.start([NodeId(n) for n in range(SIZE)])

    def _hold(self, name: str, *, true: bool) -> None:
        assert true or self.checked not in (None, name), name

    def start(self, nodes: list[NodeId]) -> None:
        self.generation += 1
        self.nodes, self.over = nodes, False
        self.ranks = {node: Ranks() for node in nodes}
        self.agreement.started(JOB, World(self.generation, tuple(nodes), 1, "a", 1), self.now)
        self._send()

    def _send(self) -> None:
        for node, notice, peer in self.agreement.notices:
            self._hold("STOP-3", true=not self.over and peer[:2] == (JOB, self.generation))
            if node in self.ranks:
                self.ranks[node].inbox.append((notice, peer))
        for node, stop in self.agreement.stops:
            self._hold("STOP-3", true=not self.over and stop[:2] == (JOB, self.generation))
            if node in self.ranks:
                self.ranks[node].inbox.append(stop)
        self.agreement.notices.clear()
        self.agreement.stops.clear()

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(node=NODES, source=SOURCES, seconds=st.none() | st.integers(2, 90))
    def a_notice(self, node: NodeId, source: str, seconds: int | None) -> None:
        if seconds is None:
            self.notices.get(node, {}).pop(source, None)
        else:
            self.notices.setdefault(node, {})[source] = self.now + seconds
        self.agreement.noticed(node, _notice(node, source, seconds), self.now)
        self._send()

    @rule(data=st.data())
    def a_message_arrives(self, data: st.DataObject) -> None:
        waiting = [node for node, ranks in self.ranks.items() if ranks.inbox]
        if not waiting:
            return
        ranks = self.ranks[data.draw(st.sampled_from(waiting))]
        message = ranks.inbox.pop(0)
        if isinstance(message, StopAt):
            self._hold("STOP-2", true=ranks.stop_at is None)
            ranks.stop_at = message.check
        else:
            notice, peer = message
            ranks.notice = None if notice.seconds is None else message
            if ranks.notice is not None:
                ranks.outbox.append(StopChecks(JOB, self.generation, peer.number, ranks.asked))
        self._answer(ranks)

    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        waiting = [node for node, ranks in self.ranks.items() if ranks.outbox]
        if waiting:
            node = data.draw(st.sampled_from(waiting))
            self.agreement.checked(node, self.ranks[node].outbox.pop(0))
            self._send()

    @rule(data=st.data(), steps=st.integers(1, 4))
    def ranks_ask(self, data: st.DataObject, steps: int) -> None:
        """In step: no rank asks again before all have asked as often."""
        for _ in range(steps):
            asking = [r for r in self.ranks.values() if not r.waits and r.stopped is None]
            asking = [r for r in asking if r.asked == min(each.asked for each in self.ranks.values())]
            if not asking:
                return
            ranks = data.draw(st.sampled_from(asking))
            ranks.asked += 1
            ranks.waits = True
            self._answer(ranks)

    def _answer(self, ranks: Ranks) -> None:
        if not ranks.waits:
            return
        if ranks.stop_at is not None and ranks.asked >= ranks.stop_at:
            ranks.stopped, ranks.waits = ranks.asked, False
        elif ranks.notice is None or ranks.stop_at is not None:
            ranks.waits = False

    @rule(node=NODES)
    def a_node_is_lost(self, node: NodeId) -> None:
        """Its generation is fenced, and the next begins without it."""
        self.notices.pop(node, None)
        self.agreement.lost(node, self.now)
        if node in self.ranks:
            del self.ranks[node]
            self._send()
            self.next_node += 1
            self.start([*(other for other in self.nodes if other != node), NodeId(self.next_node)])
        self._send()

    @precondition(lambda self: not self.over)
    @rule()
    def the_broadcast_ends(self) -> None:
        self.agreement.ended(JOB)
        self.over, self.ranks = True, {}

    @precondition(lambda self: self.over)
    @rule()
    def another_begins(self) -> None:
        self.start(self.nodes)

    @invariant()
    def all_know_the_soonest(self) -> None:
        ends = [(at, place) for place, n in enumerate(self.nodes) for at in self.notices.get(n, {}).values()]
        for ranks in self.ranks.values():
            coming = [message for message in ranks.inbox if not isinstance(message, StopAt)]
            last = coming[-1] if coming else ranks.notice
            if last is None or last[0].seconds is None:
                self._hold("STOP-1", true=not ends)
            else:
                self._hold("STOP-1", true=any(place == last[1].place and at == min(ends)[0] for at, place in ends))

    @invariant()
    def all_stop_at_the_same_question(self) -> None:
        stopped = {ranks.stopped for ranks in self.ranks.values() if ranks.stopped is not None}
        places = {stop.asked for r in self.ranks.values() for stop in r.inbox if isinstance(stop, StopAt)}
        places |= {ranks.stop_at for ranks in self.ranks.values() if ranks.stop_at is not None}
        self._hold("STOP-2", true=len(stopped | places) <= 1)
        for place in places:
            passed = [ranks.asked - ranks.waits for ranks in self.ranks.values() if ranks.stopped is None]
            self._hold("STOP-2", true=all(asked < place for asked in passed))


MACHINE = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def test_all_ranks_know_and_stop_together() -> None:
    run_machine(StopAgreementMachine, settings=MACHINE)


def _notice(node: NodeId, source: str, seconds: float | None) -> PreemptionNotice:
    return PreemptionNotice(MachineId(f"m{node}"), source, None if seconds is None else float(seconds))


def _at_the_most(self: StopAgreement, job: JobId, generation: Any) -> None:
    if generation.stop_at is None and generation.asked and generation.asked.keys() == generation.nodes:
        generation.stop_at = max(generation.asked.values())
        stop = StopAt(job, generation.world.generation, generation.stop_at)
        self.stops += [(node, stop) for node in generation.nodes]


def _with_the_first(self: StopAgreement, job: JobId, generation: Any) -> None:
    if generation.stop_at is None and generation.asked:
        generation.stop_at = max(generation.asked.values()) + 1
        stop = StopAt(job, generation.world.generation, generation.stop_at)
        self.stops += [(node, stop) for node in generation.nodes]


def _nothing(*_: Any, **__: Any) -> None: ...


SECONDS = {"they stop where one has gone past", "not all are waited for"}  # it takes to find these
MUTATIONS: dict[str, tuple[str, str, Any]] = {
    "a new generation is not told of what is known": ("STOP-1", "started", lambda self, job, world, now: None),
    "they stop where one has gone past": ("STOP-2", "_agree", _at_the_most),
    "not all are waited for": ("STOP-2", "_agree", _with_the_first),
    "the end is forgotten": ("STOP-3", "ended", _nothing),
}


@pytest.mark.parametrize(
    "mutation", [pytest.param(each, marks=[pytest.mark.nightly] * (each in SECONDS)) for each in MUTATIONS]
)
def test_the_machine_sees_when(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, method, change = MUTATIONS[mutation]
    monkeypatch.setattr(StopAgreementMachine, "checked", name)
    monkeypatch.setattr(StopAgreement, method, change)
    with pytest.raises(AssertionError, match=name):
        run_machine(
            StopAgreementMachine,
            settings=settings(MACHINE, max_examples=10_000, derandomize=True, phases=[Phase.generate]),
        )


def test_a_notice_that_comes_again_with_the_same_time_is_not_sent_again() -> None:
    agreement = StopAgreement()
    agreement.started(JOB, World(1, (NodeId(0), NodeId(1)), 1, "a", 1), 0.0)
    agreement.noticed(NodeId(1), _notice(NodeId(1), "file", 30.0), 0.0)
    notice = _notice(NodeId(1), "file", 30.0)
    assert agreement.notices == [(NodeId(n), notice, Peer(JOB, 1, 1, 1)) for n in range(2)]
    agreement.notices.clear()
    agreement.noticed(NodeId(1), _notice(NodeId(1), "file", 28.0 + module.SAME_S / 2), 2.0)
    assert agreement.notices == []
    agreement.noticed(NodeId(1), _notice(NodeId(1), "file", 20.0), 2.0)
    assert [notice.seconds for _, notice, _ in agreement.notices] == [20.0, 20.0]


def test_answers_of_others_count_for_nothing() -> None:
    agreement = StopAgreement()
    agreement.started(JOB, World(2, (NodeId(0), NodeId(1)), 1, "a", 1), 0.0)
    agreement.noticed(NodeId(1), _notice(NodeId(1), "file", 30.0), 0.0)
    for node, report in (
        (5, StopChecks(JOB, 2, 1, 3)), (0, StopChecks(JobId(8), 2, 1, 3)),
        (0, StopChecks(JOB, 1, 1, 3)), (0, StopChecks(JOB, 2, 9, 3)),
    ):  # fmt: skip
        agreement.checked(NodeId(node), report)
    agreement.checked(NodeId(1), StopChecks(JOB, 2, 1, 4))
    assert agreement.stops == []
    agreement.checked(NodeId(0), StopChecks(JOB, 2, 1, 3))
    assert agreement.stops == [(NodeId(n), StopAt(JOB, 2, 5)) for n in range(2)]


def test_a_late_answer_to_what_was_withdrawn_does_not_count_for_the_next_notice() -> None:
    """Its ranks have gone on meanwhile, past what it says."""
    agreement = StopAgreement()
    agreement.started(JOB, World(1, (NodeId(0),), 1, "a", 1), 0.0)
    agreement.noticed(NodeId(0), _notice(NodeId(0), "file", 30.0), 0.0)
    agreement.noticed(NodeId(0), _notice(NodeId(0), "file", None), 1.0)
    agreement.noticed(NodeId(0), _notice(NodeId(0), "file", 30.0), 2.0)
    agreement.checked(NodeId(0), StopChecks(JOB, 1, 1, 3))
    assert agreement.stops == []
    agreement.checked(NodeId(0), StopChecks(JOB, 1, 2, 50))
    assert agreement.stops == [(NodeId(0), StopAt(JOB, 1, 51))]
