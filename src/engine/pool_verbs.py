"""The methods of `Pool` that run functions on its nodes, and those for objects, files and the state of the pool."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Never, TypeVar, TypeVarTuple, Unpack, overload

from .api.calls import (
    AnyCall,
    AsyncVerbs,
    Call,
    Group,
    GroupStream,
    Job,
    MixedGroup,
    StreamCall,
    for_every_rank,
    members,
    pending,
)
from .api.checks import check_limit, one_of
from .api.compute import Compute, for_items
from .api.errors import ItemOutcome, SpecError
from .api.misuse import surplus
from .api.pending_base import awaited_as
from .pool_life import PoolLife

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from ..actors.events import Event
    from .api.chaos import ChaosReport
    from .api.plugin import Attaching
    from .api.refs import Ref
    from .api.snapshot import PoolSnapshot
    from .api.task_stack import TaskStack
    from .client.budget import Cost
    from .client.jobs import BroadcastJob, SubmittedJob
    from .client.mapping import Calls, CompletedCalls, ErrorsOption, MapItems, MapOptions, MapRun, OutcomesMapOptions

R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
H = TypeVar("H")
Ts = TypeVarTuple("Ts")


class PoolVerbs(PoolLife, AsyncVerbs):
    """The base class of `Pool`, which adds its options, and the block ``with``."""

    # --- calls ----------------------------------------------------------------------------------------------------

    @overload
    async def run(
        self, call: Call[R], /, *more: Never, on: int | Literal["head"] | None = None, keep: Literal[False] = False
    ) -> R: ...
    @overload
    async def run(
        self, call: Call[R], /, *more: Never, on: int | Literal["head"] | None = None, keep: Literal[True]
    ) -> Ref[R]: ...
    @awaited_as("await pool.run(call), or await (call >> pool)")
    async def run(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> Any:
        """Run a call on one node, and return its result.

        Cancelling ends the task on its node, with its process tree.

        Args:
            call: A pending call of a `@compute` function.
            on: ``"head"``, or the rank of a ready node. None: any free node.
            keep: True leaves the result on its node and returns a `Ref`, which can be passed to other calls in place of
                the result.

        Raises:
            Exception: The error of the function, with the remote traceback as a note; or an `OutriderError`.
        """
        if more or no:
            raise surplus("run", call, more, no)
        core = self._here()
        return await core.begin(core.pack(call, on, keep=keep))

    @overload
    def submit(
        self, call: Call[R], /, *more: Never, on: int | Literal["head"] | None = None, keep: Literal[False] = False
    ) -> Job[R]: ...
    @overload
    def submit(
        self, call: Call[R], /, *more: Never, on: int | Literal["head"] | None = None, keep: Literal[True]
    ) -> Job[Ref[R]]: ...
    def submit(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> Any:
        """Submit a call as `run` does, without waiting.

        The arguments are copied before this returns, including large arrays and tensors (0.05 s for 100 MB, during
        which the event loop is blocked). You may change them afterwards.

        Args:
            call: A pending call of a `@compute` function.
            on: ``"head"``, or the rank of a ready node. None: any free node.
            keep: True leaves the result on its node; the job gives a `Ref`.

        Returns:
            A `Job`, which can be awaited and cancelled.
        """
        if more or no:
            raise surplus("submit", call, more, no)
        core = self._here()
        return core.begin(core.pack(call, on, keep=keep, owned=True))

    async def _submitted(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> SubmittedJob[Any]:
        """Submit a call for another thread, which waits until this returns. A third thread copies large arrays."""
        if more or no:
            raise surplus("submit", call, more, no)
        core = self._here()
        packed = core.pack(call, on, keep=keep)
        await core.own(packed.payload)
        return core.begin(packed)

    @overload
    async def broadcast(self, call: Call[R], /, *more: Never) -> list[R]: ...
    @overload
    async def broadcast(self, call: StreamCall[T], /, *more: Never) -> list[AsyncGenerator[T, None]]: ...
    @awaited_as("await pool.broadcast(call), or await (call @ pool)")
    async def broadcast(self, call: Any, /, *more: Never, **no: Never) -> list[Any]:
        """Run a call on every ready node at the same time.

        When the node of a rank is lost, the ``on_loss`` of the call decides what happens. Cancelling ends every rank.

        For a generator, the result is a list with an iterator for each rank, returned as soon as the ranks run. A rank
        waits when it is a few values ahead of its reader. Closing an iterator ends only its rank. If a rank raises, or
        its node is lost (`NodeLost`), the rank's iterator raises that error, and the other ranks are ended: their
        iterators raise `TaskStopped`. No rank of a generator runs again, because its caller may have read its first
        values.

        Args:
            call: A pending call of a `@compute` function.

        Returns:
            The results by rank; for a generator, the iterators by rank.

        Raises:
            BroadcastFailed: Some ranks raised. The error has the outcomes of all ranks.
            NodeLost: A node was lost, and ``on_loss`` is ``"fail"`` or the attempts are used up.
            CapacityError: No replacement was ready within the pool's ``replace_timeout``.
            SpecError: An argument is streamed, which only one task can consume.
        """
        if more or no:
            raise surplus("broadcast", call, more, no)
        core = self._here()
        if isinstance(call, StreamCall):
            from .client import streaming

            return await streaming.broadcast(core, call)
        call = for_every_rank(pending(call))
        payload = core.packer.pack(call)
        if call.options.keep:
            core.keep_result(payload)
        job: BroadcastJob[Any] = core.BroadcastJob(core, payload, call.options)
        core.broadcast(job, core.packer.plugins_of(call.function))
        return await job

    @overload
    async def gather(self, a: Call[A], /) -> tuple[A]: ...
    @overload
    async def gather(self, a: Call[A], b: Call[B], /) -> tuple[A, B]: ...
    @overload
    async def gather(self, *calls: Call[T]) -> tuple[T, ...]: ...
    @overload
    async def gather(self, a: StreamCall[A], b: Call[B], /) -> tuple[AsyncGenerator[A, None], B]: ...
    @overload
    async def gather(self, a: Call[A], b: StreamCall[B], /) -> tuple[A, AsyncGenerator[B, None]]: ...
    @overload
    async def gather(
        self, a: StreamCall[A], b: StreamCall[B], /
    ) -> tuple[AsyncGenerator[A, None], AsyncGenerator[B, None]]: ...
    @overload
    async def gather(self, *calls: StreamCall[T]) -> tuple[AsyncGenerator[T, None], ...]: ...
    @overload
    async def gather(self, *calls: AnyCall) -> tuple[Any, ...]: ...
    @awaited_as("await pool.gather(*calls)")
    async def gather(self, *calls: AnyCall) -> tuple[Any, ...]:
        """Run several calls at the same time, and return their results in the order of ``calls``.

        The first error ends the other calls. For a generator, the result is an iterator over its values, which raises
        the generator's error.
        """
        from .client import grouping

        return await grouping.gather(self._here(), calls)

    @overload
    async def run_group(self, group: Group[*Ts], /) -> tuple[*Ts]: ...
    @overload
    async def run_group(self, group: MixedGroup[A, Any], /) -> A: ...
    @awaited_as("await pool.gather(*calls), or await ((a & b) >> pool)")
    async def run_group(self, group: Any, /) -> Any:
        """Run a group such as ``f(1) & g(2)``, as `gather` does."""
        return await self.gather(*members(group))

    @overload
    def submit_group(self, group: Group[*Ts], /) -> Job[tuple[*Ts]]: ...
    @overload
    def submit_group(self, group: MixedGroup[A, Any], /) -> Job[A]: ...
    def submit_group(self, group: Any, /) -> Job[Any]:
        """Submit a group such as ``f(1) & g(2)``, without waiting for the results."""
        from .client import grouping

        return grouping.submit(self._here(), members(group))

    def stream_group(self, group: GroupStream[T], /) -> AsyncGenerator[T, None]:
        """Run the calls of a group at the same time, and yield each result as soon as it is ready."""
        from .client import grouping

        return grouping.stream_group(self._here(), members(group))

    @overload
    def map(self, function: Compute[..., T], items: MapItems, /, **options: Unpack[MapOptions]) -> MapRun[T]: ...
    @overload
    def map(self, function: Callable[[Any], T], items: MapItems, /, **options: Unpack[MapOptions]) -> MapRun[T]: ...
    @overload
    def map(
        self, function: Compute[..., T], items: MapItems, /, **options: Unpack[OutcomesMapOptions]
    ) -> MapRun[ItemOutcome[T]]: ...
    @overload
    def map(
        self, function: Callable[[Any], T], items: MapItems, /, **options: Unpack[OutcomesMapOptions]
    ) -> MapRun[ItemOutcome[T]]: ...
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
    ) -> MapRun[Any]:
        """Run ``function`` for each item: iterate for the results as they arrive, or await a list.

        Cheap items share tasks. An error of the pool is always raised. An error of the iterable ``items`` is raised
        after the results of the items before it.

        Args:
            function: A `@compute` function, or any callable, of one argument.
            items: An iterable, or an async iterable. A plain iterable is advanced on the event loop, so pass an async
                iterable if producing an item takes time.
            limit: The most items that are taken from ``items`` before their results are delivered. Default: a few per
                slot and task.
            ordered: False gives results as soon as they are ready.
            errors: ``"raise"`` raises the error of an item in its place, with a note that names the item, and ends the
                running items. ``"return"`` runs all items and gives an `ItemOutcome` for each. If a process dies, the
                other items of its task run again, unless the function must not be retried.

        Returns:
            A `MapRun`, to be iterated or awaited.
        """
        core = self._here()
        check_limit(limit)
        one_of("errors", errors, ("raise", "return"))
        from .client.mapping import MapRun, check_map

        check_map(function, items, more, no)
        called = for_items(function)
        return MapRun(core, called, items, limit=limit, ordered=ordered, errors=errors, slots=core.map_slots)

    @overload
    def as_completed(
        self, calls: Iterable[Call[T]] | AsyncIterable[Call[T]], /, *, limit: int | None = None
    ) -> AsyncGenerator[T, None]: ...
    @overload
    def as_completed(
        self,
        calls: Iterable[Call[T]] | AsyncIterable[Call[T]],
        /,
        *,
        limit: int | None = None,
        errors: Literal["return"],
    ) -> AsyncGenerator[ItemOutcome[T], None]: ...
    def as_completed(
        self, calls: Calls, /, *, limit: int | None = None, errors: ErrorsOption = "raise"
    ) -> AsyncGenerator[Any, None]:
        """Run any number of calls, and yield each result as soon as it is ready.

        The calls begin when the iteration begins. Leaving the iteration early cancels the running calls. Errors of the
        pool, and of ``calls`` itself, are always raised.

        Args:
            calls: An iterable, or an async iterable, of pending calls. A plain iterable is advanced on the event loop,
                so pass an async iterable if producing a call takes time.
            limit: The most calls that are taken from ``calls`` before their results are delivered. Default: 1,000, or 4
                for each slot.
            errors: ``"raise"`` raises the first error, with a note of the index of its call, from 0, and ends the
                running calls. ``"return"`` runs all calls and gives an `ItemOutcome` for each.

        Raises:
            NotACall: ``calls`` is a single call, or not an iterable of calls.
        """
        return self._completed(calls, limit, errors).results()

    def _completed(self, calls: Any, limit: int | None, errors: str, *, marked: bool = False) -> CompletedCalls:
        core = self._here()
        check_limit(limit)
        one_of("errors", errors, ("raise", "return"))
        from .client.mapping import CompletedCalls, checked_calls

        checked = checked_calls(calls, may_block=marked)
        return CompletedCalls(core, checked, limit=limit, returns_errors=errors == "return")

    def stream(self, call: StreamCall[T], /, *, on: int | Literal["head"] | None = None) -> AsyncGenerator[T, None]:
        """Run a generator on one node, as `run` does, and yield its values.

        The generator waits when it is a few values ahead of its reader. Leaving the iteration early ends the process of
        the generator. If its node is lost, the generator does not run again, because the caller may have read its first
        values.
        """
        from .client import streaming

        return streaming.stream(self._here(), call, on)

    # --- objects --------------------------------------------------------------------------------------------------

    @awaited_as("await pool.put(value)")
    async def put(self, value: T, /) -> Ref[T]:
        """Copy a value into the pool. The returned `Ref` can be passed to calls in place of the value.

        Each node gets the value once, when a call there needs it. The pool frees the value when no reference to it is
        left. Cancelling is safe.

        Raises:
            SerializationError: The value cannot be pickled.
        """
        stored: Any = await self._here().objects.put(value)
        return stored  # type: ignore[no-any-return]

    # --- files ----------------------------------------------------------------------------------------------------

    @awaited_as("await pool.fetch(pattern)")
    async def fetch(
        self,
        pattern: str,
        /,
        *,
        to: str | PathLike[str] = ".",
        on: int | Literal["head"] | None = None,
        max_files: int = 100_000,
        max_gb: float = 100.0,
    ) -> list[Path]:
        """Copy files from the work folders of nodes to ``to/node-0/``, ``to/node-1/`` and so on.

        A fetch takes no task slot. It works while tasks run, and after they have failed. Each file is copied completely
        or not at all, and replaces an earlier copy, so it is safe to cancel a fetch and to repeat one. Devices, pipes
        and links to folders are left out, except for a link that the pattern itself names.

        Args:
            pattern: A file, a folder, or a glob such as ``"log/**"``, relative to the work folder.
            to: The local folder. Default: the working directory.
            on: ``"head"``, or the rank of a ready node. None: every node.
            max_files: The most files, of all nodes together.
            max_gb: The most GB (10^9 bytes), of all nodes together.

        Returns:
            The local paths of the files.

        Raises:
            TransferError: A file cannot be read on the node or written on this computer, or the files exceed a limit.
            NodeLost: A node was lost. Files that have arrived are kept, and the files of other nodes are still copied.
            CapacityError: No node is ready.
        """
        from .client import file_transfer

        request = file_transfer.Fetch.of(pattern, to, max_files=max_files, max_gb=max_gb)
        return await file_transfer.fetch(self._here(), request, on)

    @awaited_as("await pool.push(path)")
    async def push(
        self, path: str | PathLike[str], /, *, to: str = ".", on: int | Literal["head"] | None = None
    ) -> None:
        """Copy a local file or folder into the work folder of nodes, under the same name.

        Nodes that join later do not get a copy. Each file is copied completely or not at all, and replaces an earlier
        copy, so it is safe to cancel a push and to repeat one.

        Args:
            path: The local file or folder.
            to: A folder in the work folder of each node. Default: the work folder itself.
            on: ``"head"``, or the rank of a ready node. None: every ready node.

        Raises:
            SpecError: The file does not exist.
            TransferError: A file cannot be read on this computer or written on the node.
            NodeLost: A node was lost.
            CapacityError: No node is ready.
        """
        from .client import file_transfer

        await file_transfer.push(self._here(), path, to, on)

    # --- size and state of the pool -------------------------------------------------------------------------------

    def resize(self, nodes: int) -> None:
        """Set the number of nodes to grow or shrink to, without waiting.

        Nodes that leave finish their tasks first. With ``Nodes(scale="load")`` this sets the minimum, which broadcasts
        wait for; waiting tasks may still add nodes.

        Raises:
            SpecError: The number is less than `Nodes.min`, or more than `Nodes.max` if that is set.
        """
        core = self._here()
        core.settings.nodes.check_size(nodes)
        core.resize(nodes)

    @overload
    def handle(self, plugin: Attaching[H], /) -> H: ...
    @overload
    def handle(self, plugin: str, /) -> Any: ...
    def handle(self, plugin: str | Attaching[Any], /) -> Any:
        """Return the object that a plugin of this pool offers to users, as in ``pool.handle("dask").address``.

        Args:
            plugin: The plugin, or its name.

        Raises:
            SpecError: The pool has no such plugin, or the plugin offers nothing.
        """
        name: Any = plugin if isinstance(plugin, str) else getattr(plugin, "name", None)
        handles = self._opened().handles
        if handles.get(name) is None:
            has = ", ".join(each for each, handle in handles.items() if handle is not None) or "none"
            raise SpecError(f"The pool has no plugin {name or plugin!r:.60} with a handle; it has {has}.")
        return handles[name]

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the pool from now until it ends. A reader 10,000 events behind misses some."""
        return self._here().observer.subscribe()

    @awaited_as("await pool.stacks()")
    async def stacks(self) -> list[TaskStack]:
        """Return the stacks of each running task and rank, ordered by job and rank.

        Taking stacks ends and delays nothing, and works while tasks hang, also in C code. The pool waits at most 5 s
        for a node that does not respond. The record of the run contains the stacks as files, too.
        """
        from .client.running_tasks import stacks

        return await stacks(self._here())

    @property
    def chaos(self) -> ChaosReport:
        """The report of all faults that ``Pool(chaos=...)`` has caused. It is complete when the pool has ended."""
        if self._injector is None:
            raise SpecError("The pool has no chaos: write Pool(chaos=Chaos(...)), and open it.")
        return self._injector.report

    @property
    def cost(self) -> Cost:
        """The cost of the machines, from their request to their confirmed end, in USD: so far, and per hour now."""
        return self._begun().cost

    def snapshot(self) -> PoolSnapshot:
        """Return the present state of the pool's nodes and tasks."""
        core = self._opened()
        return core.with_traffic(core.observer.snapshot())
