"""What generations hear of notices: a model of nodes and their ranks, every invariant, and that each can fail."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.stateful import run_state_machine_as_test as run_machine

from outrider.actors import stop_agreement as module
from outrider.actors.ports import Asked, JobId, NodeId, PeerDoomed, StopAt, World
from outrider.actors.stop_agreement import StopAgreement

SIZE = 3
JOB = JobId(7)
NODES = st.integers(0, SIZE).map(NodeId)  # the last is of no generation at first
SOURCES = st.sampled_from(["file", "spot"])


class Ranks:
    """One node's ranks of one generation, with the link to them: words arrive in order, at any time."""

    def __init__(self) -> None:
        self.inbox: list[PeerDoomed | StopAt] = []
        self.outbox: list[Asked] = []
        self.doom: PeerDoomed | None = None
        self.stop_at: int | None = None
        self.asked = 0
        self.waits = False  # in its question
        self.stopped: int | None = None


class DoomsMachine(RuleBasedStateMachine):
    checked: str | None = None  # only this invariant, to prove that it can fail

    @initialize()
    def begin(self) -> None:
        self.dooms = StopAgreement()
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
        self.dooms.started(JOB, World(self.generation, tuple(nodes), 1, "a", 1), self.now)
        self._send()

    def _send(self) -> None:
        words, self.dooms.words = self.dooms.words, []
        for node, word in words:
            self._hold("DOOM-3", true=not self.over and word[:2] == (JOB, self.generation))
            if node in self.ranks:
                self.ranks[node].inbox.append(word)

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @rule(node=NODES, source=SOURCES, seconds=st.none() | st.integers(2, 90))
    def a_notice(self, node: NodeId, source: str, seconds: int | None) -> None:
        if seconds is None:
            self.notices.get(node, {}).pop(source, None)
        else:
            self.notices.setdefault(node, {})[source] = self.now + seconds
        self.dooms.noticed(node, source, None if seconds is None else float(seconds), self.now)
        self._send()

    @rule(data=st.data())
    def a_word_arrives(self, data: st.DataObject) -> None:
        waiting = [node for node, ranks in self.ranks.items() if ranks.inbox]
        if not waiting:
            return
        ranks = self.ranks[data.draw(st.sampled_from(waiting))]
        word = ranks.inbox.pop(0)
        if isinstance(word, StopAt):
            self._hold("DOOM-2", true=ranks.stop_at is None)
            ranks.stop_at = word.asked
        else:
            ranks.doom = None if word.seconds is None else word
            if ranks.doom is not None:
                ranks.outbox.append(Asked(JOB, self.generation, word.number, ranks.asked))
        self._answer(ranks)

    @rule(data=st.data())
    def an_answer_arrives(self, data: st.DataObject) -> None:
        waiting = [node for node, ranks in self.ranks.items() if ranks.outbox]
        if waiting:
            node = data.draw(st.sampled_from(waiting))
            self.dooms.asked(node, self.ranks[node].outbox.pop(0))
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
        elif ranks.doom is None or ranks.stop_at is not None:
            ranks.waits = False

    @rule(node=NODES)
    def a_node_is_lost(self, node: NodeId) -> None:
        """Its generation is fenced, and the next begins without it."""
        self.notices.pop(node, None)
        self.dooms.lost(node, self.now)
        if node in self.ranks:
            del self.ranks[node]
            self._send()
            self.next_node += 1
            self.start([*(other for other in self.nodes if other != node), NodeId(self.next_node)])
        self._send()

    @precondition(lambda self: not self.over)
    @rule()
    def the_broadcast_ends(self) -> None:
        self.dooms.ended(JOB)
        self.over, self.ranks = True, {}

    @precondition(lambda self: self.over)
    @rule()
    def another_begins(self) -> None:
        self.start(self.nodes)

    @invariant()
    def all_know_the_soonest(self) -> None:
        ends = [(at, place) for place, n in enumerate(self.nodes) for at in self.notices.get(n, {}).values()]
        for ranks in self.ranks.values():
            told = [word for word in ranks.inbox if isinstance(word, PeerDoomed)]
            knows = told[-1] if told else ranks.doom
            if knows is None or knows.seconds is None:
                self._hold("DOOM-1", true=not ends)
            else:
                self._hold("DOOM-1", true=any(place == knows.place and at == min(ends)[0] for at, place in ends))

    @invariant()
    def all_stop_at_the_same_question(self) -> None:
        stopped = {ranks.stopped for ranks in self.ranks.values() if ranks.stopped is not None}
        places = {word.asked for r in self.ranks.values() for word in r.inbox if isinstance(word, StopAt)}
        places |= {ranks.stop_at for ranks in self.ranks.values() if ranks.stop_at is not None}
        self._hold("DOOM-2", true=len(stopped | places) <= 1)
        for place in places:
            passed = [ranks.asked - ranks.waits for ranks in self.ranks.values() if ranks.stopped is None]
            self._hold("DOOM-2", true=all(asked < place for asked in passed))


