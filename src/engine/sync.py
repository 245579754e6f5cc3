"""The pool for code without an event loop, `SyncPool`: its methods wait, and its event loop runs in another thread."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar, TypeVarTuple, Unpack, overload

from .api.calls import AnyCall, Call, Group, GroupStream, MixedGroup, StreamCall, SyncVerbs, members
from .api.errors import CleanupError, PoolClosed, SpecError
from .api.misuse import ENDED, INHERITED, Runner
from .api.refs import Ref, SyncRef
from .api.tracebacks import cut, cutting
from .client.blocking_calls import END, MapResults, Steps, called, close_at_exit, end_dropped, kept
from .client.loop_thread import DEAF_S, LoopThread, interrupts_held, wait_for
from .client.signals import ThreadHold
from .serialization.client_streams import marked_blocking

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from ..actors.events import Event
    from .api.calls import Job
    from .api.chaos import ChaosReport
    from .api.compute import Compute
    from .api.errors import ItemOutcome
    from .api.plugin import Attaching
    from .api.snapshot import PoolSnapshot
    from .api.task_stack import TaskStack
    from .client.budget import Cost
    from .client.mapping import Calls, ErrorsOption, MapItems, MapOptions, OutcomesMapOptions
    from .pool_verbs import PoolVerbs
    from .serialization.stored_objects import StoredObject

    On = int | Literal["head"] | None
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
T = TypeVar("T")
H = TypeVar("H")
S = TypeVar("S")
P = ParamSpec("P")
Ts = TypeVarTuple("Ts")


class _Closing:
    """The state of one call of `SyncPool.close`."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.begun = False  # whether this call has begun to close the pool
        self.over = threading.Event()


