"""What a node's link does when a channel fails by itself, under a connection that stays."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import count, repeat
from typing import Any

import pytest

from outrider.actors.interfaces import (
    AttemptId,
    Finished,
    JobId,
    NodeId,
    Order,
    Peer,
    Report,
    Returned,
    StopAt,
    Task,
    TaskId,
    Verdict,
)
from outrider.engine.node.notices.watcher import NAME_CHARS
from outrider.engine.node.worker_streams import WINDOW
from outrider.engine.observe.prints import PrintedLines
from outrider.engine.observe.task_logs import TaskLogs
from outrider.engine.serialization.client_streams import AHEAD, Values
from outrider.engine.serialization.payload import Blob, Part, Payload
from outrider.engine.transport import blob_transfers, link, verdicts
from outrider.engine.transport.blob_transfers import TransferProgress
from outrider.engine.transport.instance_views import InstanceViews
from outrider.engine.transport.link import NodeLink
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import ProtocolError, encode
from outrider.engine.wire.session import Session
from outrider.providers.base import MachineId, PreemptionNotice

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0


@pytest.mark.parametrize(
    ("cause", "code", "verdict"),
    [
        (wire.Cause.SIGNAL, 15, Verdict.TERMINATED),
        (wire.Cause.SIGNAL, 9, Verdict.TERMINATED),
        (wire.Cause.EXIT, 143, Verdict.TERMINATED),
        (wire.Cause.SIGNAL, 11, Verdict.DIED),
        (wire.Cause.EXIT, 3, Verdict.DIED),
        (wire.Cause.EXIT, 0, Verdict.DIED),
        (wire.Cause.MEMORY, 9, Verdict.DIED),
        (wire.Cause.TIMEOUT, 0, Verdict.TIMED_OUT),
        (wire.Cause.KILLED, 9, Verdict.KILLED),
    ],
)
def test_how_an_attempt_ended_without_a_word_is_told_by_its_cause(
    cause: wire.Cause, code: int, verdict: Verdict
) -> None:
    assert verdicts.verdict(wire.Ended(1, cause, code, "")) is verdict


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfers, "CHANNEL_PAUSE_S", 0.0)


class Bulk:
    """Channels that fail as often as they are told to."""

    def __init__(self) -> None:
        self.fails: dict[str, list[Exception]] = {}
        self.put_names: list[str] = []
        self.begun: Counter[str] = Counter()
        self.moves: Iterator[int] = repeat(0)
        self.stands_still: set[str] = set()

    async def put(self, blob: Blob, progress: TransferProgress) -> None:
        self.put_names.append(blob.name)
        await self._come(blob.name, progress)

    async def get(self, name: str, progress: TransferProgress) -> Part:
        await self._come(name, progress)
        return name.encode()

    async def _come(self, name: str, progress: TransferProgress) -> None:
        self.begun[name] += 1
        progress.moved(next(self.moves))
        if self.fails.get(name):
            raise self.fails[name].pop(0)
        if name in self.stands_still:
            await asyncio.Event().wait()


class Node:
    def __init__(self, *, same_host: bool = False) -> None:
        self.bulk, self.batches = Bulk(), asyncio.Queue[Sequence[Report]]()
        self.link = NodeLink(
            NodeId(0), Session(), machine=MachineId("m"), views=InstanceViews("pool", 1), same_host=same_host,
            bulk=self.bulk, reports=self.batches.put_nowait, prints=PrintedLines(lambda _: None),
            logs=TaskLogs(lambda: None),
        )  # fmt: skip
        self.link.session.resume(0)
        self.link.attach(lambda _: None)

    def run(self, attempt: int, **payload: Any) -> None:
        whole = Payload(f"task{attempt}", b"digest", b"code", wire.Value(b"", None), **payload)
        task = Task(TaskId(attempt), JobId(attempt), b"digest", whole, None, 3, False, None)
        self.link.run(Order(AttemptId(attempt), task, 1))

    def says(self, *messages: wire.Message) -> None:
        self.link.received(b"".join(map(encode, messages)))

    async def finished(self) -> list[Finished]:
        batch = await asyncio.wait_for(self.batches.get(), PATIENCE_S)
        return [report for report in batch if isinstance(report, Finished)]

    async def heard(self) -> list[Report]:
        return [*await asyncio.wait_for(self.batches.get(), PATIENCE_S)]


def closed() -> Exception:
    return ConnectionResetError("the channel was closed")


STREAM = int(wire.RunFlag.STREAM)


def done(attempt: int, blob: str) -> wire.Done:
    return wire.Done(attempt, wire.Value(b"", None, blob), 0)


SOME = wire.Value(b"forged", None)
OF_ATTEMPTS: dict[str, Callable[[int], wire.Message]] = {
    "Done": lambda attempt: wire.Done(attempt, SOME, 0),
    "Done in a blob": lambda attempt: done(attempt, "forged"),
    "Failed": lambda attempt: wire.Failed(attempt, "call", "ValueError", "", "", None, 0),
    "Ended": lambda attempt: wire.Ended(attempt, wire.Cause.KILLED, 0, ""),
    "Started": wire.Started,
    "Returned": lambda attempt: wire.Returned((attempt,)),
    "Yield": lambda attempt: wire.Yield(attempt, SOME),
    "Credit": lambda attempt: wire.Credit(attempt, 0, 1),
}


@pytest.mark.parametrize("says", OF_ATTEMPTS.values(), ids=OF_ATTEMPTS)
@pytest.mark.parametrize("attempt", [0, 2, 3, 2**63 - 1], ids=["none", "over", "another's", "never"])
async def test_a_node_is_not_heard_of_attempts_that_it_does_not_have(
    says: Callable[[int], wire.Message], attempt: int
) -> None:
    node = Node()
    node.run(1)
    node.run(2)
    node.says(wire.Done(2, SOME, 0))
    await node.heard()
    node.says(says(attempt), wire.Done(1, wire.Value(b"mine", None), 0))
    reports = [report for report in await node.heard() if report != Returned(())]
    assert [(report.attempt, report.outcome.data) for report in reports] == [(1, b"mine")]  # type: ignore[union-attr]


async def test_an_attempt_that_nobody_recalled_does_not_come_back() -> None:
    node = Node()
    node.run(1)
    node.run(2)
    node.link.recall([AttemptId(2)])
    node.says(wire.Returned((1, 2, 2)), wire.Done(1, wire.Value(b"mine", None), 0))
    returned, finished = await node.heard()
    assert returned == Returned((AttemptId(2),))
    assert isinstance(finished, Finished)


async def test_a_recall_that_crosses_the_result_is_not_remembered() -> None:
    node = Node()
    node.run(1)
    node.says(wire.Done(1, SOME, 0))
    node.link.recall([AttemptId(1)])  # the pool has not heard of the end yet
    assert not node.link._recalled


async def test_a_result_that_is_being_fetched_is_the_result() -> None:
    node = Node()
    node.bulk.fails["result"] = [closed()]
    node.run(1)
    node.says(done(1, "result"), done(1, "another"), wire.Done(1, SOME, 0))
    (report,) = await node.finished()
    assert report.outcome.data == b"result"
    assert all(fetch.done() for fetch in node.link._transfers.tasks)


async def test_an_attempt_that_waits_for_its_data_has_no_result_yet() -> None:
    node = Node()
    node.bulk.fails["argument"] = [closed()]
    node.run(1, blob=Blob("argument", [b"data"], 4))
    node.says(wire.Done(1, SOME, 0))
    assert node.batches.empty()
    while not node.bulk.put_names[1:]:
        await asyncio.sleep(0)
    await asyncio.wait([*node.link._transfers.tasks])
    node.says(wire.Done(1, wire.Value(b"mine", None), 0))
    (report,) = await node.finished()
    assert report.outcome.data == b"mine"


async def test_a_result_whose_channel_was_closed_is_fetched_on_another() -> None:
    node = Node()
    node.bulk.fails["result"] = [closed(), closed()]
    node.run(1)
    node.says(done(1, "result"))
    (report,) = await node.finished()
    assert (report.verdict, report.outcome.data) == (Verdict.RETURNED, b"result")


@pytest.mark.parametrize("errors", [[closed() for _ in range(99)], [LookupError("Missing")]], ids=["closed", "missing"])
async def test_a_result_that_cannot_be_fetched_is_its_tasks_failure(errors: list[Exception]) -> None:
    node = Node()
    node.bulk.fails["result"] = errors
    node.run(1)
    node.says(done(1, "result"))
    (report,) = await node.finished()
    failed, value = report.outcome
    assert (report.verdict, failed.phase, value) == (Verdict.RAISED, "fetch", None)


async def test_a_result_that_cannot_be_mapped_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: str) -> Part:
        raise OSError(errno.EMFILE, "Too many open files", path)

    monkeypatch.setattr(link, "map_shared", refused)
    node = Node(same_host=True)
    node.run(1)
    node.run(2)
    node.says(wire.Done(1, wire.Value(b"first", None, None), 0), done(2, "/proc/1/fd/3"))
    first, second = await node.finished()
    assert (first.verdict, first.outcome.data) == (Verdict.RETURNED, b"first")
    assert (second.verdict, second.outcome[0].phase) == (Verdict.RAISED, "fetch")


async def test_a_result_that_went_with_its_executor_is_left_to_the_nodes_loss() -> None:
    node = Node(same_host=True)
    node.run(1)
    node.run(2)
    node.says(done(1, "/proc/0/fd/3"), wire.Done(2, wire.Value(b"second", None, None), 0))
    (report,) = await node.finished()
    assert report.outcome.data == b"second"


async def test_an_argument_whose_channel_is_closed_again_and_again_is_its_tasks_failure() -> None:
    node = Node()
    node.bulk.fails["argument"] = [closed() for _ in range(99)]
    node.run(1, blob=Blob("argument", [b"data"], 4))
    (report,) = await node.finished()
    assert (report.verdict, report.outcome[0].phase) == (Verdict.RAISED, "send")
    assert len(node.bulk.put_names) == blob_transfers.CHANNEL_TRIES


async def test_an_argument_for_which_there_is_no_descriptor_is_its_tasks_failure_and_names_the_limit() -> None:
    node = Node()
    node.bulk.fails["argument"] = [OSError(errno.EMFILE, "Too many open files")]
    node.run(1, blob=Blob("argument", [b"data"], 4))
    (report,) = await node.finished()
    assert (report.verdict, report.outcome[0].phase) == (Verdict.RAISED, "send")
    assert "this program has no descriptors left, its limit is " in report.outcome[0].message


async def test_a_stream_leaves_no_value_out() -> None:
    node, output = Node(), Values()
    node.bulk.fails["b"] = [closed()]
    node.run(1, output=output, flags=STREAM)
    node.says(*(wire.Yield(1, wire.Value(b"", None, name)) for name in "abc"))
    assert [(await asyncio.wait_for(anext(output), PATIENCE_S)).data for _ in "abc"] == [b"a", b"b", b"c"]
    node.bulk.fails["d"] = [closed() for _ in range(99)]
    node.says(*(wire.Yield(1, wire.Value(b"", None, name)) for name in "de"))
    with pytest.raises(Exception, match=r"task1.*node 0"):
        await asyncio.wait_for(anext(output), PATIENCE_S)


async def test_a_generator_has_ended_when_its_values_are_here() -> None:
    node, output = Node(), Values()
    node.bulk.fails["a"] = [closed()]
    node.run(1, output=output, flags=STREAM)
    node.run(2)
    node.says(wire.Yield(1, wire.Value(b"", None, "a")), wire.Done(1, SOME, 0), wire.Done(2, SOME, 0))
    assert [report.attempt for report in await node.finished()] == [2]
    (report,) = await node.finished()
    assert (report.attempt, report.outcome.data) == (1, SOME.data)
    assert not node.link._items
    assert (await anext(output)).data == b"a"


async def test_a_generator_may_end_in_the_turn_in_which_its_last_value_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by random faults: nothing was left to wait for when the waiting began, and the end was never reported."""
    monkeypatch.setattr(link, "map_shared", lambda path: path.encode())
    node, output = Node(same_host=True), Values()
    node.run(1, output=output, flags=STREAM)
    node.says(wire.Yield(1, wire.Value(b"", None, "a")))
    asyncio.get_running_loop().call_soon(node.says, wire.Done(1, SOME, 0))
    (report,) = await node.finished()
    assert (report.attempt, report.outcome.data) == (1, SOME.data)


