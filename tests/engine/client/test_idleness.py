"""A pool is idle only when all that it has is known to have done nothing for long enough, without a break."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from outrider.actors.events import GpuSample, NodeSampled
from outrider.engine.client.budget import CPUS_BUSY, GPU_BUSY, SAMPLES_MISSED, Idle, Idleness

EVERY_S, MAX_S = 5.0, 60.0
FRESH_S = (SAMPLES_MISSED + 1) * EVERY_S
NOTHING, BUSY, UNKNOWN = "nothing", "busy", "unknown"
GPUS = 2


def gpu(use: float | None) -> GpuSample:
    return GpuSample(0, use, 1, 2, None)


def sample(node: int, *, cpus: float = 0.0, gpus: tuple[GpuSample, ...] = ()) -> NodeSampled:
    return NodeSampled(node, EVERY_S, cpus / 8, 8.0, 1, 2, 3, 4, 5, 6, gpus)


def sample_of(node: int, gpus: int, kind: str) -> NodeSampled:
    """A sample of a node with so many GPUs; of one with GPUs the processors do not matter."""
    if not gpus:
        return sample(node, cpus=1.0 if kind == BUSY else 0.1)
    rest = (gpu(0.01),) * (gpus - 1)
    last = {NOTHING: (gpu(0.0),), BUSY: (gpu(0.5),), UNKNOWN: (gpu(None),)}[kind]
    return sample(node, cpus=8.0, gpus=rest + last)


class Pools(RuleBasedStateMachine):
    """Against a history that is read anew for every question."""

    make: ClassVar[Any] = Idleness

    def __init__(self) -> None:
        super().__init__()
        self.pool = self.make(MAX_S, EVERY_S)
        self.now = 1000.0
        self.gpus: dict[int, int | None] = {}  # of the nodes that are there; None: it boots
        self.samples: dict[int, list[tuple[float, str]]] = {}
        self.changed = -1.0  # when a node came or went, or a call began or ended
        self.next = 0

    @rule(by=st.sampled_from([0.5, 1.0, EVERY_S, EVERY_S, FRESH_S, FRESH_S + 1.0]))
    def time_passes(self, by: float) -> None:
        self.now += by

    @rule(gpus=st.sampled_from([None, 0, GPUS]))
    def comes(self, gpus: int | None) -> None:
        if len(self.gpus) == 3:
            return
        node, self.next = self.next, self.next + 1
        self._change()
        self.gpus[node], self.samples[node] = gpus, []
        self.pool.boots(node, self.now)
        if gpus is not None:
            self.pool.joined(node, gpus, self.now)

    @precondition(lambda self: None in self.gpus.values())
    @rule(gpus=st.sampled_from([0, GPUS]))
    def is_ready(self, gpus: int) -> None:
        node = next(node for node, has in self.gpus.items() if has is None)
        self._change()
        self.gpus[node], self.samples[node] = gpus, []
        self.pool.joined(node, gpus, self.now)

    @precondition(lambda self: self.gpus)
    @rule(data=st.data())
    def leaves(self, data: st.DataObject) -> None:
        node = data.draw(st.sampled_from(sorted(self.gpus)))
        self._change()
        del self.gpus[node], self.samples[node]
        self.pool.left(node, self.now)

    @precondition(lambda self: None in self.gpus.values())
    @rule()
    def is_queued(self) -> None:
        """Its machine waits; that it runs is as if another came."""
        node = next(node for node, has in self.gpus.items() if has is None)
        self._change()
        del self.gpus[node], self.samples[node]
        for _ in range(2):
            self.pool.queued(node, self.now)

    @rule()
    def is_called(self) -> None:
        self._change()
        self.pool.called(self.now)

    @rule()
    def tells_of_what_is_gone(self) -> None:
        self.pool.sampled(sample(self.next + 1), self.now)
        self.pool.left(self.next + 1, self.now)
        self.pool.queued(self.next + 1, self.now)

    @precondition(lambda self: self.gpus)
    @rule(data=st.data(), kind=st.sampled_from([NOTHING, NOTHING, NOTHING, BUSY, UNKNOWN]))
    def one_is_sampled(self, data: st.DataObject, kind: str) -> None:
        self._sampled(data.draw(st.sampled_from(sorted(self.gpus))), kind)

    @rule(times=st.integers(1, 15))
    def all_do_nothing(self, times: int) -> None:
        for _ in range(times):
            self.now += EVERY_S
            for node in self.gpus:
                self._sampled(node, NOTHING)

    def _sampled(self, node: int, kind: str) -> None:
        gpus = self.gpus[node]
        kind = NOTHING if kind == UNKNOWN and not gpus else kind
        self.pool.sampled(sample_of(node, gpus or 0, kind), self.now)
        self.samples[node].append((self.now, kind))

    def _change(self) -> None:
        self.changed = self.now

    def idle_since(self, node: int) -> float | None:
        since, newest = None, None
        for at, kind in self.samples[node]:
            whole = newest is not None and at - newest <= FRESH_S
            newest = at
            since = None if kind != NOTHING else since if since is not None and whole else at
        return since if newest is not None and self.now - newest <= FRESH_S else None

    @invariant()
    def only_what_is_known_and_whole_is_idle(self) -> None:
        told = self.pool.idle(self.now)
        if not self.gpus:
            assert told is None, "IDLE-3"
            return
        known = [None if gpus is None else self.idle_since(node) for node, gpus in self.gpus.items()]
        if None in known:
            assert told is None, "IDLE-1"
            return
        since = max(self.changed, *(at for at in known if at is not None))
        assert told is not None, "IDLE-4, IDLE-5: it is idle"
        assert told.since >= since, "IDLE-2"
        assert told.since == since, "IDLE-4"
        assert (told.nodes, told.gpus) == (len(self.gpus), sum(gpus or 0 for gpus in self.gpus.values()))
        over = self.pool.over(self.now)
        assert (over is not None) == (self.now - since >= MAX_S), "IDLE-4"


QUICK = settings(max_examples=60, stateful_step_count=25, deadline=None)
WITHOUT_GUARD = settings(
    QUICK, max_examples=20_000, database=None, derandomize=True, report_multiple_bugs=False, phases=[Phase.generate]
)
TestPools = Pools.TestCase
TestPools.settings = QUICK


class TrustsWhoIsSilent(Idleness):
    def idle(self, now: float) -> Idle | None:
        heard = {number: node.sampled_at for number, node in self._nodes.items()}
        for number, at in heard.items():
            self._nodes[number].sampled_at = None if at is None else now
        told = super().idle(now)
        for number, at in heard.items():
            self._nodes[number].sampled_at = at
        return told


class ForgetsWhoBoots(Idleness):
    def boots(self, node: int, now: float) -> None:
        del node
        self._since = now


class BelievesHalfTheGpus(Idleness):
    def sampled(self, sample: NodeSampled, now: float) -> None:
        known = tuple(each for each in sample.gpus if each.utilisation is not None)
        super().sampled(sample_of(sample.node, GPUS, NOTHING) if 0 < len(known) < GPUS else sample, now)


class CountsAcrossGaps(Idleness):
    def sampled(self, sample: NodeSampled, now: float) -> None:
        node = self._nodes.get(sample.node)
        if node is not None and node.sampled_at is not None:
            node.sampled_at = now
        super().sampled(sample, now)


class ForgetsCalls(Idleness):
    def called(self, now: float) -> None:
        pass


class ForgetsWhoLeft(Idleness):
    def left(self, node: int, now: float) -> None:
        before = self._since
        super().left(node, now)
        self._since = before


class ForgetsWork(Idleness):
    def sampled(self, sample: NodeSampled, now: float) -> None:
        node = self._nodes.get(sample.node)
        before = None if node is None else node.idle_since
        super().sampled(sample, now)
        if node is not None and before is not None and node.idle_since is not None:
            node.idle_since = min(before, node.idle_since)


class EndsTheEmpty(Idleness):
    def idle(self, now: float) -> Idle | None:
        return super().idle(now) if self._nodes else Idle(self._since, 0, 0, 0.0)


class WaitsForTheQueued(Idleness):
    def queued(self, node: int, now: float) -> None:
        pass


class NeverEnds(Idleness):
    def over(self, now: float) -> Idle | None:
        del now
        return None


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (TrustsWhoIsSilent, "IDLE-1"),
        (ForgetsWhoBoots, "IDLE-1"),
        (BelievesHalfTheGpus, "IDLE-1"),
        (CountsAcrossGaps, "IDLE-2"),
        (ForgetsCalls, "IDLE-2"),
        (ForgetsWhoLeft, "IDLE-2"),
        (ForgetsWork, "IDLE-2"),
        (EndsTheEmpty, "IDLE-3"),
        (NeverEnds, "IDLE-4"),
        (WaitsForTheQueued, "IDLE-5"),
    ],
)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisWarning")
def test_the_invariant_falls_without_its_guard(broken: type[Idleness], said: str) -> None:
    class Broken(Pools):
        make = broken

    with pytest.raises(AssertionError, match=said):
        run_state_machine_as_test(Broken, settings=WITHOUT_GUARD)


def test_a_gpu_counts_and_not_its_processors() -> None:
    pool = Idleness(MAX_S, EVERY_S)
    pool.joined(0, 1, 0.0)
    for at in range(5, 70, 5):
        pool.sampled(sample(0, cpus=8.0, gpus=(gpu(GPU_BUSY - 0.01),)), float(at))
    assert pool.over(64.0) is None
    assert pool.over(65.0) == Idle(5.0, 1, 1, GPU_BUSY - 0.01)
    pool.sampled(sample(0, gpus=(gpu(GPU_BUSY),)), 66.0)
    assert pool.idle(66.0) is None


def test_a_single_busy_thread_on_a_large_machine_is_work() -> None:
    pool = Idleness(MAX_S, EVERY_S)
    pool.joined(0, 0, 0.0)
    pool.sampled(NodeSampled(0, EVERY_S, CPUS_BUSY / 192, 192.0, 1, 2, 3, 4, 5, 6), 5.0)
    assert pool.idle(5.0) is None
    pool.sampled(NodeSampled(0, EVERY_S, 0.2 / 192, 192.0, 1, 2, 3, 4, 5, 6), 10.0)
    assert pool.idle(10.0) == Idle(10.0, 1, 0, pytest.approx(0.2))


def test_a_lost_gpu_makes_its_node_unknown() -> None:
    pool = Idleness(MAX_S, EVERY_S)
    pool.joined(0, 2, 0.0)
    pool.sampled(sample(0, gpus=(gpu(0.0),)), 5.0)
    assert pool.idle(5.0) is None
    pool.sampled(sample(0, gpus=(gpu(0.0), gpu(0.0))), 10.0)
    assert pool.idle(10.0) is not None
