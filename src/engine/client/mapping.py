"""Many calls of which a bounded number is submitted at a time: `Pool.map` and `Pool.as_completed`.

`Pool.map` calls a function with each of many items; cheap items share a task. `Pool.as_completed` runs any number of
calls, and yields each result as soon as it is ready. Both pickle each item or call as soon as the caller's iterator
yields it (`ItemFreezer`, `CallFreezer`): the iterator may change it when it is advanced.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Sized,
)
from contextlib import aclosing
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, Required, TypedDict, TypeVar, cast

from ...actors.events import MapProgress
from ...actors.interfaces import Ending, GaveUp, JobId, Reason, Settled, Verdict
from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple
from ..api.calls import Call, pending
from ..api.compute import PLUGINS, AsyncCompute, Compute, SyncCompute
from ..api.errors import ItemOutcome, NotACall, SerializationError, SetupFailed
from ..api.misuse import no_option
from ..api.pending_base import Pending, short, shown
from ..api.tracebacks import cut
from ..serialization.client_streams import Blocking, items_of, marked_blocking
from ..serialization.error_notes import AttemptPlace
from ..serialization.error_translation import failed_error
from ..serialization.frozen_items import FrozenItem, is_fixed_value
from ..serialization.payload import Received
from ..serialization.program import AsyncChunk, Chunk, Raised
from ..wire import values
from .jobs import SubmittedJob

if TYPE_CHECKING:
    from ..api.task_options import Options
    from ..serialization.frozen_items import ItemPickler
    from ..serialization.task_payload import Payload
    from .job_intake import JobIntake


Arrival = tuple[Any, Callable[[], None] | None]  # the type of the result of `client_streams.Freezer.pack`


@dataclass(frozen=True, slots=True)
class LoneItem:
    """A large item of a map, which gets a task of its own, already packed."""

    kind: type
    payload: Payload

    def __repr__(self) -> str:
        return f"<{self.kind.__name__}>"


@dataclass(frozen=True, slots=True)
class ArrivedCall:
    """A packed call of `as_completed`."""

    payload: Payload
    options: Options


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that cannot be pickled, or a value that was passed where a call is required."""

    kind: type
    error: Exception

    def __repr__(self) -> str:
        return f"<{self.kind.__name__}>"


class ItemFreezer:
    """Implements `Freezer` for the items of a map."""

    def __init__(self, core: JobIntake, call_of: Callable[[list[Any]], Call[Any]]) -> None:
        """``call_of``: takes a list of items, and returns the call of a task for these items."""
        self._core, self._call_of = core, call_of
        self._pickler: ItemPickler | None = None

    def freeze(self, item: Any) -> Any:
        if is_fixed_value(item):
            return item
        return None if self._pickler is None else self._pickler(item)

    def pack(self, item: Any) -> Arrival:
        call, packer = self._call_of([item]), self._core.packer
        if self._pickler is None:
            self._pickler = packer.item_pickler(call.function)
            if (frozen := self._pickler(item)) is not None:
                return frozen, None
        try:
            payload = packer.pack(call)
        except (SerializationError, NotACall) as error:
            return Refused(type(item), error), None
        return LoneItem(type(item), payload), _copying(payload)


class CallFreezer:
    """Implements `Freezer` for the calls of `as_completed`."""

    def __init__(self, core: JobIntake) -> None:
        self._core = core

    def freeze(self, call: Any) -> Any:
        if type(call) is not Call:
            return None
        is_fixed = all(map(is_fixed_value, call.args)) and all(map(is_fixed_value, call.kwargs.values()))
        return call if is_fixed else None

    def pack(self, call: Any) -> Arrival:
        try:
            packed = pending(call)
            payload = self._core.packer.pack(packed)
        except (SerializationError, NotACall) as error:
            return Refused(type(call), error), None
        return ArrivedCall(payload, packed.options), _copying(payload)


def _copying(payload: Payload) -> Callable[[], None] | None:
    return payload.own if payload.borrowed_bytes else None


