"""`Pool.map`: many items through one function, several to a task where they are cheap."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
)
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, cast

from ..actors.ports import Ending, Settled, Verdict
from .calls import Call
from .executor.failure import failed
from .jobs import SubmittedJob
from .payload import Received
from .sizing import MOST, ChunkSize
from .task import PLUGINS, AsyncCompute, Compute, SyncCompute
from .translate import Place, failed_error
from .wire import values
from .wire.messages import Failed

if TYPE_CHECKING:
    from .core import Core

T = TypeVar("T")
CHUNKS_PER_SLOT = 3  # one runs, one waits behind it, one is on its way back
PULL_S = 0.002  # a chunk leaves unfilled when its items take longer than this to come


class Raised(NamedTuple):
    """An item's error in a chunk's result."""

    failed: Failed


def _failed(error: Exception) -> Failed:
    """Without a blob: an exception too large for a frame travels as its text."""
    said, blob = failed(0, "call", error)
    for fd in blob:
        os.close(fd)
    return said._replace(error=None) if blob else said


class Chunk:
    """The function of a map's tasks: the user's, for one item after another."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__module__ = function.__module__  # where the user's code is: `source` decides by it how it travels
        self.__qualname__ = f"{self.__name__}.<map>"  # and finds nothing of this name there

    def __call__(self, items: list[Any]) -> list[Any]:
        function = self.function
        results: list[Any] = []
        try:
            for item in items:
                results.append(function(item))  # noqa: PERF401  what came before an error is kept
        except Exception as error:  # noqa: BLE001  it is the item's, and raised where its result would be
            results.append(Raised(_failed(error)))
        return results


class AsyncChunk(Chunk):
    """The same for an ``async def``."""

    async def __call__(self, items: list[Any]) -> list[Any]:  # type: ignore[override]
        results: list[Any] = []
        try:
            for item in items:
                results.append(await self.function(item))  # noqa: PERF401
        except Exception as error:  # noqa: BLE001
            results.append(Raised(_failed(error)))
        return results


class MapRun(Generic[T]):
    """Iterate over it for the results as they come, or await it for all of them in a list. Once.

    Leaving the iteration early cancels what is under way.
    """

    def __init__(self, core: Core, function: Compute[..., T], items: Iterable[Any] | AsyncIterable[Any], *,
                 limit: int | None, ordered: bool, slots: Callable[[], int]) -> None:  # fmt: skip
        self._core, self._items, self._ordered, self._slots = core, items, ordered, slots
        self._limit = limit
        asynchronous = isinstance(function, AsyncCompute)
        chunk = (AsyncChunk if asynchronous else Chunk)(function.function)
        setattr(chunk, PLUGINS, function.plugins)  # the user's integrations hold for the chunk as for the function
        self._options = function.options
        make: type[Compute[..., Any]] = AsyncCompute if asynchronous else SyncCompute
        self._function: Compute[..., list[Any]] = make(chunk, self._options)

    def __aiter__(self) -> AsyncIterator[T]:
        return self._results()

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._collect().__await__()

    async def _collect(self) -> list[T]:
        results: list[T] = []
        async for chunk in self.chunks():
            results.extend(chunk)
        return results

    async def _results(self) -> AsyncIterator[T]:
        chunks = self.chunks()
        try:
            async for chunk in chunks:
                for result in chunk:
                    yield result
        finally:
            await chunks.aclose()

    async def chunks(self) -> AsyncGenerator[list[T], None]:
        """Lists of results. Keeps the pool busy, and at most ``limit`` items between their iterator and the caller."""
        source, size = _Source(self._items), ChunkSize()
        waiting: deque[_Sent[T]] = deque()
        under_way = 0
        landed = asyncio.Event()
        try:
            while True:
                slots = self._slots()
                size.most = MOST if self._limit is None else max(1, self._limit // (2 * slots))
                if self._options.timeout_s is not None:
                    size.most = 1  # it is an item's timeout, and a task's
                while not source.ended and len(waiting) < CHUNKS_PER_SLOT * slots:
                    room = size.now if self._limit is None else min(size.now, self._limit - under_way)
                    if room < 1:
                        break
                    items = await source.take(room)
                    if not items:
                        break
                    under_way += len(items)
                    waiting.append(self._send(items, landed))
                if not waiting:
                    return
                sent = await self._next(waiting, landed)
                results, error = sent.results()
                size.took(sent.count, sent.busy_s)
                yield results
                if error is not None:
                    raise error
                under_way -= sent.count
        finally:
            for sent in waiting:
                sent.job.cancel()
            await source.close()

    def _send(self, items: list[Any], landed: asyncio.Event) -> _Sent[T]:
        call: Call[list[Any]] = Call(self._function, (items,), {}, self._options)
        payload = self._core.pack(call)
        job: SubmittedJob[list[Any]] = SubmittedJob(self._core, payload, self._options)
        sent: _Sent[T] = _Sent(job, len(items), landed)
        self._core.submit(job.id, payload, self._options, None, sent.settle)
        return sent

    async def _next(self, waiting: deque[_Sent[T]], landed: asyncio.Event) -> _Sent[T]:
        """The chunk whose results are due: the oldest, or (unordered) one that is there."""
        while True:
            if self._ordered:
                if waiting[0].job.done():
                    return waiting.popleft()
            else:
                for sent in waiting:
                    if sent.job.done():
                        waiting.remove(sent)
                        return sent
            landed.clear()
            await landed.wait()


class _Sent(Generic[T]):
    """One chunk under way."""

    __slots__ = ("busy_s", "count", "job", "landed", "place")

    def __init__(self, job: SubmittedJob[list[Any]], count: int, landed: asyncio.Event) -> None:
        self.job, self.count, self.landed, self.busy_s = job, count, landed, 0.0
        self.place: Place | None = None

    def settle(self, ending: Ending) -> None:
        self.job(ending)
        if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            self.busy_s = cast("Received", ending.outcome).busy_s
            self.place = Place(self.job.payload.name, int(ending.node), ending.rank, ending.number)
        self.landed.set()

    def results(self) -> tuple[list[T], Exception | None]:
        """Up to the first item that failed, and its error."""
        results: list[Any] = self.job.result()
        if not results or not isinstance(results[-1], Raised):
            return results, None
        failed = results.pop().failed
        assert self.place is not None, "a result has come from somewhere"
        error = failed.error
        load = None if error is None else partial(values.load, error.data, error.sizes)
        return results, failed_error(failed, self.place, load)


class _Source:
    """The user's items, a chunk at a time, whatever kind of iterable they are."""

    def __init__(self, items: Iterable[Any] | AsyncIterable[Any]) -> None:
        self._async = aiter(items) if isinstance(items, AsyncIterable) else None
        self._sync: Iterator[Any] = iter(()) if isinstance(items, AsyncIterable) else iter(items)
        self.ended = False

    async def take(self, count: int) -> list[Any]:
        items: list[Any] = []
        began = time.monotonic()
        while len(items) < count and (not items or time.monotonic() - began < PULL_S):
            try:
                items.append(next(self._sync) if self._async is None else await anext(self._async))
            except (StopIteration, StopAsyncIteration):
                self.ended = True
                break
        return items

    async def close(self) -> None:
        close = getattr(self._async, "aclose", None)
        if close is not None:
            await cast("Callable[[], Coroutine[Any, Any, None]]", close)()
