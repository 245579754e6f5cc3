"""Streams of tasks against a node that is played: every value comes, no more than was granted, and no end before it."""

from __future__ import annotations

import asyncio

import pytest

from outrider.engine.node.worker_streams import WINDOW
from outrider.engine.objects import blob_transfers
from outrider.engine.serialization.client_streams import AHEAD, Values
from outrider.engine.wire import messages as wire
from outrider.engine.wire.codec import ProtocolError

from .played_node import PATIENCE_S, SOME, Node, closed

pytestmark = pytest.mark.anyio
STREAM = int(wire.RunFlag.STREAM)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfers, "CHANNEL_PAUSE_S", 0.0)


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
    assert not node.link._streams.fetches
    assert (await anext(output)).data == b"a"


async def test_a_generator_may_end_in_the_turn_in_which_its_last_value_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by random faults: nothing was left to wait for when the waiting began, and the end was never reported."""
    monkeypatch.setattr(blob_transfers, "map_shared", lambda path: path.encode())
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
    assert 1 in node.link.orders
    assert (await anext(output)).data == b"a"


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