@pytest.mark.parametrize("end", [wire.Done(1, SOME, 0), wire.Failed(1, "call", "ValueError", "", "", None, 0)])
async def test_a_generator_whose_values_went_with_its_executor_is_left_to_the_nodes_loss(end: wire.Message) -> None:
    """Found by random faults: the stream ended after its first value as if there had been no more."""
    node, output = Node(same_host=True), Values()
    node.run(1, output=output, flags=STREAM)
    node.says(wire.Yield(1, wire.Value(b"a")), wire.Yield(1, wire.Value(b"", None, "/proc/0/fd/3")))
    for _ in range(9):
        await asyncio.sleep(0)  # its fetching has failed
    node.run(2)
    node.says(end, wire.Done(2, SOME, 0))
    assert [report.attempt for report in await node.finished()] == [2]
    for _ in range(9):
        await asyncio.sleep(0)
    assert node.batches.empty()
    assert 1 in node.link._orders
    assert (await anext(output)).data == b"a"


async def test_a_result_whose_connections_are_lost_again_and_again_is_its_tasks_failure() -> None:
    node = Node()
    node.bulk.stands_still.add("result")
    node.run(1)
    node.says(done(1, "result"))
    for begun in range(1, blob_transfers.CHANNEL_TRIES + 1):
        while node.bulk.begun["result"] < begun:
            await asyncio.sleep(0)
        node.link.detach()
        await asyncio.sleep(0)
        node.link.session.resume(node.link.session._acknowledged)
        node.link.attach(lambda _: None)
    (report,) = await node.finished()
    failed, _ = report.outcome
    assert (report.verdict, failed.phase, failed.kind) == (Verdict.RAISED, "fetch", "RuntimeError")
    assert node.bulk.begun["result"] == blob_transfers.CHANNEL_TRIES
    assert not node.link._transfers.moving


