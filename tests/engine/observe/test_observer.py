"""What the actors report becomes events, the snapshot and the console."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

import pytest

from outrider.actors.ports import JobId, NodeFacts, NodeId, Reason, Verdict
from outrider.engine import events as ev
from outrider.engine.observe.observer import KEPT, Observer
from outrider.engine.wire.messages import Output
from outrider.providers.base import Machine, MachineId

MACHINE = Machine(MachineId("m0"), None, "key", "door", hourly_cost=0.5, facts={"group": "17"})
FACTS = NodeFacts("here", "127.0.0.1", (1,), (("A100", 80.0),))


@pytest.fixture
def observer() -> Observer:
    observer = Observer("silent", slots=2)
    observer.open()
    return observer


def start(observer: Observer) -> None:
    observer("pool_starting", pool="p1", provider="local", wanted=1, least=1)
    observer("node_launching", node=NodeId(0), machine=MACHINE)
    observer("node_ready", node=NodeId(0), machine=MACHINE, facts=FACTS, rank=0, ready=1, wanted=1)
    observer("pool_ready", ready=1, wanted=1)


@pytest.mark.anyio
async def test_events_come_typed_and_in_order_until_the_pool_has_closed(observer: Observer) -> None:
    events = observer.subscribe()
    start(observer)
    observer.job(1, "train")
    observer("task_submitted", job=JobId(1), task=1)
    observer("task_started", job=JobId(1), task=1, node=NodeId(0), number=1)
    observer("task_finished", job=JobId(1), task=1, node=NodeId(0), number=1, verdict=Verdict.RETURNED, busy_s=0.5)
    observer("task_gave_up", job=JobId(2), task=2, reason=Reason.QUEUE_TIMEOUT, losses=())
    observer("pool_closed")
    observer("pool_resized", wanted=3)
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
    assert seen[0] == ev.PoolStarting(0.0, "p1", "local", 1, 1)
    assert seen[1] == ev.NodeLaunching(0.0, 0, "m0", 0.5)
    assert isinstance(seen[2], ev.NodeReady)
    assert (seen[2].hostname, seen[2].accelerators, seen[2].ready) == ("here", 1, 1)
    assert seen[4] == ev.TaskSubmitted(0.0, 1, 1, "train")
    assert isinstance(seen[6], ev.TaskFinished)
    assert seen[6].verdict == "returned"
    assert isinstance(seen[7], ev.TaskGaveUp)
    assert seen[7].reason == "queue_timeout"


def test_the_snapshot_follows_the_nodes(observer: Observer) -> None:
    start(observer)
    (node,) = observer.snapshot().nodes
    assert (node.state, node.rank, node.hostname, node.facts) == ("ready", 0, "here", {"group": "17"})
    for event, state in [("node_suspect", "suspect"), ("node_resumed", "ready"), ("node_draining", "draining")]:
        observer(event, node=0, cause="", silent=False)
        assert observer.snapshot().nodes[0].state == state
    observer("node_standby", node=0, machine=None, facts=NodeFacts("here", "10.0.0.1", ()))
    assert (observer.snapshot().nodes[0].state, observer.snapshot().nodes[0].rank) == ("standby", None)
    observer("node_lost", node=0, cause="gone", noticed=False)
    assert observer.snapshot().nodes == ()
    assert (observer.snapshot().state, observer.snapshot().desired) == ("ready", 1)


def test_single_tasks_are_reported_while_somebody_watches(observer: Observer) -> None:
    quiet = Observer("silent", slots=1)
    assert not quiet.tasks
    quiet.subscribe()
    assert quiet.tasks


@pytest.mark.anyio
async def test_a_slow_reader_misses_the_oldest(observer: Observer) -> None:
    events = observer.subscribe()
    for wanted in range(KEPT + 5):
        observer("pool_resized", wanted=wanted)
    async with aclosing(events):
        first = await anext(events)
    assert isinstance(first, ev.PoolResized)
    assert first.wanted == 5


@pytest.mark.anyio
async def test_output_is_decoded_and_named(observer: Observer) -> None:
    events = observer.subscribe()
    observer.printed(NodeId(3), None, Output(1, 2, b"caf\xc3\xa9 \xff\n", 7))
    async with aclosing(events):
        event = await anext(events)
    assert replace(event, at=0.0) == ev.TaskOutput(0.0, 0, 3, 0, "stderr", "café \ufffd\n", "", 7)


def test_what_it_does_not_understand_harms_nobody(observer: Observer) -> None:
    observer("an_event_of_a_later_version", anything=1)
    observer("node_ready", node=1)  # facts are missing
    observer("node_lost", node=99, cause="never heard of", noticed=False)
