"""Jobs: the task or broadcast that a call's options and plugins make of it, and how its value is kept."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from pickle import dumps as pickle_dumps
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

from outrider import SpecError
from outrider.actors.interfaces import JobId, NodeFacts, NodeId, OnLoss, Settled, Verdict
from outrider.engine.api.plugin import Plugin
from outrider.engine.api.task_options import OnLossOption, Options
from outrider.engine.client import jobs
from outrider.engine.client.jobs import SubmittedJob, broadcast_of, on_loss_of, task_of
from outrider.engine.node.freeports import FEW
from outrider.engine.serialization.client_streams import Values
from outrider.engine.serialization.payload import Received
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.wire.messages import Value

JOB = JobId(7)


class Ranks(Plugin):
    """As many ranks per node as it has accelerators, each of which listens."""

    name = "ranks"
    collective = True
    ports = "ranks"

    def ranks_per_node(self, facts: NodeFacts) -> int:
        return len(facts.accelerators)


def payload(**given: Any) -> Payload:
    return Payload("train", b"digest", b"code", Value(b""), **given)


def node(accelerators: int) -> NodeFacts:
    return NodeFacts("host", "10.0.0.1", (), (("A100", 40.0),) * accelerators)


@pytest.mark.parametrize(
    ("asked", "pool", "collective", "decided"),
    [
        ("auto", "auto", True, OnLoss.RESTART),
        ("auto", "auto", False, OnLoss.RESEND),
        ("auto", "fail", True, OnLoss.FAIL),
        ("auto", "resend", True, OnLoss.RESEND),
        ("restart", "fail", False, OnLoss.RESTART),
        ("fail", "restart", True, OnLoss.FAIL),
    ],
)
def test_a_calls_on_loss_overrides_the_pools_and_auto_looks_at_the_plugins(
    asked: OnLossOption, pool: OnLossOption, collective: bool, decided: OnLoss
) -> None:
    assert on_loss_of(Options().changed(on_loss=asked), pool, collective=collective) is decided


@pytest.mark.parametrize("pool", ["auto", "restart", "resend", "fail"])
def test_max_restarts_restarts_and_never_retrying_fails_whatever_the_pool_says(pool: OnLossOption) -> None:
    assert on_loss_of(Options().changed(max_restarts=2), pool, collective=False) is OnLoss.RESTART
    assert on_loss_of(Options().changed(retry="never"), pool, collective=True) is OnLoss.FAIL


def test_a_task_has_the_retries_of_its_call() -> None:
    task = task_of(JOB, payload(), Options().changed(retries=5, max_restarts=2, queue_timeout=9), 3)
    assert (task.retries, task.max_restarts, task.at_most_once) == (5, 2, False)
    assert (task.on, task.queue_timeout_s, task.job) == (3, 9.0, JOB)


@pytest.mark.parametrize("given", [{"output": Values()}, {"inputs": (object(),)}])
def test_a_task_that_streams_runs_at_most_once(given: dict[str, Any]) -> None:
    task = task_of(JOB, payload(**given), Options().changed(retries=5, max_restarts=2), None)
    assert (task.retries, task.max_restarts, task.at_most_once) == (0, 0, True)


def test_a_broadcast_without_plugins_has_one_rank_per_node() -> None:
    spec = broadcast_of(JOB, payload(), Options(), (), on_loss="auto", nodes=[node(8)])
    assert spec.ranks_per_node(node(8)) == 1
    assert (spec.collective, spec.every_rank_listens, spec.on_loss) == (False, False, OnLoss.RESEND)


def test_a_broadcasts_plugins_decide_how_many_ranks_a_node_has() -> None:
    spec = broadcast_of(JOB, payload(), Options(), (Ranks(),), on_loss="auto", nodes=[node(8)])
    assert spec.ranks_per_node(node(4)) == 4
    assert (spec.collective, spec.every_rank_listens, spec.on_loss) == (True, True, OnLoss.RESTART)


@pytest.mark.parametrize("ranks", [1.5, "2", None, 10**6])
def test_a_plugins_ranks_that_are_no_number_of_processes_are_refused(ranks: Any) -> None:
    plugin = type("Wrong", (Plugin,), {"name": "wrong", "ranks_per_node": lambda _, __: ranks})()
    with pytest.raises(SpecError, match=r"The wrong plugin wants .* ranks on a node: a whole number"):
        broadcast_of(JOB, payload(), Options(), (plugin,), on_loss="auto", nodes=[node(1)])


def test_more_ranks_than_a_node_has_ports_are_refused() -> None:
    with pytest.raises(SpecError, match=f"{FEW + 1} ranks per node would each need a port"):
        broadcast_of(JOB, payload(), Options(), (Ranks(),), on_loss="auto", nodes=[node(1), node(FEW + 1)])


class PoolParts:
    """The parts of an open pool that a job uses."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.observer = SimpleNamespace(traces=None, job=lambda *_: None, job_over=lambda *_: None)

    def new_job(self) -> JobId:
        return JOB

    def explained(self, ending: object) -> object:
        return ending


@pytest.fixture
def core() -> Iterator[Any]:
    core = PoolParts()
    yield core
    core.loop.close()


class MeetingJob(SubmittedJob[object]):
    """A job whose value two threads unpickle at once. ``second``: whether the second of them finds the pickle."""

    __slots__ = ("first", "meeting", "second")

    def __init__(self, core: Any, *, second: bool) -> None:
        super().__init__(core, payload(), Options())
        self.meeting, self.first, self.second = Barrier(2), threading.get_ident(), second

    def _unpack(self, ending: Any) -> object:
        assert ending.verdict is Verdict.RETURNED
        self.meeting.wait(60)
        if threading.get_ident() != self.first:
            while self._value is jobs._UNASKED:
                time.sleep(0)
            if not self.second:
                raise ValueError("mmap closed or invalid")
        return object()


@pytest.mark.parametrize("second", [True, False])
def test_threads_that_unpickle_one_result_at_once_get_one_value(core: Any, *, second: bool) -> None:
    job = MeetingJob(core, second=second)
    job(returned(b"pickle"))
    results: list[object] = []
    other = threading.Thread(target=lambda: results.append(job.result()))
    other.start()
    value = job.result()
    other.join()
    assert results == [value]
    assert job.result() is value
    assert repr(job).endswith("returned>")


def test_job_lets_its_pickle_go_when_its_value_is_unpickled(core: Any) -> None:
    job: SubmittedJob[bytes] = SubmittedJob(core, payload(), Options())
    pickle = pickle_dumps(bytes(1000))
    before = sys.getrefcount(pickle)
    job(returned(pickle))
    assert sys.getrefcount(pickle) == before + 1
    assert job.result() == job.result() == bytes(1000)
    assert sys.getrefcount(pickle) == before
    assert (job.done(), job.cancelled(), job.exception()) == (True, False, None)


def returned(data: bytes) -> Settled:
    return Settled(Verdict.RETURNED, Received(data, None), NodeId(0), 0, 1, 0)