async def test_a_result_that_comes_further_each_time_is_waited_for() -> None:
    node = Node()
    node.bulk.moves = count(1)
    node.bulk.fails["result"] = [closed() for _ in range(3 * blob_transfers.CHANNEL_TRIES)]
    node.run(1)
    node.says(done(1, "result"))
    (report,) = await node.finished()
    assert (report.verdict, report.outcome.data) == (Verdict.RETURNED, b"result")
    assert not node.link._transfers.moving


async def test_a_generator_sends_no_more_than_it_was_granted() -> None:
    node, output = Node(), Values()
    node.run(1, output=output, flags=STREAM)
    node.run(2)
    value = wire.Yield(1, wire.Value(b"x"))
    with pytest.raises(ProtocolError, match="more values than it was granted"):
        node.says(wire.Done(2, wire.Value(b"mine", None), 0), *[value] * 5000)
    assert len(output._items) == AHEAD
    (report,) = await node.finished()
    assert report.outcome.data == b"mine"  # what came before is heard


async def test_a_generator_that_keeps_to_its_credit_may_send_for_ever() -> None:
    node, output = Node(), Values()
    node.run(1, output=output, flags=STREAM)
    for _ in range(20):
        node.says(*[wire.Yield(1, wire.Value(b"x"))] * AHEAD)
        for _ in range(AHEAD):
            await anext(output)
    assert not output._items


