"""`Pool`: a set of nodes that exist while the pool's block runs, with methods that run functions on the nodes."""

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

    The block begins when enough nodes are ready. If opening is cancelled, the pool ends everything that it has started.
    Leaving the block cancels the calls that still run, and returns when the provider has confirmed that every machine
    is gone.

    Times are in seconds, money is in USD, and sizes are per machine.

    Args:
        specs: Several `Spec`, in place of ``provider`` and the options of machines, for a pool that may use machines of
            several kinds. If a spec has no machines available, the pool tries the next one (see ``selection``).
        provider: Where machines come from. Default: `Local()`, this computer.
        accelerator: The devices of each machine: ``"A100"``, ``"A100:8"`` or ``accelerators.A100(count=8)``.
        vcpus: The least number of virtual processors of each machine. None: any.
        memory_gb: The least memory of each machine, in GB. None: any.
        disk_gb: The least disk of each machine, in GB. None: any.
        architecture: ``"x86_64"`` or ``"arm64"``. None: the one that costs less.
        allocation: ``"spot"``, ``"spot-if-available"``, ``"on-demand"`` or ``"cheapest"``. None:
            ``"spot-if-available"``.
        max_hourly_cost: The highest price of one machine in USD per hour; more expensive machines are not used. None:
            no limit.
        interconnect: ``"efa"`` places machines close together on a fast network, for ranks that communicate much.
        selection: Which of several specs is tried first: the ``"cheapest"``, or the ``"first"`` in the order given.
        nodes: ``4``; ``(2, 8)``: ready with 2 and growing to 8; or `Nodes`, which also sets spares and scaling by load.
            Default: 1.
        worker: The task slots of each node: `Worker`, or the number of tasks that a node runs at a time. Default: 1.
        image: The software of the nodes: Python, packages, files and environment variables.
        plugins: Plugins that prepare every task's process, as in ``[plugins.torch()]``.
        on_loss: What a broadcast does when it loses a rank, unless its function sets it: ``"auto"``, ``"restart"``,
            ``"resend"`` or ``"fail"``.
        checkpoints: Where tasks keep their checkpoints: a folder that all nodes share, or a URL.
        volumes: Buckets that every node mounts as folders.
        name: A name to find the pool by, as `attach` does. Several pools may have the same name.
        keep: A folder in the work folder of every node, copied to the same folder here when the block ends, as `fetch`
            copies.
        console: ``"rich"`` shows a live table, ``"plain"`` prints lines, ``"silent"`` shows nothing, not even the
            output of tasks. ``"auto"`` is a table on a terminal and in notebooks, only the output of tasks in
            applications that have set up logging, and lines elsewhere.
        boot_timeout: Seconds from the launch of a machine to a ready node. A straggler (a machine that does not respond
            although most others of the same launch do) is replaced earlier. Default: 600.
        start_timeout: Seconds that a machine may wait in its provider's queue; then `StartTimeout`. This time does not
            count towards other timeouts. None: no limit.
        replace_timeout: Seconds to wait for the replacement of a lost node. Default: 600.
        lease: Seconds after which a node without contact to this program ends itself. Default: 120.
        max_lifetime: Seconds after which the pool ends with `BudgetExceeded`. None: no limit.
        max_cost: The total cost in USD at which the pool ends with `BudgetExceeded`; see `cost`. None: no limit.
        max_idle: Seconds without any use of the pool's GPUs (of its processors, if it has no GPUs) after which
            `PoolIdle` ends the pool, even if calls are running. None: no limit.
        sample_every: Seconds between two samples of each node's resource use, shown by `outrider top`; at least 0.1.
            With 0 or None, no samples. Default: 5.
        run: The name of the record that the pool writes. None: in scripts and notebooks the name of the pool or script;
            in applications that have set up logging, no record. False: no record.
        trackers: Experiment trackers that receive the record, as in ``[trackers.MLflow("http://host:5000")]``. They
            receive nothing if there is no record.
        flush_timeout: Seconds that the end of the block waits for the trackers; 0 means no wait. Default: 5.
        traces: Whether calls are traced with OpenTelemetry. Needs ``outrider[otel]``.
        chaos: Faults to inject, for tests: see `outrider.testing.Chaos`.

    Raises:
        SpecError: An argument can never work; nothing was started.
        CapacityError: On entering: too few machines. Other errors of the provider and the image are raised there, too.
        CleanupError: On leaving: the end of some machines was not confirmed within the time of their lease. If the
            block itself raised, its error is raised instead, with this one as its ``cleanup``.
    """

    __signature__: ClassVar[Signature] = settings.shown_signature(
        PoolOptions, DEFAULTS, Parameter("specs", Parameter.VAR_POSITIONAL, annotation="Spec")
    )

    @classmethod
    def from_config(
        cls, pool: str = "default", /, *, file: str | PathLike[str] | None = None, **options: Unpack[PoolOptions]
    ) -> Pool:
        """Return the pool that a file describes: ``with Pool.from_config("train") as pool``.

        The file is the nearest ``outrider.toml``, or ``pyproject.toml`` with a ``[tool.outrider]`` table, in the
        working directory or a folder above it. Each key of ``[pools.train]`` is an option of `Pool`. Relative paths
        start at the folder of the file.

        Args:
            pool: The name of the pool in the file.
            file: The path of the file, in place of a search for it.
            options: Options of `Pool`, which override those of the file.

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
        """Take over the machines of a client on this computer that died: ``async with Pool.attach(...)``.

        The remaining machines of the pool ``name`` whose lease has not expired become nodes of this pool, and their
        running tasks are ended. Machines that cannot be taken over are terminated. `cost`, ``max_cost`` and
        ``max_lifetime`` count from this call on. A machine still ends itself by the lease and the lifetime with which
        it was launched.

        Args:
            name: The name of the pool to take over.
            provider: The provider of the pool's machines.
            options: Options of `Pool`; give the same options as for the pool that is taken over. Without ``nodes``, all
                remaining machines become nodes, and one new node is launched if there are none. With ``nodes``, surplus
                machines are terminated, which is printed, and missing machines are launched.

        Raises:
            SpecError: The machines of ``provider`` end with their client. Also raised on entering, if no such pool is
                left on this computer, or if its owner is alive.
        """
        settings.check_outlives(provider)
        check_known("Pool.attach", options, AttachOptions.__annotations__)
        pool = cls(provider=provider, **options)
        name = settings.pool_name(name, most=settings.UNIQUE_LENGTH)
        pool._settings = replace(pool._settings, name=name, attach="nodes" if "nodes" in options else "all")
        return pool

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
        from .client.completed_calls import CompletedCalls, checked_calls

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
        from .client.stacks import stacks

        return await stacks(self._here())

    @property
    def chaos(self) -> Report:
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


ComputePool = Pool
