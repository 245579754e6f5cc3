"""An argument that is streamed to a running task, item by item."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ..node.worker_streams import WINDOW
from ..serialization.payload import Blob
from ..wire import messages as wire
from ..wire import values
from ..wire.codec import ProtocolError

if TYPE_CHECKING:
    from ..objects.blob_transfers import BlobTransfers
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