class Endless:
    """A feed that counts what it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def wanted(self, count: int, give: object) -> None:
        self.asked += count

    def stop(self) -> None:
        pass


@pytest.mark.parametrize("counts", [[2**60], [16, 1], [1] * 17], ids=str)
async def test_a_task_asks_for_no_more_items_than_may_be_on_their_way(counts: list[int]) -> None:
    node, feed = Node(), Endless()
    node.run(1, inputs=(feed,))
    with pytest.raises(ProtocolError, match="of at most 16 on the way"):
        node.says(*(wire.Credit(1, 0, count) for count in counts))
    assert feed.asked <= WINDOW


async def test_notices_of_the_provider_and_about_peers_are_sent_as_they_are() -> None:
    node, sent = Node(), list[wire.Message]()
    node.link.send = sent.append  # type: ignore[method-assign]
    notice = PreemptionNotice(MachineId("m"), "spot", 120.0)
    node.link.notify(notice)
    node.link.notify(notice, Peer(JobId(7), 2, 1, 3))
    node.link.notify(PreemptionNotice(MachineId("m"), "x" * 1000, None))
    node.link.stop_at(StopAt(JobId(7), 2, 40))
    assert sent == [
        wire.PreemptionNotice("spot", 120.0, None),
        wire.PreemptionNotice("spot", 120.0, wire.Peer(7, 2, 1, 3)),
        wire.PreemptionNotice("x" * NAME_CHARS, None, None),
        wire.StopAt(7, 2, 40),
    ]


async def test_a_node_gives_notice_of_its_own_machine_and_of_no_other() -> None:
    node = Node()
    node.says(wire.PreemptionNotice("file", 30.0))
    assert node.batches.get_nowait() == [PreemptionNotice(MachineId("m"), "file", 30.0)]
    with pytest.raises(ProtocolError):
        node.says(wire.PreemptionNotice("file", 30.0, wire.Peer(1, 1, 1, 1)))
    assert node.batches.empty()


async def test_what_runs_beside_the_slots_ends_once_with_its_link_and_at_once_on_one_that_is_closed() -> None:
    node, ends = Node(), asyncio.Queue[Finished | None]()
    payload = Payload("files", b"digest", b"code", wire.Value(b"", None))
    node.link.run_beside(payload, ends.put_nowait)
    node.link.close()
    assert ends.get_nowait() is None
    node.link.run_beside(payload, ends.put_nowait)
    assert await asyncio.wait_for(ends.get(), PATIENCE_S) is None
    assert ends.empty()
