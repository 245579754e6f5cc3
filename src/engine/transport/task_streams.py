"""The streams of one node's tasks: values that generators yield, and arguments that tasks request item by item.

Other data of an attempt on the node, such as its artifacts, is also fetched before the attempt's end is reported.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..api.errors import TaskFailed
from ..node.worker_streams import WINDOW
from ..objects.blob_transfers import BlobTransfers, is_lost
from ..serialization.payload import Blob
from ..wire import messages as wire
from ..wire import values
from ..wire.codec import ProtocolError

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload
    from ..wire.values import Dumped


class InputStream:
    """The items that a `streams.Source` sends to a task, in order. Their blobs on the node are dropped after use."""

    def __init__(self, transfers: BlobTransfers, attempt: int, stream: int) -> None:
        self._transfers, self._attempt, self._stream = transfers, attempt, stream
        self._sent = self._granted = 0
        self._blobs: deque[tuple[int, Blob]] = deque()  # (number of the item, its blob)

    async def give(self, item: Dumped | None, error: bytes | None = None) -> None:
        value = None
        if item is not None:
            value = values.inline(item) if item.total <= values.INLINE_BYTES else await self._place(item)
        self._sent += 1
        self._transfers.send(wire.Input(self._attempt, self._stream, value, error))

    async def _place(self, item: Dumped) -> wire.Value:
        blob = Blob(f"{self._attempt}.{self._stream}.{self._sent}", item.parts, item.total)
        self._blobs.append((self._sent, blob))
        await self._transfers.place(blob)
        return wire.Value(b"", item.sizes, blob.name)

    def granted(self, count: int) -> None:
        """Handle that the task requests ``count`` more items, and free items that the task has used.

        Of the items that the task has requested before, all but the last `WINDOW` have been used.
        """
        if self._granted + count - self._sent > WINDOW:
            raise ProtocolError(f"attempt {self._attempt} asks for {count} items more, of at most {WINDOW} on the way")
        self._granted += count
        while self._blobs and self._blobs[0][0] < self._granted - WINDOW:
            self._let_go(self._blobs.popleft()[1])

    def close(self) -> None:
        while self._blobs:
            self._let_go(self._blobs.popleft()[1])

    def _let_go(self, blob: Blob) -> None:
        blob.close()
        self._transfers.send(wire.Drop((blob.name,)))


class TaskStreams:
    """The streams of one node. ``orders``: its attempts; messages about other attempts are ignored."""

    def __init__(self, node: NodeId, orders: Mapping[int, Order], transfers: BlobTransfers) -> None:
        self._node, self._orders, self._transfers = node, orders, transfers
        self.fetches: dict[int, set[asyncio.Task[Received]]] = {}  # attempt -> its running or failed fetches
        self.credit: dict[int, int] = {}  # attempt -> number of values that its generator may still send
        self.inputs: dict[tuple[int, int], InputStream] = {}  # (attempt, number of the argument) -> its stream

    def yielded(self, attempt: int, item: wire.Value) -> None:
        """Handle a value of a generator. Raise a ProtocolError if the node had no credit for the value."""
        order = self._orders.get(attempt)
        if order is None:
            return  # the pool has ended the attempt: no caller waits for its values
        output = cast("Payload", order.task.content).output
        if output is None:
            return
        if not self.credit.get(attempt):
            raise ProtocolError(f"attempt {attempt} sends more values than it was granted")
        self.credit[attempt] -= 1
        here = item.blob is None
        received = self._transfers.arrived(item) if here else self.fetch_before_end(attempt, self.bring(order, item))
        output.of(order.rank).push(received, lambda count: self.grant(attempt, count))

    def grant(self, attempt: int, count: int) -> None:
        """Let a generator send ``count`` more values."""
        if attempt in self._orders:
            self.credit[attempt] = self.credit.get(attempt, 0) + count
            self._transfers.send(wire.Credit(attempt, -1, count))

    def wanted(self, attempt: int, stream: int, count: int) -> None:
        """Handle that a task requests ``count`` more items of an argument."""
        order = self._orders.get(attempt)
        inputs = () if order is None else cast("Payload", order.task.content).inputs
        if stream not in range(len(inputs)) or not count:
            # The attempt was ended by the pool, or the request is invalid: ignore the request, but not the node.
            return
        feed = self.inputs.setdefault((attempt, stream), InputStream(self._transfers, attempt, stream))
        feed.granted(count)
        inputs[stream].wanted(count, feed.give)

    def fetch_before_end(self, attempt: int, work: Coroutine[Any, Any, Received]) -> asyncio.Task[Received]:
        """Fetch data that an attempt has left on the node. The attempt's end waits while the fetch is in `fetches`."""
        fetches = self.fetches.setdefault(attempt, set())
        fetching = asyncio.get_running_loop().create_task(work)
        fetches.add(fetching)
        fetching.add_done_callback(lambda task: None if is_lost(task) else fetches.discard(task))
        return fetching

    async def bring(self, order: Order, item: wire.Value, most_bytes: int | None = None) -> Received:
        """Return a value of an attempt that the node sends as a blob. Raise a ConnectionError if the node is lost."""
        try:
            return await self._transfers.bring(item, 0, most_bytes)
        except ConnectionError:
            raise
        except Exception as error:
            name = cast("Payload", order.task.content).name
            story = f"a value of {name} could not be fetched from node {self._node}: {type(error).__name__}: {error}"
            facts: dict[str, Any] = {"task": name, "node": self._node, "rank": order.rank, "attempt": order.number}
            raise TaskFailed(story, kind=type(error).__name__, **facts) from error

    def over(self, order: Order) -> None:
        """End the streamed arguments of an attempt that has ended."""
        for stream, items in enumerate(cast("Payload", order.task.content).inputs):
            items.stop()
            feed = self.inputs.pop((order.attempt, stream), None)
            if feed is not None:
                feed.close()
