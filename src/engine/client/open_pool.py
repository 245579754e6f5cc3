"""One open pool: its machines, its actors and its jobs, in an asyncio task of its own.

The task owns every scope (provider, supervisor), so that the application may open and close the pool wherever it
likes: in one task or two, in a notebook's cells, in a framework's start-up hooks.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Never

import anyio

from ...actors import events as ev
from ...actors.kernel import ActorStopped, RestartsExhausted
from ...actors.messages import Broadcast, Cancel, PoolState, Resize, Snapshot, Submit, WhenReady
from ...actors.pool import supervise
from ...actors.ports import (
    BroadcastSpec,
    ConnectFailed,
    Ending,
    JobId,
    NodeFacts,
    NodeId,
    NoWorkers,
    OnLoss,
    PoolSpec,
    Task,
    TaskId,
)
from ...providers.base import Embedding, Fleet, LaunchRequest, Machine
from ...providers.errors import NotGone, ProviderError
from ..api.errors import BudgetExceeded, CapacityError, CleanupError, OutriderError, PoolClosed, SpecError
from ..api.machine_spec import is_free, outlives
from ..api.plugin import merged, one_listens
from ..api.printable import plainly
from ..api.secrets import SECRET, crossing, is_crossing, revealed_env
from ..api.settings import unique
from ..checkpoint.urls import VARIABLE as CHECKPOINTS
from ..node.freeports import FEW as MOST_PORTS
from ..observe.observer import Observer
from ..serialization import pickling, program, versions
from ..serialization.error_translation import Course, cleanup_error, no_node_error, pickling_error, provider_error
from ..serialization.functions import Defined, Definitions
from ..serialization.importable import Reach
from ..serialization.payload import Blob, Payload
from ..serialization.shared import Shared, pending_references, referred
from ..serialization.streams import Source, Values
from ..wire import values
from ..wire.messages import RunFlag, Value
from . import budget_watch
from .plugin_context import attached
from .plugin_hosts import PluginHosts
from .provider_exit import add, outcome, parted
from .provider_fallback import FallbackFleet
from .waiting import finished

if TYPE_CHECKING:
    from ...actors.kernel import Ref
    from ..api.calls import Call, StreamCall
    from ..api.compute import Decorated
    from ..api.plugin import Plugin
    from ..api.settings import Options
    from ..image.bootstrap import Phase, Prepared
    from ..pool import Pool
    from ..pool_options import Settings
    from ..serialization.versions import Mismatch
    from ..transport.connection import Connector
    from ..transport.requirement_check import Wanted
    from ..transport.ssh import Wiring
    from .budget import Cost
    from .takeover import Estate

RECONNECT_S = 3.0  # a lost connection is tried again before its node counts as lost; heartbeats took 6 s to find out
SNAPSHOT_S = 10.0  # for the pool's own actor to answer

EMBEDDING = Embedding(
    fork_server="outrider.engine.node.forkserver:serve",
    home="outrider.engine.node.server:ExecutorServer",
    template="outrider.engine.node.template:Template",
)


class OpenPool:
    """Starts with `start`, ends with `stop`; between them jobs go in and endings come out."""

    def __init__(self, settings: Settings, observer: Observer, pool: Pool) -> None:
        self.settings, self.observer, self.pool = settings, observer, pool
        self.handles: Mapping[str, Any] = {}  # by plugin
        self.wiring: Wiring | None = None  # in between, towards machines of this computer
        self.plugins: tuple[Plugin, ...] = ()  # around all others, of what is submitted from now on
        self.id = secrets.token_hex(4)
        self.name = settings.name or self.id  # for people: another pool, of anybody, may have the same
        self.tag = self.id if settings.name is None else unique(settings.name)
        self._meter = budget_watch.BudgetWatch(settings.max_cost, settings.max_lifetime_s, observer)
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._life = anyio.CancelScope()
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._ref: Ref[Any] | None = None
        self._process = os.getpid()
        self._connector: Connector | None = None
        self._defined = Definitions(self._forget)
        self._ids = itertools.count(1)
        self._failure: BaseException | None = None
        self._failed = False  # so has its block
        self.cleanup: CleanupError | None = None  # what leaving the provider failed with
        self._told_versions: set[tuple[tuple[str, str, str], ...]] = set()
        self._reach: Reach | None = None  # None: nodes import what this program can

    # --- life ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Return when the pool has its least number of nodes. Cancelled or failed, it ends what it began; where that is
        not confirmed, the error says so.
        """
        self._main = self._loop.create_task(self._live(), name=f"outrider-pool-{self.id}")
        try:
            await asyncio.shield(self._ready)
        except BaseException as error:
            self._life.cancel()  # not the task: asyncio would cancel what is being undone as well, in spite of shields
            await finished(self._main)
            if self.cleanup is not None and getattr(error, "cleanup", None) is not self.cleanup:
                add(error, self.cleanup)
            raise

    async def stop(self, *, failed: bool = False) -> None:
        """End everything and return when nothing is left; a cancellation meanwhile is raised afterwards. ``failed``:
        whoever used it ends with an error.

        Raises:
            CleanupError: machines may be left.
            BaseException: what ended the pool before.
        """
        assert self._main is not None
        self._failed = failed
        self._stop.set()
        await finished(self._main)
        if self._failure is not None:
            raise self._failure

    async def _live(self) -> None:
        with self._life:
            await self._run()

    async def _run(self) -> None:
        settings = self.settings
        trouble: list[NotGone] = []
        failure: BaseException | None = None
        try:
            async with _undoing() as stack:
                unwatch = await stack.enter_async_context(self._meter.watched())
                stack.callback(self._meter.close)
                estate = self._estate(stack)
                context = parted(settings.provider.open(self.tag, self._embedding()), trouble, self._warn)
                opened = await stack.enter_async_context(context)
                stack.callback(unwatch)  # a limit that is reached while machines are ended would stop that
                fleet = self._meter.around(await self._kept(opened, estate))
                self.observer.open()
                name, nodes = settings.provider.name, settings.nodes
                self.observer(ev.PoolStarting(self.name, name, nodes.desired, nodes.min))
                from ..transport.connection import Connector, Terms
                from ..transport.reachability import anybody
                from ..transport.ssh import new_key
                from ..transport.views import Views

                key = new_key() if estate is None else estate.key
                plugins = merged(settings.plugins, ())
                stewards = PluginHosts(self.id, plugins, lambda: self._reach)
                terms = Terms(
                    pool=self.id,
                    views=Views(self.name, settings.worker.concurrency),
                    key=key,
                    setup=self._setup(),
                    wanted=lambda machine: self._wanted(opened, machine),
                    lease_s=settings.lease_s,
                    image=self._image(stack),
                    progress=self._progress,
                    differing=self._differing,
                    printed=self.observer.printed,
                    plugins=stewards,
                    wiring=lambda: self.wiring,
                    turn="" if estate is None else estate.turn,
                    pinned=_launched_with if estate is None else estate.pinned,
                    rotated=None if estate is None else estate.rotated,
                )
                self._connector = connector = Connector(terms)
                stack.push_async_callback(connector.close)
                ref = await stack.enter_async_context(
                    supervise(
                        fleet,
                        self._request(key.export_public_key().decode().strip()),
                        self._spec(),
                        connector,
                        self.observer,
                        witness=anybody,
                        clock=self._loop.time,
                    )
                )
                await self._when_ready(ref)
                self._ref = ref
                async with attached(self, plugins, stewards, connector) as self.handles:
                    self._ready.set_result(None)
                    await self._stop.wait()
                unwatch()
                self._ref = None
                await stewards.stop()
        except BaseException as error:
            failure = _told(error, self._course(error))
            if _is_cancelled(error):
                raise
        finally:
            self._ref = None
            self._defined.clear()
            self._end(failure, trouble)
            self.observer(ev.PoolClosed())

    def _end(self, failure: BaseException | None, trouble: Sequence[NotGone]) -> None:
        """Record how the pool ended and what is left of it, and tell whoever waits for it."""
        self.cleanup = outcome(trouble, self._warn, self._course(failure))
        if self.cleanup is not None:
            self._warn(str(self.cleanup))
        if failure is None:
            self._failure = self.cleanup
            return
        if self.cleanup is not None:
            add(failure, self.cleanup)
        elif isinstance(failure, BudgetExceeded):
            failure.add_note("Its machines are gone, as their provider confirms.")
        if not self._ready.done():
            self._ready.set_exception(PoolClosed("start was cancelled") if _is_cancelled(failure) else failure)
            self._ready.exception()  # the starter has been told, or has gone
        elif not _is_cancelled(failure):
            self._failure = failure

    def _course(self, failure: BaseException | None) -> Course:
        if not self._ready.done():
            return "unstarted"
        return "finished" if failure is None and not self._failed else "failed"

    def _warn(self, text: str) -> None:
        self.observer(ev.ProviderWarned(text))

    async def _when_ready(self, ref: Ref[Any]) -> None:
        within_s = self.settings.boot_timeout_s + self.settings.replace_timeout_s
        with suppress(TimeoutError):
            await ref.ask(WhenReady(), within_s=within_s)
            return
        state: PoolState = await ref.ask(Snapshot(), within_s=SNAPSHOT_S)
        ready = sum(node.rank is not None for node in state.nodes)
        raise _not_ready(state.failed, ready, self.settings.nodes.min, within_s)

    def _estate(self, stack: AsyncExitStack) -> Estate | None:
        """None: the machines end with this program, and nobody can take them over.

        Raises:
            SpecError, ProviderError
        """
        settings = self.settings
        if not outlives(settings.provider):
            return None
        from ...providers.journal import Journal
        from .takeover import Estate

        journal, provider = Journal.open(), settings.provider.name
        if settings.attach:
            estate = Estate.inherit(journal, self.name, provider)
            self.id, self.tag = estate.pool, estate.name
        else:
            estate = Estate.begin(journal, self.tag, provider, pool=self.id, lease_s=settings.lease_s)
        stack.push_async_callback(estate.close)
        return estate

    async def _kept(self, fleet: Fleet, estate: Estate | None) -> Fleet:
        if estate is None:
            return fleet
        from .takeover import Kept

        if not self.settings.attach:
            return Kept(fleet, estate)
        nodes = self.settings.nodes
        return await Kept.inherit(fleet, estate, nodes.desired + nodes.spare, self.settings.lease_s)

    @property
    def inherited(self) -> bool:
        """True in a forked child: there nobody runs the loop, and nothing of the pool belongs to the child."""
        return os.getpid() != self._process

    @property
    def cost(self) -> Cost:
        return self._meter.cost

    def _request(self, client_key: str) -> LaunchRequest:
        """Return the launch request for the first spec's machines; a provider fallback among several specs asks for
        each of them.
        """
        settings = self.settings
        return settings.specs[0].asked(
            LaunchRequest(
                client_key=client_key,
                nodes=settings.nodes.desired + settings.nodes.spare,
                least=settings.nodes.min,
                lease_s=settings.lease_s,
                max_lifetime_s=settings.max_lifetime_s,
            )
        )

    def _wanted(self, fleet: Fleet, machine: Machine) -> Wanted:
        """Return what the machine must turn out to have. Processors and memory of a cloud's machine are taken from its
        catalogue.
        """
        from ..transport.requirement_check import Wanted

        chosen = fleet.spec_of(machine.id) if isinstance(fleet, FallbackFleet) else None
        spec = chosen or self.settings.specs[0]
        if not is_free(spec.provider):
            return Wanted(spec.accelerator)
        return Wanted(spec.accelerator, spec.vcpus, spec.memory_gb)

    def _image(self, stack: AsyncExitStack) -> Callable[[], Awaitable[Prepared]]:
        """Start to put together what goes onto machines that are not this computer, while they boot; return how to
        await it.
        """
        if self.settings.provider.local:
            return _nothing_to_prepare
        from ..image.prepare import prepare

        preparing = self._loop.create_task(prepare(self.settings.image, self.settings.volumes))
        preparing.add_done_callback(self._prepared)
        stack.callback(preparing.cancel)
        return lambda: asyncio.shield(preparing)

    def _prepared(self, preparing: asyncio.Task[Prepared]) -> None:
        if not preparing.cancelled() and preparing.exception() is None:  # which is told to whoever waits for it
            self._reach = Reach(preparing.result().includes.modules)

    def _progress(self, node: NodeId, phase: Phase) -> None:
        took_s = phase.seconds if phase.state == "finished" else None
        self.observer(ev.NodePreparing(node, phase.name, phase.text, took_s))

    def _differing(self, node: NodeId, mismatches: Sequence[Mismatch]) -> None:
        """Nodes of one image differ alike: that is worth one word."""
        rows = tuple(each.row for each in mismatches)
        if rows not in self._told_versions:
            self._told_versions.add(rows)
            self.observer(ev.VersionsDiffer(node, rows, versions.table(mismatches)))

    @property
    def reach(self) -> Reach | None:
        """The modules that the nodes can import; None: those that this program can."""
        return self._reach

    def _setup(self) -> dict[str, Any]:
        worker, env = self.settings.worker, revealed_env(self.settings.image.env)
        if self.settings.checkpoints is not None:
            env[CHECKPOINTS] = self.settings.checkpoints
        return {"slots": worker.concurrency, "kind": worker.kind, "env": env, "preload": list(self._preload())}

    def _preload(self) -> tuple[str, ...]:
        modules = [module for plugin in merged(self.settings.plugins, ()) for module in plugin.preload]
        return tuple(dict.fromkeys(modules))

    def _embedding(self) -> Embedding:
        """Machines that are processes share what is imported, unless that might depend on the tasks' environment."""
        return EMBEDDING if self.settings.image.env else replace(EMBEDDING, preload=self._preload())

    def _spec(self) -> PoolSpec:
        nodes = self.settings.nodes
        return PoolSpec(
            desired=nodes.desired,
            min=nodes.min,
            max=nodes.max,
            spare=nodes.spare,
            slots=self.settings.worker.concurrency,
            boot_timeout_s=self.settings.boot_timeout_s,
            replace_timeout_s=self.settings.replace_timeout_s,
            reconnect_s=RECONNECT_S,
            lease_s=self.settings.lease_s,
        )

    # --- jobs ---------------------------------------------------------------------------------------------------

    def tell(self, message: Any) -> None:
        """Raises: PoolClosed"""
        if self._ref is None:
            raise self._gone()
        try:
            self._ref.hand(message)
        except ActorStopped:  # it has failed, and its end is on its way to us
            raise self._gone() from None

    def _gone(self) -> PoolClosed:
        if self._failure is not None:
            error = PoolClosed(f"The pool failed ({self._failure}) and has ended: open another one.")
            error.__cause__ = self._failure
            return error
        return PoolClosed("The pool is not open: use it inside `async with Pool(...) as pool`.")

    def new_job(self) -> JobId:
        return JobId(next(self._ids))

    def submit(
        self, job: JobId, payload: Payload, options: Options, on: int | None, settle: Callable[[Ending], None]
    ) -> None:
        at_most_once = options.at_most_once or payload.output is not None or bool(payload.inputs)
        task = Task(
            TaskId(job),
            job,
            payload.function,
            payload,
            on,
            0 if at_most_once else options.retries,
            at_most_once,
            options.queue_timeout_s,
            0 if at_most_once else options.max_restarts,
        )
        self.tell(Submit(task, settle))

    def broadcast(self, job: JobId, payload: Payload, options: Options, plugins: Sequence[Plugin],
                  settle: Callable[[Sequence[Ending], int], None]) -> None:  # fmt: skip
        collective = any(plugin.collective for plugin in plugins)
        wish = options.on_loss if options.on_loss != "auto" else self.settings.on_loss
        if wish == "auto":
            wish = "restart" if collective else "resend"
        if options.max_restarts:
            wish = "restart"
        if options.at_most_once:
            wish = "fail"

        def ranks_per_node(facts: NodeFacts) -> int:
            return max((plugin.ranks_per_node(facts) for plugin in plugins), default=1)

        if any(plugin.fresh_ranks for plugin in plugins):
            payload.flags |= RunFlag.FRESH
        ports = one_listens(plugins)
        for facts in self._connector.facts if self._connector is not None and plugins else ():
            ranks = ranks_per_node(facts)  # what a plugin raises is its caller's, and not the actor's
            if ports == "ranks" and ranks > MOST_PORTS:
                raise SpecError(f"{ranks} ranks per node would each need a port: at most {MOST_PORTS} of a node can.")
        spec = BroadcastSpec(
            job=job,
            function=payload.function,
            content=payload,
            on_loss=OnLoss[wish.upper()],
            collective=collective,
            ranks_per_node=ranks_per_node,
            every_rank_listens=ports == "ranks",
            at_most_once=options.at_most_once,
            queue_timeout_s=options.queue_timeout_s,
            restarts=options.retries,
            max_restarts=options.max_restarts,
        )
        self.tell(Broadcast(spec, settle))

    def cancel(self, job: JobId) -> None:
        if self._ref is not None:
            with suppress(ActorStopped):  # then everything is settled
                self._ref.tell(Cancel(job))

    def resize(self, count: int) -> None:
        self.tell(Resize(count))

    # --- what a job carries ----------------------------------------------------------------------------------------

    def plugins_of(self, function: Decorated[Any]) -> tuple[Plugin, ...]:
        return merged((*self.plugins, *self.settings.plugins), function.plugins)

    def surround(self, plugins: Sequence[Plugin]) -> None:
        """Set the plugins that surround every task from now on; none: no plugin does."""
        self.plugins = tuple(plugins)
        self._defined.clear()

    def cut(self, node: NodeId, cause: str) -> None:
        """See `Connector.cut`."""
        if self._connector is not None:
            self._connector.cut(node, cause)

    def pack(self, call: Call[Any] | StreamCall[Any]) -> Payload:
        """Pickle a call, once for all its attempts and ranks: later changes to the arguments do not show.

        Raises:
            SerializationError: with the path of what cannot be pickled.
        """
        if self._ref is None:
            raise self._gone()
        options = call.options
        args, kwargs, inputs = call.detach()
        defined = self._defined.get(call.function) or self._define(call.function)
        digest, code, flags, copied = defined.digest, defined.code, defined.flags, defined.copied
        name = options.name or call.function.__name__
        if copied is None and self._reach is None:
            value, blob = self._dump((args, kwargs), name)
        else:
            with pickling.towards(self._reach), pickling.copied(*([copied] if copied else ())):
                value, blob = self._dump((args, kwargs), name, by_reference=False)
        shared = referred() if pending_references else ()
        if not inputs:
            return Payload(name, digest, code, value, blob, options.timeout_s, flags, shared=shared, defined=defined)
        feeds = tuple(Source(each) for each in inputs)
        flags |= RunFlag.ALONE
        return Payload(
            name, digest, code, value, blob, options.timeout_s, flags, inputs=feeds, shared=shared, defined=defined
        )

    def share(self, value: object) -> Shared[Any]:
        """A value to give to any number of calls of this pool, which each node is sent once. On the pool's loop.

        Raises:
            SerializationError
        """
        if self._connector is None:
            raise self._gone()
        try:
            dumped = values.dump(value)
        except values.Unpicklable as error:
            raise pickling_error(error, "share", "The value") from error
        blob = Blob(f"{self.id}-{next(self._ids)}", dumped.parts, dumped.total)
        return Shared(blob, dumped.sizes, self._connector.drop)

    def pack_stream(self, call: StreamCall[Any]) -> tuple[Payload, Values]:
        payload, output = self.pack(call), Values()
        payload.output = output
        payload.flags |= RunFlag.STREAM | RunFlag.ALONE
        return payload, output

    def _dump(
        self, arguments: tuple[tuple[Any, ...], dict[str, Any]], task: str, *, by_reference: bool = True
    ) -> tuple[Value, Blob | None]:
        try:
            dumped = values.dump(arguments, ("args", "kwargs"), by_reference=by_reference)
        except values.Unpicklable as error:
            pending_references.clear()
            if error.kind == SECRET and not is_crossing():
                with crossing():
                    return self._dump(arguments, task, by_reference=by_reference)
            raise pickling_error(error, task, "an argument") from error
        if dumped.total <= values.INLINE_BYTES:
            return values.inline(dumped), None
        blob = Blob(f"{self.id}-{next(self._ids)}", dumped.parts, dumped.total)
        return Value(b"", dumped.sizes, blob.name), blob

    def _define(self, function: Decorated[Any]) -> Defined:
        """Pickled once per pool: 12 us a call saved, and what the function refers to is a snapshot."""
        plugins = self.plugins_of(function)
        for plugin in function.plugins:
            if plugin.has_halves and plugin not in self.settings.plugins:
                raise SpecError(
                    f"The {plugin.name} plugin works on whole nodes: give it to the pool, by Pool(plugins=[...]), and "
                    f"not to {function.__name__} alone."
                )
        if self.settings.worker.kind == "thread":
            for plugin in plugins:
                if plugin.collective or plugin.fresh_process or plugin.fresh_ranks:
                    raise SpecError(
                        f"The {plugin.name} plugin sets up a whole process, which {function.__name__} would share with "
                        'other tasks: use Worker(kind="process").'
                    )
        with pickling.towards(self._reach):
            code = program.build(function, (*self.plugins, *self.settings.plugins))
        flags = RunFlag.FRESH if any(plugin.fresh_process for plugin in plugins) else 0
        module = function.__module__
        with pickling.towards(self._reach):
            copied = None if module == "__main__" or pickling.reached(module) else module
        return self._defined.add(function, code, int(flags), copied)

    def _forget(self, digest: bytes) -> None:
        if self._connector is not None:
            self._connector.forget(digest)

    def release(self, payload: Payload) -> None:
        """The job is settled: nobody reads its blob any more."""
        if payload.blob is not None and self._connector is not None:
            self._connector.drop(payload.blob)
            payload.blob = None
        if payload.shared:
            for shared in payload.shared:
                shared.released()
            payload.shared = ()


