"""`Pool`: nodes that exist while its block runs, and the methods that run functions on them."""

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
    """A cluster that exists while its block runs: ``async with Pool(...) as pool``, or ``with Pool(...) as pool``.

    The block begins when enough nodes are ready. If opening is cancelled half way, the pool ends everything that it
    started. Leaving the block cancels the calls that still run, and returns when the provider has confirmed that every
    machine is gone.

    Times are in seconds, money is in USD, and sizes are per machine.

    Args:
        specs: Several `Spec`, in place of ``provider`` and the options of machines, for a pool that may use machines of
            several kinds. When one spec's provider has no free machines, the pool tries the next spec (see
            ``selection``).
        provider: The source of machines. Default: `Local()`, this computer.
        accelerator: The devices of each machine: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``.
        vcpus: The least number of virtual processors of each machine. None: any.
        memory_gb: The least memory of each machine, in GB. None: any.
        disk_gb: The least disk of each machine, in GB. None: any.
        architecture: ``"x86_64"`` or ``"arm64"``. None: the cheaper one.
        allocation: ``"spot"``, ``"spot-if-available"``, ``"on-demand"`` or ``"cheapest"``. None:
            ``"spot-if-available"``.
        max_hourly_cost: The highest price of one machine in USD per hour; dearer machines are not used. None: any.
        interconnect: ``"efa"`` places machines close together on a fast network, for ranks that communicate much.
        selection: The spec that is tried first: the ``"cheapest"``, or the ``"first"`` in the given order.
        nodes: ``4``; ``(2, 8)``: ready with 2 and growing to 8; or `Nodes`, which also sets spares and scaling by load.
            Default: 1.
        worker: The task slots of each node: `Worker`, or the number of tasks that a node runs at a time. Default: 1.
        image: The software of the nodes: Python, packages, files and environment variables.
        plugins: Plugins that prepare every task's process, as in ``[plugins.torch()]``.
        on_loss: The reaction of a broadcast to the loss of a rank, unless its function sets it: ``"auto"``,
            ``"restart"``, ``"resend"`` or ``"fail"``.
        checkpoints: The place for the tasks' checkpoints: a folder that all nodes share, or a URL.
        volumes: Buckets that every node mounts as folders.
        name: A name by which `attach` and others find the pool. Several pools may have the same name.
        keep: A folder in the work folder of every node. When the block ends, it is copied to the same folder here, as
            `fetch` copies.
        console: ``"rich"`` shows a live table, ``"plain"`` prints lines, ``"silent"`` shows nothing, not even the
            output of tasks. ``"auto"`` shows a table on a terminal and in notebooks, only the output of tasks in
            applications that have set up logging, and lines elsewhere.
        boot_timeout: Seconds from the launch of a machine to a ready node. A straggler, which does not answer although
            the others of its launch do, is replaced sooner. Default: 600.
        start_timeout: Seconds that a machine may wait in its provider's queue; then `StartTimeout`. The wait does not
            count for any other timeout. None: forever.
        replace_timeout: Seconds to wait for the replacement of a lost node. Default: 600.
        lease: Seconds after which a node ends itself if it receives nothing from this program. Default: 120.
        max_lifetime: Seconds after which the pool ends with `BudgetExceeded`. None: no limit.
        max_cost: USD of all machines together at which the pool ends with `BudgetExceeded`; see `cost`. None: no limit.
        max_idle: Seconds for which all GPUs of the pool (without GPUs, its processors) may be idle, even while calls
            run; then the pool ends with `PoolIdle`. None: no limit.
        sample_every: Seconds between two samples of each node's use, shown by `outrider top`; at least 0.1. With
            0 or None, no samples. Default: 5.
        run: The name of the record that the pool leaves. None: in scripts and notebooks the name of the pool or script;
            in applications that have set up logging, no record. False: no record.
        trackers: The destinations of the record, as in ``[trackers.MLflow("http://host:5000")]``. A pool without a
            record sends nothing.
        flush_timeout: Seconds for which the end of the block waits for the trackers; 0, no wait. Default: 5.
        traces: Whether calls are traces of OpenTelemetry. Needs ``outrider[otel]``.
        chaos: Faults to inject, for tests: see `outrider.testing.Chaos`.

    Raises:
        SpecError: An argument can never work; nothing was started.
        CapacityError: On entering: too few machines. Other errors of the provider and the image are also raised on
            entering.
        CleanupError: On leaving: the end of some machines was not confirmed within the time of their lease. If the
            block itself raised, its error is raised instead, with the `CleanupError` as its ``cleanup``.
    """

    __signature__: ClassVar[Signature] = settings.shown_signature(
        PoolOptions, DEFAULTS, Parameter("specs", Parameter.VAR_POSITIONAL, annotation="Spec")
    )

    @classmethod
    def from_config(
        cls, pool: str = "default", /, *, file: str | PathLike[str] | None = None, **options: Unpack[PoolOptions]
    ) -> Pool:
        """Return the pool that a file describes: ``with Pool.from_config("train") as pool``.

        The file is the nearest ``outrider.toml``, or ``pyproject.toml`` with a table ``[tool.outrider]``, in the
        working directory or above. Each key of ``[pools.train]`` is an option of `Pool`. Relative paths start at the
        folder of the file.

        Args:
            pool: The name of the pool in the file.
            file: The path of the file, in place of a search for it.
            options: Options of `Pool`, which override the options in the file.

        Raises:
            SpecError: The file or the pool does not exist, or the file has an invalid value. The message names the
                file, the table, and the key that was probably meant.
        """
        from .api.language import TOML
        from .config.files import pool_of
        from .config.tables import telling

        specs, written, where = pool_of(pool, file, besides=options)
        whole: PoolOptions = {**written, **options}
        with telling(where):
            result = cls(*specs, **whole)
        result._language = TOML
        return result

    @classmethod
    def attach(cls, name: str, /, *, provider: Provider, **options: Unpack[AttachOptions]) -> Pool:
        """Take over the machines of a dead client on this computer: ``async with Pool.attach(...)``.

        Remaining machines of the pool ``name``, which have not ended with their lease, become nodes of this pool, in
        place of new ones; their running tasks are ended. Machines that cannot be taken over are terminated. `cost`,
        ``max_cost`` and ``max_lifetime`` count from the takeover. A machine still ends itself by the lease and the
        lifetime that it was launched with.

        Args:
            name: The name of the pool that is taken over.
            provider: The provider of its machines.
            options: Options of `Pool`; pass the same ones as for the pool that is taken over. Without ``nodes``, all
                remaining machines become nodes, and one new node is launched if no machine remains. With ``nodes``,
                surplus machines are terminated, which a line reports, and missing ones are launched.

        Raises:
            SpecError: The machines of ``provider`` end with their client. Also on entering, when the computer has no
                such dead pool, or the pool's owner is alive.
        """
        settings.check_outlives(provider)
        check_known("Pool.attach", options, AttachOptions.__annotations__)
        pool = cls(provider=provider, **options)
        name = settings.pool_name(name, most=settings.UNIQUE_LENGTH)
        pool._settings = replace(pool._settings, name=name, attach="nodes" if "nodes" in options else "all")
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
        self, call: Call[Any], /, *more: Never, on: int | Literal["head"] | None = None, keep: bool = False, **no: Never
    ) -> Any:
        """Run a call on one node, and return its result.

        Cancelling ends the task on its node, with its process tree.

        Args:
            call: A pending call of a `@compute` function.
            on: ``"head"``, or the rank of a ready node. None: any free node.
            keep: True leaves the result on its node and returns a `Ref`, which other calls accept in place of the
                result.

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

        The arguments are copied before `submit` returns, including large arrays and tensors (0.05 s for 100 MB, during
        which the event loop is blocked). You may change them afterwards.

        Args:
            call: A pending call of a `@compute` function.
            on: ``"head"``, or the rank of a ready node. None: any free node.
            keep: True leaves the result on its node; the job's result is then a `Ref`.

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
        """Submit a call for another thread, which waits for it; a third thread copies large arrays."""
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

        A generator returns an iterator for each rank, as soon as the ranks run. A rank waits when it is a few values
        ahead of its reader. Closing an iterator ends only its own rank. An error of a rank, or `NodeLost`, is raised by
        the rank's iterator and ends the other ranks, whose iterators raise `TaskStopped`. No rank runs again, because
        the caller has already received its first values.

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
        """Run several calls at the same time, and return their results in this order. The first error ends the others.

        The result of a generator is an iterator over its values, which raises the generator's error.
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
        """Submit a group as `run_group` runs it, without waiting."""
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
        """Run ``function`` for each item: iterate over the results as they arrive, or await a list.

        Cheap items share tasks. An error of the pool is always raised, and so is an error of ``items`` itself, after
        the results of the items before it.

        Args:
            function: A `@compute` function, or any callable, with one argument.
            items: An iterable, or an async iterable. The event loop advances a plain iterable, so pass an async one if
                an item takes time.
            limit: The most items between their iterator and the caller. Default: a few per slot and task.
            ordered: False returns each result as soon as it is ready.
            errors: ``"raise"`` raises the error of an item in place of its result, with a note that names the item, and
                ends the items in progress. ``"return"`` runs all items and returns an `ItemOutcome` for each. If the
                process of a task died, the other items of that task run again, unless the function must not be retried.

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

        The calls begin when the iteration begins. Leaving the iteration early cancels the calls in progress. Errors of
        the pool, and of ``calls`` itself, are always raised.

        Args:
            calls: An iterable, or an async iterable, of pending calls. The event loop advances a plain iterable, so
                pass an async one if producing a call takes time.
            limit: The most calls between their iterator and the caller: the next call is read when a result is taken.
                Default: 1,000, or 4 for each slot.
            errors: ``"raise"`` raises the first error, with a note of the number of its call, counted from 0, and ends
                the calls in progress. ``"return"`` runs all calls and returns an `ItemOutcome` for each.

        Raises:
            NotACall: ``calls`` is a single call, or not an iterable of calls.
        """
        return self._completed(calls, limit, errors).results()

    def _completed(self, calls: Any, limit: int | None, errors: str, *, marked: bool = False) -> CompletedCalls:
        core = self._here()
        check_limit(limit)
        one_of("errors", errors, ("raise", "return"))
        from .client.completed_calls import CompletedCalls, checked_calls

        checked = checked_calls(calls, may_block=marked)
        return CompletedCalls(core, checked, limit=limit, returns_errors=errors == "return")

    def stream(self, call: StreamCall[T], /, *, on: int | Literal["head"] | None = None) -> AsyncGenerator[T, None]:
        """Run a generator on one node, as `run` does, and yield its values, at most a few ahead of the caller.

        Leaving the iteration early ends the process of the generator. A generator whose node is lost does not run
        again, because the caller has already received its first values.
        """
        from .client import streaming

        return streaming.stream(self._here(), call, on)

    # --- objects --------------------------------------------------------------------------------------------------

    @awaited_as("await pool.put(value)")
    async def put(self, value: T, /) -> Ref[T]:
        """Copy a value into the pool, and return a `Ref`, which calls accept in place of the value.

        The value is sent to each node once, when a call on the node needs it. The pool frees the value when nothing
        refers to it any more. Cancelling is safe.

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

        A fetch uses no task slot. It works while tasks run, and after they have failed. Each file arrives completely or
        not at all, and replaces an earlier copy: cancelling is safe, and so is fetching again. Devices, pipes and links
        to folders are left out, except for a link that the pattern itself names.

        Args:
            pattern: A file, a folder, or a glob such as ``"log/**"``, relative to the work folder.
            to: The folder here. Default: the working directory.
            on: ``"head"``, or the rank of a ready node. None: every node.
            max_files: The most files, of all nodes together.
            max_gb: The most GB (10^9 bytes), of all nodes together.

        Returns:
            The paths of the files here.

        Raises:
            TransferError: A file cannot be written here or read on its node, or the files exceed a limit.
            NodeLost: A node was lost. Files that had arrived are kept, and the files of other nodes still arrive.
            CapacityError: No node is ready.
        """
        from .client import file_transfer

        request = file_transfer.Fetch.of(pattern, to, max_files=max_files, max_gb=max_gb)
        return await file_transfer.fetch(self._here(), request, on)

    @awaited_as("await pool.push(path)")
    async def push(
        self, path: str | PathLike[str], /, *, to: str = ".", on: int | Literal["head"] | None = None
    ) -> None:
        """Copy a file or a folder of this computer into the work folder of nodes, under its own name.

        Nodes that join later do not receive it. Each file replaces an earlier copy when it has arrived completely:
        cancelling is safe, and so is pushing again.

        Args:
            path: The file or folder here.
            to: A folder in the work folder of each node. Default: the work folder itself.
            on: ``"head"``, or the rank of a ready node. None: every ready node.

        Raises:
            SpecError: The file does not exist.
            TransferError: A file cannot be read here, or written on a node.
            NodeLost: A node was lost.
            CapacityError: No node is ready.
        """
        from .client import file_transfer

        await file_transfer.push(self._here(), path, to, on)

    # --- the pool itself ------------------------------------------------------------------------------------------

    def resize(self, nodes: int) -> None:
        """Grow or shrink towards this number of nodes, without waiting.

        Nodes that leave the pool finish their tasks first. With ``Nodes(scale="load")`` the number is the least one,
        which broadcasts wait for; load may still add nodes.

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
        """Return the object that a plugin of this pool provides for its users, as in ``pool.handle("dask").address``.

        Args:
            plugin: The plugin, or its name.

        Raises:
            SpecError: The pool has no such plugin, or the plugin provides no object.
        """
        name: Any = plugin if isinstance(plugin, str) else getattr(plugin, "name", None)
        handles = self._opened().handles
        if handles.get(name) is None:
            has = ", ".join(each for each, handle in handles.items() if handle is not None) or "none"
            raise SpecError(f"The pool has no plugin {name or plugin!r:.60} with a handle; it has {has}.")
        return handles[name]

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the pool from now until it ends.

        A reader that is 10,000 events behind loses some.
        """
        return self._here().observer.subscribe()

    @awaited_as("await pool.stacks()")
    async def stacks(self) -> list[TaskStack]:
        """Return the stacks of each running task and rank, by job and rank; the record has them as files, too.

        Taking stacks ends and delays nothing, and works while tasks hang, also in C code. The pool waits at most 5 s
        for a node that does not answer.
        """
        from .client.stacks import stacks

        return await stacks(self._here())

    @property
    def chaos(self) -> Report:
        """The report of all faults that ``Pool(chaos=...)`` has caused; complete when the pool has ended."""
        if self._injector is None:
            raise SpecError("The pool has no chaos: write Pool(chaos=Chaos(...)), and open it.")
        return self._injector.report

    @property
    def cost(self) -> Cost:
        """The USD that the machines have cost so far and cost per hour, from their request to their confirmed end."""
        return self._begun().cost

    def snapshot(self) -> PoolSnapshot:
        """Return the present state of nodes and tasks."""
        core = self._opened()
        return core.with_traffic(core.observer.snapshot())


ComputePool = Pool
