"""What the actors report becomes events, the snapshot and the console."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest

from outrider.actors import events as ev
from outrider.actors.interfaces import GaveUp, NodeId, Reason, Settled, Verdict
from outrider.actors.late_nodes import Preparing
from outrider.engine.api.sink import Sink
from outrider.engine.client.observer import KEPT, Observer
from outrider.engine.record.sinks import PoolSinks
from outrider.engine.wire.messages import Failed, Output


@pytest.fixture
def observer() -> Observer:
    observer = Observer(PoolSinks("silent"), slots=2)
    observer.open()
    return observer


def start(observer: Observer) -> None:
    observer(ev.PoolStarting("p1", "local", 1, 1))
    observer(ev.NodeLaunching(0, "m0", 0.5, {"group": "17"}))
    observer(ev.NodeReady(0, 0, 1, 1, "m0", "here", "127.0.0.1", 1))
    observer(ev.PoolReady(1, 1))


@pytest.mark.anyio
async def test_events_come_typed_and_in_order_until_the_pool_has_closed(observer: Observer) -> None:
    events = observer.subscribe()
    start(observer)
    observer.job(1, "train")
    observer(ev.TaskSubmitted(1, 1))
    observer(ev.TaskStarted(1, 1, 0))
    observer(ev.TaskFinished(1, 1, 0, 1, "returned", 0.5))
    observer(ev.TaskGaveUp(2, 2, "queue_timeout"))
    observer(ev.PoolClosed())
    observer(ev.PoolResized(3))
    seen = [replace(event, at=0.0) async for event in events]
    assert [type(event).__name__ for event in seen] == [
        "PoolStarting",
        "NodeLaunching",
        "NodeReady",
        "PoolReady",
        "TaskSubmitted",
        "TaskStarted",
        "TaskFinished",
        "TaskGaveUp",
        "PoolClosed",
    ]
    assert seen[0] == ev.PoolStarting("p1", "local", 1, 1)
    assert seen[1] == ev.NodeLaunching(0, "m0", 0.5, {"group": "17"})
    assert isinstance(seen[2], ev.NodeReady)
    assert (seen[2].hostname, seen[2].accelerators, seen[2].ready) == ("here", 1, 1)
    assert seen[4] == ev.TaskSubmitted(1, 1, "train")
    assert seen[7] == ev.TaskGaveUp(2, 2, "queue_timeout")


def test_the_snapshot_follows_the_nodes(observer: Observer) -> None:
    start(observer)
    (node,) = observer.snapshot().nodes
    assert (node.state, node.rank, node.hostname, node.facts) == ("ready", 0, "here", {"group": "17"})
    for event, state in [
        (ev.NodeSuspect(0), "suspect"),
        (ev.NodeResumed(0), "ready"),
        (ev.NodeDraining(0), "draining"),
    ]:
        observer(event)
        assert observer.snapshot().nodes[0].state == state
    observer(ev.NodeStandby(0, hostname="here", address="10.0.0.1"))
    assert (observer.snapshot().nodes[0].state, observer.snapshot().nodes[0].rank) == ("standby", None)
    observer(ev.NodeLost(0, "gone"))
    assert observer.snapshot().nodes == ()
    assert (observer.snapshot().state, observer.snapshot().desired) == ("ready", 1)


def test_single_tasks_are_reported_while_somebody_watches(observer: Observer) -> None:
    quiet = Observer(PoolSinks("silent"), slots=1)
    assert not quiet.tasks
    quiet.subscribe()
    assert quiet.tasks


@pytest.mark.anyio
async def test_a_slow_reader_misses_the_oldest(observer: Observer) -> None:
    events = observer.subscribe()
    for wanted in range(KEPT + 5):
        observer(ev.PoolResized(wanted))
    async with aclosing(events):
        first = await anext(events)
    assert isinstance(first, ev.PoolResized)
    assert first.wanted == 5


@pytest.mark.anyio
async def test_output_is_decoded_and_named(observer: Observer) -> None:
    events = observer.subscribe()
    observer.prints.wrote(NodeId(3), None, Output(1, 2, b"caf\xc3\xa9 \xff\n", 7))
    async with aclosing(events):
        event = await anext(events)
    assert replace(event, at=0.0) == ev.TaskOutput(0, 3, 0, "stderr", "café \ufffd\n", "", 7)


def test_event_of_an_unknown_node_is_accepted(observer: Observer) -> None:
    observer(ev.NodeSuspect(99))
    observer(ev.NodeLost(99, "gone"))
    assert observer.snapshot().nodes == ()


def test_the_step_of_preparing_a_node_is_known_until_it_is_over(observer: Observer) -> None:
    observer(ev.NodeLaunching(3))
    observer(ev.NodePreparing(3, "apt", "installing curl"))
    observer(ev.NodePreparing(3, "apt", "", 4.0))
    assert observer.preparing(3) is None
    observer(ev.NodePreparing(3, "packages"))
    observer(ev.NodePreparing(3, "packages", "downloading torch"))
    step = observer.preparing(3)
    assert step is not None
    assert step._replace(for_s=0.0) == Preparing("packages", "downloading torch")
    assert observer.preparing(4) is None
    observer(ev.NodeFailed(3, "not ready within 60 s"))
    assert observer.preparing(3) is None


@pytest.mark.anyio
async def test_a_failure_is_told_with_the_functions_name(observer: Observer) -> None:
    events = observer.subscribe()
    observer.job(7, "train")
    failed = Failed(1, "call", "ValueError", "bad luck", "", None, 0)
    observer.job_over(7, Settled(Verdict.RAISED, (failed, None), NodeId(2), 0, 1, 0))
    async with aclosing(events):
        event = await anext(events)
    assert replace(event, at=0.0) == ev.JobFailed(7, "train", "ValueError: bad luck", 2)


@pytest.mark.anyio
async def test_first_failed_rank_of_each_generation_is_reported_at_once_and_only_once(observer: Observer) -> None:
    events = observer.subscribe()

    def raised(rank: int, kind: str, generation: int) -> Settled:
        return Settled(
            Verdict.RAISED, (Failed(1, "call", kind, "x", "", None, 0), None), NodeId(rank), rank, 1, generation
        )

    observer.job(7, "train")
    void, first, alike, other = raised(0, "A", 1), raised(1, "A", 2), raised(2, "A", 2), raised(3, "B", 2)
    for ending in (void, first, alike, GaveUp(Reason.LOST, (), 0)):
        observer.rank_failed(7, "train", ending)
    observer.job_over(7, [first, alike, other])  # type: ignore[list-item]
    observer.job(8, "train")
    observer.job_over(8, [raised(0, "C", 1)])
    reports = []
    async with aclosing(events):
        while len(reports) < 5:
            event = await anext(events)
            assert isinstance(event, ev.JobFailed)
            reports.append((event.error, event.ranks))
    assert reports == [("A: x", (0,)), ("A: x", (1,)), ("A: x", (2,)), ("B: x", (3,)), ("C: x", (0,))]
    assert observer._failed_ranks == {}


def test_where_nobody_looks_at_single_tasks_failures_are_not_told(observer: Observer) -> None:
    observer.job(7, "train")
    observer.job_over(7, Settled(Verdict.RAISED, None, NodeId(2), 0, 1, 0))  # an outcome that nobody may look at
    assert (observer.submitted, observer.finished) == (1, 1)


@pytest.mark.anyio
async def test_samples_reach_readers_and_no_console_or_log(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    class Counting(Sink):
        shown = 0

        def show(self, event: ev.Event) -> None:
            del event
            self.shown += 1

    sink = Counting()
    observer._sinks = [*observer._sinks, sink]
    events = observer.subscribe()
    caplog.set_level("DEBUG", "outrider")
    observer(ev.NodeSampled(0, 5.0, 0.5, 8.0, 1, 2, 3, 4, 5, 6, (ev.GpuSample(0, None, 1, 2, None),)))
    assert isinstance(await anext(events), ev.NodeSampled)
    assert (sink.shown, caplog.records) == (0, [])
    observer(ev.PoolClosing())
    assert (sink.shown, [record.message for record in caplog.records]) == (1, ["pool_closing pool=''"])
    await events.aclose()
