"""`Pool.map`: many items through one function, several to a task where they are cheap."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypedDict, TypeVar, cast

from ...actors.interfaces import Ending, Settled, Verdict
from ..api.calls import Call
from ..api.compute import PLUGINS, AsyncCompute, Compute, SyncCompute
from ..serialization.error_translation import AttemptPlace, failed_error
from ..serialization.payload import Received
from ..serialization.program import AsyncChunk, Chunk, Raised
from ..serialization.streams import items_of
from ..wire import values
from .jobs import SubmittedJob

if TYPE_CHECKING:
    from ..api.compute import Options
    from ..serialization.payload import Payload
    from .open_pool import OpenPool

T = TypeVar("T")
TARGET_S = 0.004  # a chunk's running time: 20 times a trip's cost, and still 250 answers a second from each slot
GROWTH = 8  # at most so many times larger than the last: one quick item says little about the next
MOST = 4096  # items in a chunk
CHUNKS_PER_SLOT = 3  # one runs, one waits behind it, one is on its way back


MapItems = Iterable[Any] | AsyncIterable[Any]


class MapOptions(TypedDict, total=False):
    limit: int | None
    ordered: bool


class MapRun(Generic[T]):
    """One run of `Pool.map`: iterate over it for the results as they come, or await it for all of them in a list, once.

    Leaving the iteration early cancels what is under way.
    """

    def __init__(
        self,
        core: OpenPool,
        function: Compute[..., T],
        items: MapItems,
        *,
        limit: int | None,
        ordered: bool,
        slots: Callable[[], int],
    ) -> None:
        self._core, self._items, self._ordered, self._slots = core, items, ordered, slots
        self._limit = limit
        asynchronous = isinstance(function, AsyncCompute)
        self._options = options = function.options
        self._alone = options.timeout_s is not None or options.max_restarts > 0  # these are an item's, and a task's
        chunk = (AsyncChunk if asynchronous else Chunk)(function.function, alone=self._alone)
        setattr(chunk, PLUGINS, function.plugins)  # the user's integrations hold for the chunk as for the function
        make: type[Compute[..., Any]] = AsyncCompute if asynchronous else SyncCompute
        self._function: Compute[..., list[Any]] = make(chunk, self._options)

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._collected().__await__()

    async def _collected(self) -> list[T]:
        return [result async for chunk in self.chunks() for result in chunk]

    async def __aiter__(self) -> AsyncIterator[T]:
        chunks = self.chunks()
        try:
            async for chunk in chunks:
                for result in chunk:
                    yield result
        finally:
            await chunks.aclose()

    async def chunks(self) -> AsyncGenerator[list[T], None]:
        """Yield lists of results, with at most ``limit`` items between their iterator and the caller."""
        news = asyncio.Event()  # a chunk has landed, or there is one to send
        source, size = items_of(self._items, news), ChunkSize()
        waiting: deque[_SentChunk] = deque()
        under_way = 0
        try:
            while True:
                slots = self._slots()
                size.most = MOST if self._limit is None else max(1, self._limit // (2 * slots))
                if self._alone:
                    size.most = 1
                while len(waiting) < CHUNKS_PER_SLOT * slots:
                    room = size.now if self._limit is None else min(size.now, self._limit - under_way)
                    if room < 1:
                        break
                    items = source.take(room)
                    if not items:
                        break
                    under_way += len(items)
                    waiting.append(self._send(items, news))
                if not waiting and source.ended:
                    return
                sent = self._landed(waiting)
                if sent is None:
                    news.clear()
                    await news.wait()
                    continue
                results, error = sent.results()
                size.took(sent.count, sent.busy_s)
                yield results
                if error is not None:
                    raise error
                under_way -= sent.count
        finally:
            for sent in waiting:
                sent.cancel()
            await source.close()

    def _send(self, items: list[Any], news: asyncio.Event) -> _SentChunk:
        call: Call[list[Any]] = Call(self._function, (items,), {}, self._options)
        payload = self._core.packer.pack(call)
        sent = _SentChunk(self._core, payload, self._options, len(items), news)
        self._core.submit(sent, None, sent)
        return sent

    def _landed(self, waiting: deque[_SentChunk]) -> _SentChunk | None:
        """Take out the chunk whose results are due, if they are there: the oldest one, or (unordered) any."""
        for sent in waiting:
            if sent.done():
                waiting.remove(sent)
                return sent
            if self._ordered:
                break
        return None


class _SentChunk(SubmittedJob[list[Any]]):
    __slots__ = ("busy_s", "count", "news", "place")

    def __init__(self, core: OpenPool, payload: Payload, options: Options, count: int, news: asyncio.Event) -> None:
        super().__init__(core, payload, options)
        self.count, self.news, self.busy_s = count, news, 0.0
        self.place: AttemptPlace | None = None

    def __call__(self, ending: Ending) -> None:
        super().__call__(ending)
        if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            self.busy_s = cast("Received", ending.outcome).busy_s
            self.place = AttemptPlace(self.payload.name, int(ending.node), ending.rank, ending.number)
        self.news.set()

    def results(self) -> tuple[list[Any], Exception | None]:
        """Return the results up to the first item that failed, and that item's error."""
        results = self.result()
        if not results or not isinstance(results[-1], Raised):
            return results, None
        failed = results.pop().failed
        assert self.place is not None, "a result has come from somewhere"
        error = failed.error
        load = None if error is None else partial(values.load, error.data, error.sizes)
        return results, failed_error(failed, self.place, load)


@dataclass(slots=True)
class ChunkSize:
    """The number of items that one task gets. It starts at one, grows while chunks are quick, so that cheap items share
    a round trip, and shrinks at once when they are slow.
    """

    most: int = MOST
    now: int = 1
    _per_item_s: float | None = None

    def took(self, items: int, busy_s: float) -> None:
        each = max(busy_s / items, 1e-9)
        before = self._per_item_s
        self._per_item_s = each if before is None or each > before else 0.7 * before + 0.3 * each
        wanted = int(TARGET_S / self._per_item_s)
        self.now = max(1, min(wanted, self.now * GROWTH, self.most))