_APART = frozenset({LoneItem, Refused, FrozenItem})  # types of the items that may need a task of their own


def by_task(items: Sequence[Any]) -> list[list[Any]]:
    """Split items into one list for each task. A large item gets a task of its own."""
    try:
        shared = _APART.isdisjoint(map(type, items))
    except TypeError:  # a class of the user's whose metaclass cannot be hashed
        shared = False
    if shared and items:
        return [list(items)]
    tasks: list[list[Any]] = []
    joins = False  # True if the next item may be added to the last task
    for item in items:
        alone = type(item) in (LoneItem, Refused) or (type(item) is FrozenItem and item.is_large)
        if joins and not alone:
            tasks[-1].append(item)
        else:
            tasks.append([item])
        joins = not alone
    return tasks


T = TypeVar("T")
# aimed running time of a task: 20 times the cost of a round trip, and still 250 results per second from each slot
TARGET_S = 0.004
GROWTH = 8  # most growth from one task to the next in number of items: one quick item says little about the next
MOST = 4096  # most items in a task
CHUNKS_PER_SLOT = 3  # tasks for each slot: one runs, one waits for the slot, the result of one is on its way back


MapItems = Iterable[Any] | AsyncIterable[Any]
ErrorsOption = Literal["raise", "return"]
# reasons of a task's end that may be the fault of one of its items; all other reasons are the fault of the pool
OF_ITEMS = {Reason.LOST, Reason.QUARANTINED, Reason.QUEUE_TIMEOUT, Reason.DEADLINE}


class MapOptions(TypedDict, total=False):
    limit: int | None
    ordered: bool
    errors: Literal["raise"]


class OutcomesMapOptions(TypedDict, total=False):
    limit: int | None
    ordered: bool
    errors: Required[Literal["return"]]


def check_map(
    function: object, items: object, more: Sequence[object] = (), options: Mapping[str, object] = MappingProxyType({})
) -> None:
    """Check the arguments of `Pool.map`; the error suggests what to write. ``options``: unknown keyword arguments.

    Raises:
        NotACall
    """
    if options:
        raise no_option("map", getattr(function, "__name__", "f"), [*options])
    if isinstance(function, Pending):
        raise NotACall(f"pool.map takes a function and the items to call it with, not the call {function.code}")
    if not callable(function):
        swapped = f"the function first: pool.map({getattr(items, '__name__', 'function')}, items)"
        raise NotACall(f"pool.map takes {swapped if callable(items) else f'a function, not {shown(function)}'}")
    if isinstance(items, Pending):
        raise NotACall(f"{items.code} has not run: give pool.map its result")
    if more:
        raise NotACall(
            "pool.map calls the function with one item of one iterable: give it zip(...) of several and let the "
            "function take a tuple, or use pool.as_completed(function(a, b) for a, b in zip(...))"
        )
    if not isinstance(items, Iterable | AsyncIterable | Blocking) and not hasattr(items, "__getitem__"):
        raise NotACall(f"pool.map takes the items to call the function with, one by one, not {shown(items)}")