class SyncPool(Runner, SyncVerbs):
    """The pool of ``with Pool(...) as pool``: the methods of `Pool`, as blocking calls.

    Ctrl-C while a method waits cancels the method's task. Without a block: ``pool = SyncPool(Pool(...)).open()``, and
    ``pool.close()`` at the end.

    Args:
        pool: The pool, which takes all options; it must not be open yet.
    """

    # the reason why the pool cannot be used; always empty here, as the methods themselves raise `PoolClosed` after the
    # pool's end
    unusable = ""

    def __init__(self, pool: PoolVerbs) -> None:
        self._pool = pool
        # futures of the first results of calls of `map`, whose tasks start before any result is read
        self._unread: set[Future[Any]] = set()
        # the thread with the pool's event loop, from the start of `open` to the end of the pool
        self._thread: LoopThread | None = None
        self._hold: ThreadHold | None = None
        # exists while a thread opens the pool, and is set when the opening has ended
        self._opening: threading.Event | None = None
        self._opener = 0  # `threading.get_ident` of the thread that opens the pool
        # under "first", the call of `close` that closes the pool; other calls wait for it
        self._closing: dict[Literal["first"], _Closing] = {}
        self._process = os.getpid()
        self._at_exit = partial(close_at_exit, weakref.ref(self))

    def open(self) -> SyncPool:
        """Open the pool, and return it. Raises the same errors as entering the block.

        The caller must `close` the pool. A pool that is still open at the end of the program is closed automatically.
        """
        return self._open_in(LoopThread())

    def _open_in(self, thread: LoopThread) -> SyncPool:
        """Open the pool in this thread, which may run already."""
        self._pool.check_unopened()
        self._thread = thread
        # a weak reference, so that the running pool does not keep this object alive: see `__del__`
        self._pool._sync = weakref.proxy(self)
        try:  # from here on, an interrupt (Ctrl-C) may be raised at any point
            self._open(thread)
        except BaseException as error:
            self._abandon(error)
            cut(error)
            raise
        return self

    def _open(self, thread: LoopThread) -> None:
        self._opener = threading.get_ident()
        opening = self._opening = threading.Event()  # before an interrupt's handler may call `close`
        with interrupts_held():
            self._hold = hold = ThreadHold()
        thread.start()
        hold.interrupt()
        self._wait(self._pool.__aenter__)
        atexit.register(self._at_exit)
        self._opening = None
        opening.set()

    def _abandon(self, error: BaseException) -> None:
        """Undo an `open`, complete or not, that was interrupted by ``error``. A second call has no effect."""
        if self._hold is not None:
            self._hold.interruptible = False
        try:
            if (thread := self._thread) is not None and thread.wait_ready():
                self._result(thread.submit(self._pool.leave_opening, error))
        finally:
            try:
                self._end(cancel=True)
                atexit.unregister(self._at_exit)
            finally:
                if (opening := self._opening) is not None:
                    self._opening = None
                    opening.set()

    def close(self, error: BaseException | None = None) -> None:
        """Close the pool, as the end of its block does. Any thread may call this.

        If the pool is not open, or was closed, do nothing. If another thread is still opening the pool, the opening is
        called off: `open` raises `PoolClosed`, and both calls return when nothing is left. If another thread is closing
        the pool, both calls return at the same time. A signal handler that has interrupted `open` may call this, too.
        If the signal handler has interrupted `close` itself, this returns at once.

        Args:
            error: The error of the block, if it raised one.

        Raises:
            CleanupError: Machines may be left.
        """
        opening = self._opening if os.getpid() == self._process else None
        if opening is not None and self._call_off(opening):
            return
        closing = _Closing()
        try:  # from here on, an interrupt (Ctrl-C) may be raised at any point
            if os.getpid() == self._process and not self._is_first_to_close(closing, error):
                return
            if self._thread is None or self._hold is None:
                return
            self._check_thread()
            self._hold.interruptible = False
            exiting = self._start(self._pool.__aexit__, type(error) if error else None, error, None)
            closing.begun = True
            self._result(exiting)
        finally:
            try:
                if closing.begun:
                    self._end(cancel=sys.exc_info()[0] is not None)
                    # the pool is closed, so its exit handler, which would wait for this call, must not run
                    atexit.unregister(self._at_exit)
                elif self._closing.get("first") is closing:
                    # this call has not begun to close the pool: let the next call of `close` do it
                    del self._closing["first"]
            finally:
                closing.over.set()

    def _is_first_to_close(self, closing: _Closing, error: BaseException | None) -> bool:
        """Return whether the call ``closing`` is the one that must close the pool.

        If another thread is closing the pool already, wait for its end first; an interrupt ends the wait.
        """
        # `setdefault` is atomic: a signal handler cannot run between its test and its assignment
        while (first := self._closing.setdefault("first", closing)) is not closing:
            if first.over.is_set() or first.thread == closing.thread:
                return False
            self._check_thread()
            wait_for(first.over)
            if first.begun and (core := self._pool._core) is not None:
                from .client.cleanup import raise_or_add

                raise_or_add(core.cleanup, error)
                return False
        return True

    def _call_off(self, opening: threading.Event) -> bool:
        """Call off the opening, and wait until the thread that opens the pool has left `open`.

        A signal handler that has interrupted the opening runs in that same thread, so it does not wait. Return False if
        the pool was open before the opening could be called off.
        """
        self._pool._called_off = True  # read when the opening begins, if the pool's event loop has not started yet
        left: CleanupError | None = None
        try:
            called_off = self._wait(self._pool.call_off)
        except CleanupError as error:
            called_off, left = True, error
        except (PoolClosed, RuntimeError, FutureCancelled):  # the event loop has ended, or has not started
            called_off = True
        if threading.get_ident() != self._opener:
            wait_for(opening)
        if left is not None:
            raise left
        return called_off

    def __del__(self) -> None:
        if self._thread is not None and self._hold is not None and os.getpid() == self._process and not self._closing:
            end_dropped(self._pool, repr(self), self._thread, self._hold)

    def _end(self, *, cancel: bool) -> None:
        try:
            for first in (*self._unread,):
                first.cancel()
            if self._thread is not None:
                self._thread.stop(cancel=cancel)
        finally:
            self._thread = None
            if self._hold is not None:
                self._hold.release()

    def _start(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Start ``function``, an async method of the pool, on the pool's event loop."""
        if (thread := self._thread) is None or os.getpid() != self._process:
            raise PoolClosed(INHERITED if thread else ENDED)
        self._check_thread()
        return thread.submit(function, *args, **options)

    def _check_thread(self) -> None:
        if self._is_loops_thread():
            raise SpecError(
                "This runs in the thread of the pool's own loop, as a future's callbacks do, which cannot wait for "
                "itself: use the pool from another thread."
            )

    def _is_loops_thread(self) -> bool:
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def _wait(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
        return self._result(self._start(function, *args, **options))

    def _result(self, future: Future[T]) -> T:
        try:
            while not future.done():
                with suppress(TimeoutError):
                    return future.result(DEAF_S)
            return future.result()  # raises the call's own error, even if that is a TimeoutError
        except BaseException as error:  # this thread was interrupted: cancel the task for which it waited
            if not future.done():
                self._pool._interrupt = error
                future.cancel()
            cut(error)
            raise

    def __repr__(self) -> str:
        return f"<SyncPool {self._pool._described()}>"

    def _repr_html_(self) -> str:
        return self._pool._repr_html_()

    # --- calls ----------------------------------------------------------------------------------------------------

    @overload
    def run(self, call: Call[Ref[R]], /, *more: Never, on: On = None) -> SyncRef[R]: ...
    @overload
    def run(self, call: Call[R], /, *more: Never, on: On = None, keep: Literal[False] = False) -> R: ...
    @overload
    def run(self, call: Call[R], /, *more: Never, on: On = None, keep: Literal[True]) -> SyncRef[R]: ...
    @cutting
    def run(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> Any:
        """Run a call on one node, and return its result: see `Pool.run`."""
        return self._wait(self._run, call, *more, on=on, keep=keep, **no)

    async def _run(self, *arguments: Any, **options: Any) -> Any:
        return await self._pool.run(*arguments, **options)

    @overload
    def broadcast(self, call: Call[Ref[R]], /, *more: Never) -> list[SyncRef[R]]: ...
    @overload
    def broadcast(self, call: Call[R], /, *more: Never) -> list[R]: ...
    @overload
    def broadcast(self, call: StreamCall[T], /, *more: Never) -> list[Iterator[T]]: ...
    @cutting
    def broadcast(self, call: Any, /, *more: Never, **no: Never) -> list[Any]:
        """Run a call on every node, and return the results by rank: see `Pool.broadcast`."""
        broadcast: Callable[..., Awaitable[list[Any]]] = self._pool.broadcast
        results = self._wait(broadcast, call, *more, **no)
        return [self._iterator_of(call, result) for result in results]

    @overload
    def submit(self, call: Call[Ref[R]], /, *more: Never, on: On = None) -> Future[SyncRef[R]]: ...
    @overload
    def submit(self, call: Call[R], /, *more: Never, on: On = None, keep: Literal[False] = False) -> Future[R]: ...
    @overload
    def submit(self, call: Call[R], /, *more: Never, on: On = None, keep: Literal[True]) -> Future[SyncRef[R]]: ...
    @cutting
    def submit(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> Any:
        """Submit a call without waiting: see `Pool.submit`. Cancelling the future ends the task."""
        submit: Callable[..., Awaitable[Job[Any]]] = self._pool._submitted
        job = self._wait(submit, call, *more, on=on, keep=keep, **no)
        return kept(self, self._start(lambda: job))

    @overload
    def gather(self, a: Call[A], /) -> tuple[A]: ...
    @overload
    def gather(self, a: Call[A], b: Call[B], /) -> tuple[A, B]: ...
    @overload
    def gather(self, *calls: Call[T]) -> tuple[T, ...]: ...
    @overload
    def gather(self, a: StreamCall[A], b: Call[B], /) -> tuple[Iterator[A], B]: ...
    @overload
    def gather(self, a: Call[A], b: StreamCall[B], /) -> tuple[A, Iterator[B]]: ...
    @overload
    def gather(self, a: StreamCall[A], b: StreamCall[B], /) -> tuple[Iterator[A], Iterator[B]]: ...
    @overload
    def gather(self, *calls: StreamCall[T]) -> tuple[Iterator[T], ...]: ...
    @overload
    def gather(self, *calls: AnyCall) -> tuple[Any, ...]: ...
    def gather(self, *calls: AnyCall) -> tuple[Any, ...]:
        """Run several calls at the same time: see `Pool.gather`."""
        return self.run_group(Group(calls))

    @overload
    def run_group(self, group: Group[*Ts], /) -> tuple[*Ts]: ...
    @overload
    def run_group(self, group: MixedGroup[Any, S], /) -> S: ...
    @cutting
    def run_group(self, group: Any, /) -> Any:
        """Run a group such as ``f(1) & g(2)``: see `Pool.run_group`."""
        return self._wait(self._run_group, group)

    @overload
    def submit_group(self, group: Group[*Ts], /) -> Future[tuple[*Ts]]: ...
    @overload
    def submit_group(self, group: MixedGroup[Any, S], /) -> Future[S]: ...
    def submit_group(self, group: Any, /) -> Any:
        """Submit a group such as ``f(1) & g(2)`` without waiting: see `Pool.submit_group`."""
        job = self._wait(called, lambda: self._pool.submit_group(group))
        return kept(self, self._start(self._run_group, group, job))

    async def _run_group(self, group: Any, job: Awaitable[tuple[Any, ...]] | None = None) -> tuple[Any, ...]:
        results = await (job or self._pool.run_group(group))
        return tuple(self._iterator_of(call, result) for call, result in zip(members(group), results, strict=True))

    def stream_group(self, group: GroupStream[T], /) -> Iterator[T]:
        """Run the calls of a group, and iterate over each result as soon as it is ready: see `Pool.stream_group`."""
        return self._iterate(lambda: self._pool.stream_group(group))

    @overload
    def map(self, function: Compute[..., T], items: MapItems, /, **options: Unpack[MapOptions]) -> Iterator[T]: ...
    @overload
    def map(self, function: Callable[[Any], T], items: MapItems, /, **options: Unpack[MapOptions]) -> Iterator[T]: ...
    @overload
    def map(
        self, function: Compute[..., T], items: MapItems, /, **options: Unpack[OutcomesMapOptions]
    ) -> Iterator[ItemOutcome[T]]: ...
    @overload
    def map(
        self, function: Callable[[Any], T], items: MapItems, /, **options: Unpack[OutcomesMapOptions]
    ) -> Iterator[ItemOutcome[T]]: ...
    def map(
        self,
        function: Callable[..., Any],
        items: MapItems,
        /,
        *more: Never,
        limit: int | None = None,
        ordered: bool = True,
        errors: ErrorsOption = "raise",
        **no: Never,
    ) -> Iterator[Any]:
        """Run ``function`` for each item: see `Pool.map`. The tasks start at once, and continue while results are read.

        An iterator that may block, such as the results of another map, is advanced in a thread of its own.
        """
        from .client.mapping import check_map

        check_map(function, items, more, no)
        marked: Any = marked_blocking(items)
        options: Any = {"limit": limit, "ordered": ordered, "errors": errors}
        chunks = self._wait(called, lambda: Steps(self._pool.map(function, marked, **options).chunks()))
        first = self._start(chunks.next)
        self._unread.add(first)
        first.add_done_callback(self._unread.discard)
        return MapResults(self._values(chunks, first), first, getattr(function, "__name__", "function"))

    @overload
    def as_completed(self, calls: Iterable[Call[T]], /, *, limit: int | None = None) -> Iterator[T]: ...
    @overload
    def as_completed(
        self, calls: Iterable[Call[T]], /, *, limit: int | None = None, errors: Literal["return"]
    ) -> Iterator[ItemOutcome[T]]: ...
    def as_completed(
        self, calls: Calls, /, *, limit: int | None = None, errors: ErrorsOption = "raise"
    ) -> Iterator[Any]:
        """Run any number of calls: see `Pool.as_completed`.

        An iterator of calls that may block is advanced in a thread of its own.
        """
        run = self._wait(called, lambda: self._pool._completed(calls, limit, errors, marked=True))
        return (result for batch in self._values(Steps(run.batches())) for result in batch)

    def stream(self, call: StreamCall[T], /, *, on: int | Literal["head"] | None = None) -> Iterator[T]:
        """Run a generator on one node, and iterate over its values: see `Pool.stream`."""
        return self._iterate(lambda: self._pool.stream(call, on=on))

    # --- objects ----------------------------------------------------------------------------------------------------

    @cutting
    def put(self, value: T, /) -> SyncRef[T]:
        """Copy a value into the pool: see `Pool.put`."""
        stored: Any = self._wait(self._pool.put, value)
        return stored  # type: ignore[no-any-return]

    async def _get(self, stored: StoredObject) -> Any:
        return await self._pool._opened().objects.get(stored)

    def _ref(self, stored: StoredObject) -> SyncRef[Any]:
        return SyncRef(stored, self)

    # --- files ------------------------------------------------------------------------------------------------------

    def fetch(
        self,
        pattern: str,
        /,
        *,
        to: str | PathLike[str] = ".",
        on: int | Literal["head"] | None = None,
        max_files: int = 100_000,
        max_gb: float = 100.0,
    ) -> list[Path]:
        """Copy files from the nodes' work folders: see `Pool.fetch`."""
        return self._wait(self._pool.fetch, pattern, to=to, on=on, max_files=max_files, max_gb=max_gb)

    def push(self, path: str | PathLike[str], /, *, to: str = ".", on: int | Literal["head"] | None = None) -> None:
        """Copy a file or a folder into the nodes' work folders: see `Pool.push`."""
        self._wait(self._pool.push, path, to=to, on=on)

    # --- size and state of the pool ---------------------------------------------------------------------------------

    def resize(self, nodes: int) -> None:
        """Set the number of nodes to grow or shrink to: see `Pool.resize`."""
        self._wait(called, lambda: self._pool.resize(nodes))

    @overload
    def handle(self, plugin: Attaching[H], /) -> H: ...
    @overload
    def handle(self, plugin: str, /) -> Any: ...
    def handle(self, plugin: str | Attaching[Any], /) -> Any:
        """Return the object that a plugin offers to users: see `Pool.handle`."""
        return self._pool.handle(plugin)

    def events(self) -> Iterator[Event]:
        """Iterate over the pool's events: see `Pool.events`. The iterator blocks until the next event."""
        return self._iterate(self._pool.events)

    def snapshot(self) -> PoolSnapshot:
        """Return the present state of nodes and tasks: see `Pool.snapshot`."""
        return self._wait(called, self._pool.snapshot)

    def stacks(self) -> list[TaskStack]:
        """Return the stacks of running tasks: see `Pool.stacks`. Call this in a thread that does not hang."""
        return self._wait(self._pool.stacks)

    @property
    def cost(self) -> Cost:
        """The cost of the machines in USD: see `Pool.cost`."""
        return self._pool.cost

    @property
    def chaos(self) -> ChaosReport:
        """The report of injected faults: see `Pool.chaos`."""
        return self._pool.chaos

    def _iterate(self, make: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Return an iterator over the async iterator that ``make`` returns.

        ``make`` is called on the pool's loop before this returns, so invalid arguments raise here.
        """
        return self._values(Steps(self._wait(called, make)))

    def _iterator_of(self, call: object, result: Any) -> Any:
        """Return the result of a call; for a generator, which already runs, return an iterator over its values."""
        if not isinstance(call, StreamCall):
            return result
        values: Iterator[Any] = self._values(Steps(result), marked=True)
        # run this iterator to its first `yield`: from then on, closing or dropping it ends the generator (in `finally`)
        next(values)
        return values

    def _values(self, steps: Steps[T], first: Future[T] | None = None, *, marked: bool = False) -> Iterator[T]:
        """Iterate over the values of ``steps``.

        ``first``: the future of the first value, if that value was requested already. ``marked``: yield `END` before
        the first value.
        """
        try:
            if marked:
                yield END
            if first is not None and first.cancelled():
                raise PoolClosed(ENDED)
            value = self._wait(steps.next) if first is None else self._result(first)
            while value is not END:
                yield value
                value = self._wait(steps.next)
        except BaseException as error:
            cut(error)
            raise
        finally:
            # If Python drops this iterator in the loop's own thread, which must not wait, the event loop closes the
            # generator.
            if self._thread is not None and steps.closes and not self._is_loops_thread():
                self._wait(steps.close)
