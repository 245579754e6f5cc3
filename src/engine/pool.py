"""`Pool`: nodes that exist while its block runs, and the verbs that run functions on them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable
from dataclasses import replace
from inspect import Parameter, Signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, TypeVar, TypeVarTuple, Unpack, overload

from .api import settings
from .api.calls import AnyCall, Call, Group, GroupStream, MixedGroup, StreamCall, for_every_rank, members, pending
from .api.checks import check_known, check_limit, one_of
from .api.compute import Compute, for_items
from .api.errors import ItemOutcome, SpecError
from .api.job import Job
from .api.misuse import awaited_as, surplus
from .pool_life import PoolLife
from .pool_options import DEFAULTS, AttachOptions, PoolOptions

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from ..actors.events import Event
    from ..providers.base import Provider
    from .api.plugin import Attaching
    from .api.task_stack import TaskStack
    from .client.budget import Cost
    from .client.completed_calls import Calls, CompletedCalls
    from .client.jobs import BroadcastJob, SubmittedJob
    from .client.mapping import ErrorsOption, MapItems, MapOptions, MapRun, OutcomesMapOptions
    from .client.refs import Ref
    from .observe.observer import PoolSnapshot
    from .testing.chaos.report import Report

R = TypeVar("R")
T = TypeVar("T")
A = TypeVar("A")
B = TypeVar("B")
H = TypeVar("H")
Ts = TypeVarTuple("Ts")


class Pool(PoolLife):
    """A cluster that exists while the block runs: ``async with Pool(...) as pool``, or ``with Pool(...) as pool``.

    ``provider``: where machines come from; default `Local()`. ``nodes``: ``4``, ``(2, 8)`` or `Nodes`: ready at the
    least, growing to the desired number, with spares that stand by. ``accelerator``, ``vcpus``, ``memory_gb``,
    ``disk_gb``, ``architecture``, ``allocation``, ``max_hourly_cost``, ``interconnect``: what each machine is like at
    least, as in `Spec`. In place of these, several ``Spec(...)``: the ``"cheapest"`` is asked first, or by
    ``selection`` the ``"first"``, and the next one where it has no machines to give. ``worker``: a node's task slots.
    ``image``: the nodes' software. ``plugins`` prepare every task's process. ``on_loss``: what a broadcast does when it
    loses a rank, for functions that do not say it themselves. ``checkpoints``: where tasks keep theirs: a folder that
    all nodes share, or a URL. ``volumes``: buckets that are folders on every node. ``name``: by which one finds it
    again, as `attach` does; others may have the same. ``keep``: a folder of the nodes' work folders that is copied to
    the same one here, as `fetch` does it, when the block ends. ``console``: "rich" is a live table, "plain" lines,
    "silent" nothing, what tasks print included; "auto" is a table on a terminal and in notebooks, only what tasks print
    in applications that have set up logging, else lines. ``chaos``: faults to inject, for tests: see
    `outrider.testing.Chaos`. ``sample_every``: seconds between two samples of what each node is used for, which
    `outrider top` shows; 0 or None: none. ``run``: the name of the record that the pool leaves of itself; None: in
    scripts and notebooks that of the script, and in applications that have set up logging no record; False: none.
    ``trackers``: where the record is sent, as in `trackers.MLflow`; ``flush_timeout``: seconds for which the end waits
    for them. ``traces``: calls are traces of OpenTelemetry.

    Seconds: ``boot_timeout`` from a launch to a ready node (a straggler, which does not answer while those launched
    with it do, is replaced sooner), ``start_timeout`` for which a machine may wait in a queue of its provider's, whose
    time counts for no other of these (None: for ever; then `StartTimeout`), ``replace_timeout`` to wait for a lost
    node's replacement, ``lease`` after which nodes that hear nothing from here end themselves, ``max_lifetime`` after
    which the pool is ended. ``max_cost``: USD for all its machines, at which it is ended too, by `BudgetExceeded`; see
    `cost`. ``max_idle``: for how long all of its GPUs, or without GPUs its processors, may do nothing, whatever runs on
    them; then `PoolIdle` ends it.

    Entering raises `CapacityError` and others; cancelled half way, it ends what it began. Leaving cancels what still
    runs and returns when the provider has confirmed that every machine is gone. Where it cannot, for as long as their
    lease, leaving raises `CleanupError`; an error of the block's own is raised instead, with that as its ``cleanup``.

    Raises:
        SpecError: an argument that cannot mean anything; nothing was started.
    """

    __signature__: ClassVar[Signature] = settings.shown_signature(
        PoolOptions, DEFAULTS, Parameter("specs", Parameter.VAR_POSITIONAL, annotation="Spec")
    )

    @classmethod
    def from_config(
        cls, pool: str = "default", /, *, file: str | PathLike[str] | None = None, **options: Unpack[PoolOptions]
    ) -> Pool:
        """The pool that a file calls ``pool``: ``with Pool.from_config("train") as pool``.

        The file is the nearest ``outrider.toml``, or ``pyproject.toml`` with a ``[tool.outrider]``, in the working
        directory or above. Each key of ``[pools.train]`` is an option of `Pool`; relative paths are from the file's
        folder on. ``options`` win over what the file says.

        Raises:
            SpecError: there is no such file or pool, or it says something that is not valid: the message names the
                file, the table, and the key that was probably meant.
        """
        from .config.files import pool_of
        from .config.tables import telling

        specs, given, where = pool_of(pool, file, besides=options)
        whole: PoolOptions = {**given, **options}
        with telling(where):
            return cls(*specs, **whole)

    @classmethod
    def attach(cls, name: str, /, *, provider: Provider, **options: Unpack[AttachOptions]) -> Pool:
        """The pool ``name``, taken over from a client on this computer that died: ``async with Pool.attach(...)``.

        Machines that it left, and that have not ended with their lease, are this pool's nodes in place of new ones;
        what ran on them is ended. Those that cannot be taken over, or are too many, are terminated; missing ones are
        launched. ``options``: as of `Pool`; give the same as for the pool that is taken over. `cost`, ``max_cost`` and
        ``max_lifetime`` count from here on; only what ends a machine by itself, its lease and its lifetime, stays as
        it was launched with.

        Raises:
            SpecError: ``provider``'s machines end with their client. Entering raises it when no such pool was left
                there, or its owner lives.
        """
        settings.check_outlives(provider)
        check_known("Pool.attach", options, AttachOptions.__annotations__)
        pool = cls(provider=provider, **options)
        pool._settings = replace(
            pool._settings, name=settings.pool_name(name, most=settings.UNIQUE_LENGTH), attach=True
        )
        return pool

    # --- running --------------------------------------------------------------------------------------------------

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
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False
    ) -> Any:
        """Run a call on one node, ``on`` the head or the node of that rank, or on whichever is free.

        ``keep=True``: the result stays on its node, and a `Ref` is returned, which other calls take in its place.
        Cancelling ends the task on its node, with its process tree.

        Raises:
            Exception: the function's own, with the remote traceback as a note; or an `OutriderError`.
        """
        if more:
            raise surplus("run", call, more)
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
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False
    ) -> Any:
        """Submit a call as `run` does, without waiting: the job that it returns can be awaited, and cancelled.

        The arguments are copied before it returns, large arrays and tensors as well (0.05 s for 100 MB, in which the
        event loop waits): change them as you like.
        """
        if more:
            raise surplus("submit", call, more)
        core = self._here()
        return core.begin(core.pack(call, on, keep=keep, owned=True))

    async def _submitted(
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False
    ) -> SubmittedJob[Any]:
        """Submit a call for another thread, which waits: large arrays are copied in a third one."""
        if more:
            raise surplus("submit", call, more)
        core = self._here()
        packed = core.pack(call, on, keep=keep)
        await core.own(packed.payload)
        return core.begin(packed)

    @overload
    async def broadcast(self, call: Call[R], /, *more: Never) -> list[R]: ...
    @overload
    async def broadcast(self, call: StreamCall[T], /, *more: Never) -> list[AsyncGenerator[T, None]]: ...
    @awaited_as("await pool.broadcast(call), or await (call @ pool)")
    async def broadcast(self, call: Any, /, *more: Never) -> list[Any]:
        """Run a call on every ready node at the same time; the results by rank.

        When a rank's node is lost, what happens is the call's ``on_loss``. Cancelling ends every rank.

        Of a generator: an iterator for each rank, as soon as they run. A rank waits when it is a few values ahead.
        Closing its iterator ends it alone. Its error, or `NodeLost`, is raised by its iterator, and ends the others:
        theirs raise `TaskStopped`. Nothing is run again: first values have been seen.

        Raises:
            BroadcastFailed: some ranks raised; the others' outcomes are readable on it.
            NodeLost, CapacityError: as ``on_loss`` and the pool's ``replace_timeout`` have it.
            SpecError: an argument is streamed, which one task alone can consume.
        """
        if more:
            raise surplus("broadcast", call, more)
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
        """Run several calls at the same time; their results in this order. The first error ends the others.

        In the place of a generator is an iterator over its values, which raises the generator's error.
        """
        from .client import grouping

        return await grouping.gather(self._here(), calls)

    @overload
    async def run_group(self, group: Group[*Ts], /) -> tuple[*Ts]: ...
    @overload
    async def run_group(self, group: MixedGroup[A, Any], /) -> A: ...
    @awaited_as("await pool.gather(*calls), or await ((a & b) >> pool)")
    async def run_group(self, group: Any, /) -> Any:
        """`gather` for ``f(1) & g(2)``."""
        return await self.gather(*members(group))

    @overload
    def submit_group(self, group: Group[*Ts], /) -> Job[tuple[*Ts]]: ...
    @overload
    def submit_group(self, group: MixedGroup[A, Any], /) -> Job[A]: ...
    def submit_group(self, group: Any, /) -> Job[Any]:
        """`run_group` without waiting, as `submit`."""
        from .client import grouping

        return grouping.submit(self._here(), members(group))

    def stream_group(self, group: GroupStream[T], /) -> AsyncGenerator[T, None]:
        """Run the calls at the same time and give each result as it is ready."""
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
    ) -> MapRun[Any]:
        """Run ``function`` for each of ``items``: iterate for the results as they come, or await for a list.

        Cheap items share tasks. At most ``limit`` items (default: a few per slot and task) are between their iterator
        and the caller. ``ordered=False`` gives results as they are ready. A plain iterable is advanced on the event
        loop: give an async one where an item takes time.

        An item's error is raised in its place, with a note that names the item, and ends the items under way. With
        ``errors="return"`` all items run, and each gives an `ItemOutcome` in place of its result; items that shared a
        task with one whose process died run again, unless the function is not to be retried. Errors of the pool are
        raised all the same, and that of ``items`` itself after the results of the items before it.
        """
        core = self._here()
        check_limit(limit)
        one_of("errors", errors, ("raise", "return"))
        from .client.mapping import MapRun, check_map

        check_map(function, items, more)
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
        """Run calls, of which there may be any number, and give each result as it is ready.

        At most ``limit`` calls (default: 1,000, or 4 for each slot) are between their iterator and the caller: the next
        one is taken when a result is. A plain iterable is advanced on the event loop: give an async one where a call
        takes time to come. The first error is raised, with a note of which call it is, counted from 0, and ends the
        calls under way. With ``errors="return"`` all calls run, and each gives an `ItemOutcome` in place of its result.
        Errors of the pool, and of ``calls`` itself, are raised all the same. It begins when it is iterated, and leaving
        it early cancels what is under way.

        Raises:
            NotACall: ``calls`` is a single call, or nothing that gives calls.
        """
        return self._completed(calls, limit, errors).results()

    def _completed(self, calls: Any, limit: int | None, errors: str, *, marked: bool = False) -> CompletedCalls:
        core = self._here()
        check_limit(limit)
        one_of("errors", errors, ("raise", "return"))
        from .client.completed_calls import CompletedCalls, checked_calls

        given = checked_calls(calls, may_block=marked)
        return CompletedCalls(core, given, limit=limit, returns_errors=errors == "return")

    def stream(self, call: StreamCall[T], /, *, on: int | Literal["head"] | None = None) -> AsyncGenerator[T, None]:
        """Run a generator on one node, as `run` does, and give its values as it makes them, at most a few ahead of the
        caller.

        Leaving the iteration early ends the generator's process. A generator whose node is lost is not run again: its
        first values have been seen.
        """
        from .client import streaming

        return streaming.stream(self._here(), call, on)

    # --- objects --------------------------------------------------------------------------------------------------

    @awaited_as("await pool.put(value)")
    async def put(self, value: T, /) -> Ref[T]:
        """Copy a value into the pool, for calls that are given the `Ref` in its place. Each node is sent it once, when
        a call there needs it, and the value is freed when nothing refers to it any more. Cancelling is safe.

        Raises:
            SerializationError: it cannot be pickled.
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
        """Copy files of every node's work folder, or of the one ``on=`` names, to ``to/node-0/``, ``to/node-1/`` ...

        ``pattern``: a file, a folder, or a glob as "log/**". Returns the paths here. It takes no task slot, and works
        while tasks run and after they have failed. Each file is here whole or not at all, and replaces an earlier one:
        cancelling is safe, and so is fetching again. Devices, pipes and links to folders are left out, but for a link
        that the pattern itself names.

        Raises:
            TransferError: a file cannot be written here or read there, or there are more than the limits.
            NodeLost: what had come of it stays, and the files of other nodes come.
            CapacityError: no node is ready.
        """
        from .client import file_transfer

        asked = file_transfer.Fetch.of(pattern, to, max_files=max_files, max_gb=max_gb)
        return await file_transfer.fetch(self._here(), asked, on)

    @awaited_as("await pool.push(path)")
    async def push(
        self, path: str | PathLike[str], /, *, to: str = ".", on: int | Literal["head"] | None = None
    ) -> None:
        """Copy a file or a folder of this computer into the folder ``to`` of each ready node's work folder, under its
        own name. Nodes that join later do not get it.

        Each file replaces an earlier one when it is whole: cancelling is safe, and so is pushing again.

        Raises:
            SpecError: there is no such file.
            TransferError: a file cannot be read here, or written there.
            NodeLost
            CapacityError: no node is ready.
        """
        from .client import file_transfer

        await file_transfer.push(self._here(), path, to, on)

    # --- the pool itself ------------------------------------------------------------------------------------------

    def resize(self, nodes: int) -> None:
        """Grow or shrink towards ``nodes``; what shrinking removes finishes its tasks first. Does not wait.

        With ``Nodes(scale="load")`` it sets the least number, which broadcasts wait for. Work may still add to it.

        Raises:
            SpecError: less than `Nodes.min`, or more than `Nodes.max` where that is given.
        """
        core = self._here()
        self._settings.nodes.check_size(nodes)
        core.resize(nodes)

    @overload
    def handle(self, plugin: Attaching[H], /) -> H: ...
    @overload
    def handle(self, plugin: str, /) -> Any: ...
    def handle(self, plugin: str | Attaching[Any], /) -> Any:
        """Return what a plugin of this pool offers its users; by plugin or name, as in ``pool.handle("dask").address``.

        Raises:
            SpecError: the pool has no such plugin, or it gives nothing.
        """
        name: Any = plugin if isinstance(plugin, str) else getattr(plugin, "name", None)
        handles = self._opened().handles
        if handles.get(name) is None:
            has = ", ".join(each for each, handle in handles.items() if handle is not None) or "none"
            raise SpecError(f"The pool has no plugin {name or plugin!r:.60} with a handle; it has {has}.")
        return handles[name]

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the pool's events from now until it ends, one typed event each. A reader 10,000 behind loses
        some.
        """
        return self._here().observer.subscribe()

    @awaited_as("await pool.stacks()")
    async def stacks(self) -> list[TaskStack]:
        """The stacks of each task and rank under way, by job and rank; the record has them as files, too.

        Nothing is ended or held up by it, and it works while tasks hang, in C code as well. A node that does not answer
        is waited for 5 s.
        """
        from .client.stacks import stacks

        return await stacks(self._here())

    @property
    def chaos(self) -> Report:
        """The report of all faults that ``Pool(chaos=...)`` has caused; it is complete when the pool has ended."""
        if self._injector is None:
            raise SpecError("The pool has no chaos: write Pool(chaos=Chaos(...)), and open it.")
        return self._injector.report

    @property
    def cost(self) -> Cost:
        """USD that its machines have cost so far, and cost per hour: from the request until they are confirmed gone."""
        return self._begun().cost

    def snapshot(self) -> PoolSnapshot:
        """The present state of nodes and tasks."""
        core = self._opened()
        return core.with_traffic(core.observer.snapshot())


ComputePool = Pool