def _launched_with(_: Machine) -> tuple[str, ...]:
    """No host key but the one that the machine was launched with."""
    return ()


async def _nothing_to_prepare() -> Never:
    raise AssertionError("machines on this computer have its software")


@asynccontextmanager
async def _undoing() -> AsyncIterator[AsyncExitStack]:
    """A stack that is left to its end: a scope that is cancelled around it ends the block, and none of its exits."""
    with anyio.CancelScope() as exits:
        async with AsyncExitStack() as stack:
            try:
                yield stack
            finally:
                exits.shield = True


def _told(error: BaseException, course: Course) -> BaseException:
    """Return the error that ended the pool, in users' terms."""
    failure = _only(error)
    match failure:
        case NotGone():
            return cleanup_error(failure, course)
        case ProviderError():
            return provider_error(failure)
        case RestartsExhausted():
            story = f"{type(failure.__cause__).__name__}: {failure.__cause__}"
            closed = PoolClosed(f"The pool ended by a defect of Outrider's own ({story}).")
            closed.__cause__ = plainly(error)
            return closed
        case ConnectFailed() | NoWorkers():
            return _unreached(failure)
        case _:
            return failure


def _not_ready(failed: Exception | None, ready: int, least: int, within_s: float) -> OutriderError:
    """Return the error for too few ready nodes, told by the error that kept the last one."""
    counts = f"{ready} of the {least} nodes that the pool needs were ready within {within_s:g} s"
    if failed is None:
        story = f"{counts}, and none has failed: give them longer, by boot_timeout."
        return CapacityError(story, wanted=least, got=ready)
    told = _told(failed, "unstarted")
    error = told if isinstance(told, OutriderError) else CapacityError(str(failed), wanted=least, got=ready)
    error.add_note(f"Only {counts}.")
    return error


def _unreached(failed: ConnectFailed | NoWorkers) -> Exception:
    """Return the error that kept a node from being of use, with notes on what kept others."""
    error = no_node_error(failed)
    for note in getattr(failed, "__notes__", ()):
        error.add_note(note)
    return error


def _is_cancelled(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)


def _only(error: BaseException) -> BaseException:
    """The exception that task groups wrapped, where it is alone."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
