"""Samples of a node become events; one that sends too many, or was not asked, is not heard."""

from __future__ import annotations

from outrider.actors.events import GpuSample, NodeSampled
from outrider.actors.interfaces import NodeId
from outrider.engine.node.sampler import MOST_GPUS
from outrider.engine.transport.diagnostics import SAMPLE_BURST, SampleIntake
from outrider.engine.wire import messages as wire

GPU = wire.GpuSample(1, None, 2, 3, 4.0)
SAMPLE = wire.Sampled(5.0, 0.5, 8.0, 1, 2, 3, 4, 5, 6, (GPU,))


class Intake:
    def __init__(self, every_s: float | None = 5.0) -> None:
        self.now, self.seen = 100.0, list[NodeSampled]()
        self.intake = SampleIntake(NodeId(7), every_s, self.seen.append, lambda: self.now)


def test_a_sample_is_an_event_of_its_node() -> None:
    heard = Intake()
    heard.intake.received(SAMPLE)
    assert heard.seen == [NodeSampled(7, 5.0, 0.5, 8.0, 1, 2, 3, 4, 5, 6, (GpuSample(1, None, 2, 3, 4.0),))]


def test_samples_at_their_pace_are_all_heard_and_some_may_come_late() -> None:
    heard = Intake()
    for late_s in (5.0, 5.0, 40.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0):
        heard.now += late_s
        heard.intake.received(SAMPLE)
    assert len(heard.seen) == 11


def test_a_node_that_sends_many_is_heard_as_often_as_twice_what_was_asked() -> None:
    heard = Intake()
    for _ in range(1000):
        heard.intake.received(SAMPLE)
    assert len(heard.seen) == SAMPLE_BURST
    for _ in range(1000):
        heard.now += 0.5  # ten times as often
        heard.intake.received(SAMPLE)
    assert len(heard.seen) <= SAMPLE_BURST + 200 + 1


def test_a_node_that_was_not_asked_is_not_heard_nor_one_with_absurdly_many_gpus() -> None:
    heard = Intake(None)
    heard.intake.received(SAMPLE)
    assert heard.seen == []
    heard = Intake()
    heard.intake.received(SAMPLE._replace(gpus=(GPU,) * (MOST_GPUS + 1)))
    assert heard.seen == []
