"""What a node's link says to the pool: of ends, of recalls, of notices, and when a channel fails by itself."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from itertools import count

import pytest

from outrider.actors.interfaces import (
    AttemptId,
    Finished,
    JobId,
    Peer,
    Returned,
    StopAt,
    Verdict,
)
from outrider.engine.node.notices.watcher import NAME_CHARS
from outrider.engine.objects import blob_transfers
from outrider.engine.serialization.payload import Blob, Part
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.transport import node_reports
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import ProtocolError, Splitter, decode
from outrider.engine.wire.session import attempt_digest
from outrider.providers.base import MachineId, PreemptionNotice

from .played_node import PATIENCE_S, SOME, Node, closed, done

pytestmark = pytest.mark.anyio


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
    assert node_reports.verdict(wire.Ended(1, cause, code, "")) is verdict


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfers, "CHANNEL_PAUSE_S", 0.0)


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
    assert not node.link._attempts.recalled


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

    monkeypatch.setattr(blob_transfers, "map_shared", refused)
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


async def test_end_of_an_internal_task_goes_to_its_callback_alone() -> None:
    node, ends = Node(), asyncio.Queue[Finished | None]()
    node.run(1)
    internal = node.link.run_beside(Payload("files", b"digest", b"code", wire.Value(b"", None)), ends.put_nowait)
    node.says(wire.Done(internal, SOME, 0), wire.Done(1, SOME, 0))
    assert [report.attempt for report in await node.finished()] == [1]
    ended = ends.get_nowait()
    assert ended is not None
    assert ended.attempt == internal


def compared(node: Node) -> list[wire.Message]:
    """Return the comparisons that the node has been sent."""
    node.link.flush()
    messages = map(decode, Splitter().feed(b"".join(node.written)))
    return [message for message in messages if isinstance(message, wire.Compare)]


def pong(number: int, *attempts: int) -> wire.Pong:
    return wire.Pong(number, 0, 0, attempt_digest(attempts))


async def test_node_that_has_all_attempts_is_sent_no_list() -> None:
    node = Node()
    node.run(1)
    node.run(2)
    node.link.ping(1)
    node.run(3)  # behind the ping
    node.says(wire.Done(1, SOME, 0), pong(1, 2))
    node.link.ping(2)
    node.says(pong(2, 2, 3))
    assert compared(node) == []


@pytest.mark.parametrize("has", [(), (2,), (1, 2, 3)])
async def test_node_that_has_other_attempts_is_sent_the_list(has: tuple[int, ...]) -> None:
    node = Node()
    node.run(1)
    node.run(2)
    node.link.ping(1)
    node.says(pong(1, *has))
    assert compared(node) == [wire.Compare((1, 2))]


async def test_pong_of_an_earlier_connection_compares_nothing() -> None:
    node = Node()
    node.run(1)
    node.link.ping(1)
    node.link.detach()
    node.link.session.resume(2)
    node.link.attach(node.written.append)
    node.says(pong(1))
    assert compared(node) == []


async def test_node_that_does_not_have_an_attempt_is_lost() -> None:
    node = Node()
    node.run(1)
    with pytest.raises(ProtocolError, match="does not have attempt 1"):
        node.says(wire.Ended(1, wire.Cause.UNKNOWN, 0, ""))
    node.says(wire.Ended(2, wire.Cause.UNKNOWN, 0, ""))  # which has ended meanwhile