MACHINE = settings(
    max_examples=50, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def test_all_ranks_know_and_stop_together() -> None:
    run_machine(DoomsMachine, settings=MACHINE)


def _at_the_most(self: StopAgreement, job: JobId, generation: Any) -> None:
    if generation.stop_at is None and generation.asked and generation.asked.keys() == generation.nodes:
        generation.stop_at = max(generation.asked.values())
        word = StopAt(job, generation.world.generation, generation.stop_at)
        self.words += [(node, word) for node in generation.nodes]


def _with_the_first(self: StopAgreement, job: JobId, generation: Any) -> None:
    if generation.stop_at is None and generation.asked:
        generation.stop_at = max(generation.asked.values()) + 1
        word = StopAt(job, generation.world.generation, generation.stop_at)
        self.words += [(node, word) for node in generation.nodes]


def _nothing(*_: Any, **__: Any) -> None: ...


MUTATIONS: dict[str, tuple[str, str, Any]] = {
    "a new generation is not told of what is known": ("DOOM-1", "started", lambda self, job, world, now: None),
    "they stop where one has gone past": ("DOOM-2", "_agree", _at_the_most),
    "not all are waited for": ("DOOM-2", "_agree", _with_the_first),
    "the end is forgotten": ("DOOM-3", "ended", _nothing),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_the_machine_sees_when(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, method, change = MUTATIONS[mutation]
    monkeypatch.setattr(DoomsMachine, "checked", name)
    monkeypatch.setattr(StopAgreement, method, change)
    with pytest.raises(AssertionError, match=name):
        run_machine(
            DoomsMachine, settings=settings(MACHINE, max_examples=10_000, derandomize=True, phases=[Phase.generate])
        )


def test_a_time_that_is_told_again_is_not_told_again() -> None:
    dooms = StopAgreement()
    dooms.started(JOB, World(1, (NodeId(0), NodeId(1)), 1, "a", 1), 0.0)
    dooms.noticed(NodeId(1), "file", 30.0, 0.0)
    assert dooms.words == [(NodeId(n), PeerDoomed(JOB, 1, 1, 1, "file", 30.0)) for n in range(2)]
    dooms.words.clear()
    dooms.noticed(NodeId(1), "file", 28.0 + module.SAME_S / 2, 2.0)
    assert dooms.words == []
    dooms.noticed(NodeId(1), "file", 20.0, 2.0)
    assert [word.seconds for _, word in dooms.words if isinstance(word, PeerDoomed)] == [20.0, 20.0]


def test_answers_of_others_count_for_nothing() -> None:
    dooms = StopAgreement()
    dooms.started(JOB, World(2, (NodeId(0), NodeId(1)), 1, "a", 1), 0.0)
    dooms.noticed(NodeId(1), "file", 30.0, 0.0)
    dooms.words.clear()
    for node, report in (
        (5, Asked(JOB, 2, 1, 3)), (0, Asked(JobId(8), 2, 1, 3)), (0, Asked(JOB, 1, 1, 3)), (0, Asked(JOB, 2, 9, 3)),
    ):  # fmt: skip
        dooms.asked(NodeId(node), report)
    dooms.asked(NodeId(1), Asked(JOB, 2, 1, 4))
    assert dooms.words == []
    dooms.asked(NodeId(0), Asked(JOB, 2, 1, 3))
    assert dooms.words == [(NodeId(n), StopAt(JOB, 2, 5)) for n in range(2)]


def test_a_late_answer_to_what_was_withdrawn_does_not_count_for_the_next_notice() -> None:
    """Its ranks have gone on meanwhile, past what it says."""
    dooms = StopAgreement()
    dooms.started(JOB, World(1, (NodeId(0),), 1, "a", 1), 0.0)
    dooms.noticed(NodeId(0), "file", 30.0, 0.0)
    dooms.noticed(NodeId(0), "file", None, 1.0)
    dooms.noticed(NodeId(0), "file", 30.0, 2.0)
    dooms.words.clear()
    dooms.asked(NodeId(0), Asked(JOB, 1, 1, 3))
    assert dooms.words == []
    dooms.asked(NodeId(0), Asked(JOB, 1, 2, 50))
    assert dooms.words == [(NodeId(0), StopAt(JOB, 1, 51))]