class MapRun(Generic[T]):
    """One run of `Pool.map`: iterate over it for each result as it arrives, or await it for a list of all results.

    Either can be done once.

    Leaving the iteration early cancels the running tasks.
    """

    def __init__(
        self,
        core: JobIntake,
        function: Compute[..., T],
        items: MapItems,
        *,
        limit: int | None,
        ordered: bool,
        errors: ErrorsOption,
        slots: Callable[[], int],
    ) -> None:
        self._core, self._items, self._ordered, self._slots = core, items, ordered, slots
        self._limit = limit
        self._returns_errors = errors == "return"
        self._failed = 0
        asynchronous = isinstance(function, AsyncCompute)
        self._options = options = function.options
        limited = options.timeout_s is not None or options.deadline_s is not None
        # True: each item gets a task of its own, because these options are meant for one item but apply to a task
        self._alone = limited or options.max_restarts > 0
        if self._returns_errors and (options.at_most_once or not options.retries):
            self._alone = True  # if an item kills its task, no other item may have to run again
        chunk = (AsyncChunk if asynchronous else Chunk)(
            function.function, alone=self._alone, goes_on=self._returns_errors
        )
        setattr(chunk, PLUGINS, function.plugins)  # the function's plugins apply to the chunk's task, too
        make: type[Compute[..., Any]] = AsyncCompute if asynchronous else SyncCompute
        self._function: Compute[..., list[Any]] = make(chunk, self._options)
        self._self_args = function.self_args  # the object of a method; it is sent once per task, not once per item
        self._function.takes_self = bool(self._self_args)

    def __repr__(self) -> str:
        return f"<pool.map({self._function.__name__}, ...): await it for a list, or iterate over it by async for>"

    if not TYPE_CHECKING:

        def __iter__(self) -> NoReturn:
            raise NotACall(
                "This pool was opened by `async with`: write `async for ... in pool.map(...)`, or for a list "
                "`await pool.map(...)`."
            )

    def __await__(self) -> Generator[Any, None, list[T]]:
        return self._collected().__await__()

    async def _collected(self) -> list[T]:
        try:
            return [result async for chunk in self.chunks() for result in chunk]
        except Exception as error:
            cut(error)
            raise

    async def __aiter__(self) -> AsyncIterator[T]:
        chunks = self.chunks()
        try:
            async for chunk in chunks:
                for result in chunk:
                    yield result
        except Exception as error:
            cut(error)
            raise
        finally:
            await chunks.aclose()

    async def chunks(self) -> AsyncGenerator[list[T], None]:
        """Yield lists of results, with at most ``limit`` items taken from the iterator and not yet delivered to the
        caller.
        """
        observe = partial(
            self._observe, self._core.new_job(), len(self._items) if isinstance(self._items, Sized) else None
        )
        news = asyncio.Event()  # set when a task has ended, or an item is ready to send
        source, size = items_of(self._items, news, ItemFreezer(self._core, self._call_of)), ChunkSize()
        waiting: deque[_SentChunk | _UnsentItem] = deque()
        under_way = taken = 0
        observe(0)
        try:
            while True:
                slots = self._slots()
                size.most = MOST if self._limit is None else max(1, self._limit // (2 * slots))
                if self._alone:
                    size.most = 1
                while len(waiting) < CHUNKS_PER_SLOT * slots:
                    room = size.now if self._limit is None else min(size.now, self._limit - under_way)
                    items = source.take(room) if room > 0 else []
                    if not items:
                        break
                    for part in _Part(taken, items).by_task():
                        await self._send(part, news, waiting)
                    under_way += len(items)
                    taken += len(items)
                if not waiting and source.is_exhausted():
                    return
                sent = self._landed(waiting)
                if sent is None:
                    news.clear()
                    await news.wait()
                    continue
                await sent.load_if_long()
                if self._returns_errors and sent.hides_the_culprit():
                    size.now = 1
                    await self._send_alone_first(sent.part, news, waiting)
                    continue
                results, error = sent.outcomes() if self._returns_errors else sent.results()
                if sent.busy_s is not None:
                    size.took(len(sent.part.items), sent.busy_s)
                under_way -= len(sent.part.items)
                self._failed += _failures(results) if self._returns_errors else 0
                observe(taken - under_way)
                yield results
                if error is not None:
                    raise error
        finally:
            observe(taken - under_way, ended=True)
            for sent in waiting:
                sent.cancel()
            await source.close()

    def _observe(self, job: JobId, total: int | None, done: int, *, ended: bool = False) -> None:
        if self._core.observer.jobs:
            self._core.observer(MapProgress(job, self._function.__name__, done, total, ended, self._failed))

    def _call_of(self, items: list[Any]) -> Call[list[Any]]:
        return Call(self._function, (*self._self_args, items), {}, self._options)

    async def _send(self, part: _Part, news: asyncio.Event, waiting: deque[_SentChunk | _UnsentItem]) -> None:
        """Send the items as one task, or one by one if they cannot all be pickled.

        Each task is added to ``waiting`` as soon as it is submitted, because the end of the map cancels all tasks in
        ``waiting``.
        """
        try:
            payload = self._payload(part)
        except (SerializationError, NotACall) as error:  # an item cannot be pickled, or is a call without a result yet
            if len(part.items) == 1:
                waiting.append(_UnsentItem(part.naming(error, self._function.__name__), part))
                return
            for each in part.one_by_one():
                await self._send(each, news, waiting)
            return
        await self._core.own(payload)
        sent = _SentChunk(self._core, payload, self._options, part, news)
        self._core.submit(sent, None, sent)
        waiting.append(sent)

    def _payload(self, part: _Part) -> Payload:
        match part.items[0]:
            case LoneItem(payload=payload):
                return payload
            case Refused(error=error):
                raise error
            case _:
                return self._core.packer.pack(self._call_of(part.items))

    async def _send_alone_first(
        self, part: _Part, news: asyncio.Event, waiting: deque[_SentChunk | _UnsentItem]
    ) -> None:
        """Send the items one by one, and put their tasks in front of all others in ``waiting``."""
        alone: deque[_SentChunk | _UnsentItem] = deque()
        try:
            for each in part.one_by_one():
                await self._send(each, news, alone)
        finally:
            waiting.extendleft(reversed(alone))

    def _landed(self, waiting: deque[_SentChunk | _UnsentItem]) -> _SentChunk | _UnsentItem | None:
        """Remove and return a finished task whose results are to be delivered next: only the oldest if the map is
        ordered, else any. None: no such task is finished.
        """
        for sent in waiting:
            if sent.done():
                waiting.remove(sent)
                return sent
            if self._ordered:
                break
        return None


class _Part(NamedTuple):
    """Consecutive items of a map. ``first``: the index of the first of them, from 0."""

    first: int
    items: list[Any]

    def one_by_one(self) -> Iterator[_Part]:
        return (_Part(number, [item]) for number, item in enumerate(self.items, self.first))

    def by_task(self) -> Iterator[_Part]:
        first = self.first
        for items in by_task(self.items):
            yield _Part(first, items)
            first += len(items)

    def naming(self, error: Exception, function: str) -> Exception:
        """Return the error with a note that names the failed item, or the items of the failed task."""
        if len(self.items) == 1:
            error.add_note(f"item {self.first} of the map, {function}({short.repr(self.items[0])})")
        else:
            last = self.first + len(self.items) - 1
            error.add_note(f"one of the items {self.first} to {last} of the map, which shared a task of {function}")
        return error


class _SentChunk(SubmittedJob[list[Any]]):
    """The task of a part of the items. ``busy_s``: how long it ran; None until it has returned."""

    __slots__ = ("_attempt", "busy_s", "news", "part")

    def __init__(self, core: JobIntake, payload: Payload, options: Options, part: _Part, news: asyncio.Event) -> None:
        super().__init__(core, payload, options)
        self.part, self.news = part, news
        self.busy_s: float | None = None

    def __call__(self, ending: Ending) -> None:
        super().__call__(ending)
        if isinstance(ending, Settled) and ending.verdict is Verdict.RETURNED:
            self.busy_s = cast("Received", ending.outcome).busy_s
            self._attempt = int(ending.node), ending.rank, ending.number
        self.news.set()

    def results(self) -> tuple[list[Any], Exception | None]:
        """Return the results up to the first item that failed, and that item's error."""
        failure = self._failure()
        if failure is not None:
            return [], self.part.naming(failure, self.payload.name)
        results = self.result()
        if not results or not isinstance(results[-1], Raised):
            return results, None
        return results, self._error(len(results) - 1, results.pop())

    def outcomes(self) -> tuple[list[Any], Exception | None]:
        """Return the `ItemOutcome` of each item, and an error if the pool itself has failed."""
        failure = self._failure()
        if failure is None:
            return [self._outcome(place, result) for place, result in enumerate(self.result())], None
        if not self._is_of_items():
            return [], failure
        return [
            ItemOutcome(each.first, error=each.naming(self._failure() or failure, self.payload.name))
            for each in self.part.one_by_one()
        ], None

    def hides_the_culprit(self) -> bool:
        """Return whether one of several items may have made the whole task fail, for example by killing its process."""
        if len(self.part.items) == 1 or self._failure() is None or not self._is_of_items():
            return False
        # after a queue timeout, the task never ran
        return not (isinstance(self.ending, GaveUp) and self.ending.reason is Reason.QUEUE_TIMEOUT)

    def _is_of_items(self) -> bool:
        if isinstance(self.ending, GaveUp):
            return self.ending.reason in OF_ITEMS
        return not isinstance(self._failure(), SetupFailed)  # after a failed setup, no item has begun, and none will

    def _failure(self) -> Exception | None:
        """Return a new copy of the task's error; None: the task has returned."""
        try:
            self.result()
        except Exception as error:  # noqa: BLE001  its caller hands it on
            return error
        return None

    def _outcome(self, place: int, result: Any) -> ItemOutcome[Any]:
        if isinstance(result, Raised):
            return ItemOutcome(self.part.first + place, error=self._error(place, result))
        return ItemOutcome(self.part.first + place, result)

    def _error(self, place: int, raised: Raised) -> Exception:
        """Return the error of the item at this index of the part."""
        (node, rank, number), failed = self._attempt, raised.failed
        where = AttemptPlace(self.payload.name, node, rank, number)
        self._core.observer.item_failed(self.id, self.payload.name, self.part.first + place, failed, node)
        load = None if failed.error is None else partial(values.load, failed.error.data, failed.error.sizes)
        item = _Part(self.part.first + place, [self.part.items[place]])
        return item.naming(failed_error(failed, where, load), self.payload.name)


class _UnsentItem(NamedTuple):
    """An item that cannot be pickled; stands in the queue in place of its task."""

    error: Exception
    part: _Part
    busy_s: None = None

    def done(self) -> bool:
        return True

    def cancel(self) -> bool:
        return False

    async def load_if_long(self) -> None:
        return

    def hides_the_culprit(self) -> bool:
        return False

    def results(self) -> tuple[list[Any], Exception]:
        return [], self.error

    def outcomes(self) -> tuple[list[Any], None]:
        return [ItemOutcome(self.part.first, error=self.error)], None


def _failures(outcomes: Sequence[Any]) -> int:
    return sum(isinstance(each, ItemOutcome) and each.error is not None for each in outcomes)


@dataclass(slots=True)
class ChunkSize:
    """The number of items per task.

    It starts at one, grows while tasks are quick, so that cheap items share a round trip, and shrinks at once when
    tasks are slow.
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


Calls = Iterable[Call[Any]] | AsyncIterable[Call[Any]]
TURN = 32  # calls to submit before the event loop gets a turn for other work: about a millisecond
LIMIT = 1_000  # most calls submitted at a time, if the caller gives no limit
# calls submitted at a time for each slot of the pool, if that makes more than `LIMIT`: one call runs, one waits for the
# slot, and two are in transit
PER_SLOT = 4


def checked_calls(calls: Calls, *, may_block: bool) -> Calls | Blocking:
    """Check calls, and return them in the form that `CompletedCalls` takes.

    ``may_block``: advance a plain iterator in a thread, because it may block.

    Raises:
        NotACall: the argument is not an iterable of calls.
    """
    if isinstance(calls, Pending):
        raise NotACall(f"pool.as_completed takes the calls one by one: give it [{calls.code}], or an iterator of calls")
    if not isinstance(calls, Iterable | AsyncIterable):
        raise NotACall(f"pool.as_completed takes an iterable of calls, not {shown(calls)}")
    return marked_blocking(calls) if may_block else calls


class CompletedCalls:
    """One run of `Pool.as_completed`."""

    def __init__(self, core: JobIntake, calls: Calls | Blocking, *, limit: int | None, returns_errors: bool) -> None:
        self._core, self._calls, self._freezer = core, calls, CallFreezer(core)
        self._limit, self._returns_errors = limit, returns_errors
        self._news = asyncio.Event()  # set when a call has ended, or a call can be submitted
        self._landed: deque[_NumberedJob | _Unsent] = deque()
        self._open: set[_NumberedJob] = set()  # submitted jobs whose results the caller does not have yet
        self._taken = 0

    async def results(self) -> AsyncGenerator[Any, None]:
        async with aclosing(self.batches()) as batches:
            try:
                async for batch in batches:
                    for result in batch:
                        yield result
            except Exception as error:
                cut(error)
                raise

    async def batches(self) -> AsyncGenerator[list[Any], None]:
        """Yield the available results, in lists of at least one result."""
        source = items_of(self._calls, self._news, self._freezer)
        try:
            while True:
                room = self._most() - len(self._open) - len(self._landed)
                calls = source.take(min(room, TURN)) if room > 0 else []
                for call in calls:
                    await self._submit(call)
                if self._landed:
                    results, error = await self._take_landed()
                    if results:
                        yield results
                    if error is not None:
                        raise error
                elif calls:
                    await asyncio.sleep(0)
                elif not self._open and source.is_exhausted():
                    return
                else:
                    self._news.clear()
                    await self._news.wait()
        finally:
            for job in self._open:
                job.cancel()
            await source.close()

    def _most(self) -> int:
        return self._limit or max(LIMIT, PER_SLOT * self._core.map_slots())

    async def _submit(self, item: Any) -> None:
        number, self._taken = self._taken, self._taken + 1
        call = item if type(item) in (ArrivedCall, Refused) else self._freezer.pack(item)[0]
        if type(call) is Refused:
            self._landed.append(_Unsent(number, call.error))
            return
        await self._core.own(call.payload)
        job = _NumberedJob(self._core, call.payload, call.options, number, self._ended)
        self._open.add(job)
        self._core.submit(job, None, job)

    def _ended(self, job: _NumberedJob) -> None:
        self._open.discard(job)
        self._landed.append(job)
        self._news.set()

    async def _take_landed(self) -> tuple[list[Any], Exception | None]:
        """Return the available results in the order of their arrival, up to the first error, and that error."""
        results: list[Any] = []
        for _ in range(len(self._landed)):
            landed = self._landed.popleft()
            await landed.load_if_long()
            try:
                value = landed.result()
            except Exception as error:  # noqa: BLE001  whatever the call raised
                error.add_note(f"call {landed.number} of pool.as_completed")
                if not (self._returns_errors and landed.is_of_call):
                    return results, error
                results.append(ItemOutcome(landed.number, error=error))
            else:
                results.append(ItemOutcome(landed.number, value) if self._returns_errors else value)
        return results, None


class _NumberedJob(SubmittedJob[Any]):
    """A submitted call. ``number``: the position of the call among the caller's calls, from 0."""

    __slots__ = ("number", "over")

    def __init__(
        self, core: JobIntake, payload: Payload, options: Options, number: int, over: Callable[[_NumberedJob], None]
    ) -> None:
        super().__init__(core, payload, options)
        self.number, self.over = number, over

    def __call__(self, ending: Ending) -> None:
        super().__call__(ending)
        self.over(self)

    @property
    def is_of_call(self) -> bool:
        """Return whether the call itself failed, as opposed to the pool."""
        return not isinstance(self.ending, GaveUp) or self.ending.reason in OF_ITEMS


class _Unsent:
    """A call that could not be submitted; stands in the queue in place of its job."""

    is_of_call = True

    def __init__(self, number: int, error: Exception) -> None:
        self.number, self._error = number, error

    async def load_if_long(self) -> None:
        return

    def result(self) -> None:
        raise self._error
