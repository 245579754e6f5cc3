"""The life of one open pool: an asyncio task that opens its provider and its actors, and closes them again.

The task owns every cancel scope (provider, supervisor), so that the application may open the pool in one task and close
it in another: in cells of a notebook, or in start-up hooks of a framework.

Beside `OpenPool`: the context that a plugin gets (`PoolContext`); the handlers of requests that commands such as
`outrider stop` send to the program that owns a run, through the socket in the run's record (`requests_to`); and the
background import of modules that a pool may need only later (`load_rooms`). A pool that has been open for a while
imports all of these modules, because the package on disk may be upgraded meanwhile: the import of a module of another
version may fail, or the module may not work with those in memory.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

import anyio

from ...actors import events as ev
from ...actors.interfaces import Dependencies, Ending, GaveUp, Reason
from ...actors.messages import PoolState, Snapshot, WhenReady
from ...actors.pool import supervise
from ...lazy_dataclass import dataclass
from ...providers.base import Fleet, Warned
from ...providers.errors import NotGone
from ..api.errors import BudgetExceeded, CleanupError, PoolClosed, PoolIdle, RunStopped
from ..api.misuse import CALLED_OFF
from ..api.plugin import Plugin, merged
from ..api.settings import outlives
from ..serialization.error_translation import BlockEnd, not_ready_error, pool_error
from ..wire.importable import ImportableModules
from .budget import BudgetWatch, IdleWatch, UsageIntake, ended_by
from .cleanup import LastWord, add_cleanup, cleanup_result, collecting_failures, finished, uncancelled_exits
from .job_intake import JobIntake, most_nodes
from .observer import Observer
from .opening import executor_setup, launch_request, new_client_key, plugin_packages, pool_spec, requirements

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from ...actors.kernel import Ref
    from ..api.calls import AsyncVerbs
    from ..api.plugin import News
    from ..api.settings import Settings
    from ..api.sink import Request
    from ..image.install_plan import Prepared
    from ..transport.connection import Connector
    from ..transport.connection_settings import ConnectionSettings
    from ..transport.plugin_hosts import PluginHosts
    from ..transport.route import Interpose
    from .adoption import AdoptionRecord
    from .budget import Cost
    from .opening import Opening


# seconds from the pool's start to the import of `ROOMS` in a thread: programs that end before save the 40 ms that the
# import takes
AFTER_S = 10.0
_PACKAGE = __name__.partition(".engine.")[0]
ROOMS = (
    "engine.api.html",
    "engine.client.mapping",
    "engine.client.file_transfer",
    "engine.client.grouping",
    "engine.client.running_tasks",
    "engine.client.streaming",
    "engine.node.stack_text",
    "engine.record.display.notebook",
    "engine.serialization.error_notes",
    "engine.wire.large_copy",
)


def load_rooms() -> None:
    """Import the modules in `ROOMS`. Ignore errors: the first code that uses a broken module gets the error."""
    for room in ROOMS:
        with suppress(ImportError):
            import_module(f"{_PACKAGE}.{room}")


def load_in_background() -> None:
    threading.Thread(target=load_rooms, name="outrider-preloading", daemon=True).start()


@dataclass(slots=True)
class PoolContext:
    """Implements `api.plugin.PluginContext` for one plugin."""

    pool: AsyncVerbs
    core: JobIntake
    _plugin: str
    _hosts: PluginHosts
    _connector: Connector

    @property
    def slots(self) -> int:
        return self.core.observer.slots()

    async def news(self) -> AsyncIterator[News]:
        while True:
            yield await self._hosts.inboxes[self._plugin].read()

    def tell(self, node: NodeId, message: Any) -> None:
        self._hosts.send(node, self._plugin, message)

    async def forward(self, node: NodeId, port: int, *, loopback: bool = False) -> str:
        return await self._connector.forward(node, port, loopback=loopback)


PROFILE_S = 600.0  # most seconds of a profile
STACKS_CHARS = 4 << 20  # most characters of all stacks in a reply; the run's record has the full texts


def requests_to(core: JobIntake, stop: Callable[[], Awaitable[str | None]]) -> Mapping[str, Request]:
    """Return the handler of each request, by its name. `record/runs/control.py` explains how to add a request.

    ``stop``: ends the pool, and returns a text about resources that may be left.
    """
    return {"stop": partial(_stop, stop), "stacks": partial(_stacks, core), "profile": partial(_profile, core)}


async def _stop(
    stop: Callable[[], Awaitable[str | None]],
    fields: Mapping[str, Any],  # noqa: ARG001  it has none
) -> Mapping[str, Any]:
    """End the pool, and reply when nothing of it is left.

    ``left`` in the reply: a text about resources that may be left.
    """
    return {"left": await stop()}


async def _stacks(core: JobIntake, fields: Mapping[str, Any]) -> Mapping[str, Any]:  # noqa: ARG001
    """Take the stacks of all running tasks. ``stacks`` in the reply: the fields of each `TaskStack`."""
    from ..node.stack_text import bounded
    from .running_tasks import stacks

    taken = await stacks(core)
    most = STACKS_CHARS // max(1, len(taken))
    return {"stacks": [asdict(replace(each, text=bounded(each.text, max(200, most)))) for each in taken]}


async def _profile(core: JobIntake, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take a profile of running tasks that ends after ``steps`` steps or ``seconds``.

    ``ranks``: an array of [first, last], to profile only these ranks; else all tasks are profiled. ``profiles`` in the
    reply: the fields of each `ProfileTaken`.
    """
    from ..api.sink import Refused
    from .running_tasks import Busy, take_profile

    ranks = fields.get("ranks")
    chosen = None if ranks is None else lambda rank: any(first <= rank <= last for first, last in ranks)
    steps, seconds = int(fields.get("steps", 0)), float(fields["seconds"])
    if steps < 0 or not 0 < seconds <= PROFILE_S:
        raise Refused(f"a profile takes at most {PROFILE_S:g} seconds")
    try:
        taken = await take_profile(core, steps=steps, seconds=seconds, ranks=chosen)
    except Busy as error:
        raise Refused(str(error)) from None
    return {"profiles": [asdict(each) for each in taken]}


if TYPE_CHECKING:
    PreparedImage = Callable[[], Awaitable[Prepared]]

SNAPSHOT_S = 10.0  # time limit for the actor's reply to a request for a snapshot
# marks of the open pools whose own tasks run the current code (see `waits_for_caller`)
_within: ContextVar[tuple[object, ...]] = ContextVar("outrider_within", default=())


class OpenPool(JobIntake):
    """One open pool. Between `start` and `stop`, it accepts jobs and hands out their results."""

    def __init__(self, settings: Settings, observer: Observer, pool: AsyncVerbs, opening: Opening) -> None:
        super().__init__(settings, observer)
        self._pool, self._opening = pool, opening
        self.handles: dict[str, Any] = {}  # name of a plugin -> the object that the plugin offers to users
        self.interpose: Interpose | None = None  # puts a proxy between the client and machines on this computer
        self.id, self.name, self.tag = opening.id, opening.name, opening.tag
        # get the current folder only if `keep` needs it: the folder may have been deleted, which raises an error
        self.began_in = Path() if settings.keep is None else Path.cwd()
        self.let_save: Callable[[], Awaitable[None]] | None = None  # called before `outrider stop` ends the pool
        self.fetch_owners: dict[Path, int] = {}  # folder of `Pool.fetch` -> the node whose files are in it
        self.cleanup: CleanupError | None = None  # the error of closing the provider
        self._budget = BudgetWatch(settings.max_cost, settings.max_lifetime_s, observer)
        self._idle = IdleWatch(
            settings.max_idle_s,
            settings.sample_every_s,
            observe=observer,
            cost=lambda: self.cost,
            calls=observer.job_counts,
        )
        observer.listener = self._idle
        self._usage = UsageIntake(observer, observer.node_of)
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._life = anyio.CancelScope()
        self._lifes_mark = object()
        self._stop = asyncio.Event()
        self._main: asyncio.Task[None] | None = None
        self._process = os.getpid()
        self._halted: Exception | None = None  # the error given to `halt`
        self._preloading: asyncio.TimerHandle | None = None
        self._block_failed = False
        self._called_off = False

    async def start(self) -> None:
        """Start the pool, and return when it has its minimum number of nodes.

        On cancellation or failure, end everything that was started. If an end is not confirmed, the error says so.
        """
        if self._called_off:
            raise PoolClosed(CALLED_OFF)
        self._main = self.loop.create_task(self._live(), name=f"outrider-pool-{self.id}")
        try:
            await asyncio.shield(self._ready)
            if self._called_off:
                raise PoolClosed(CALLED_OFF)
            self._preloading = self.loop.call_later(AFTER_S, load_in_background)
        except BaseException as error:
            # cancel the scope and not the task: cancelling the task would also cancel the clean-up, in spite of shields
            self._life.cancel()
            await finished(self._main)
            if self.cleanup is not None and getattr(error, "cleanup", None) is not self.cleanup:
                add_cleanup(error, self.cleanup)
            raise

    def call_off(self) -> None:
        """Make a running or later call of `start` undo its work and raise `PoolClosed`."""
        self._called_off = True
        if not self._ready.done():
            self._ready.set_exception(PoolClosed(CALLED_OFF))
            self._ready.exception()  # mark the exception as retrieved, because `start` may not await the future yet

    async def stop(self, *, failed: bool = False) -> None:
        """End the pool and return when nothing is left; a cancellation during the wait is raised afterwards.

        ``failed``: the block that used the pool ends with an error.

        Raises:
            CleanupError: machines may be left.
            BaseException: the error that ended the pool before.
        """
        assert self._main is not None
        self._block_failed = failed
        self._stop.set()
        await finished(self._main)
        if self._failure is not None:
            raise self._failure

    async def halt(self, error: Exception) -> None:
        """End the pool with ``error``, and return when nothing is left of the pool.

        The pool's methods and its block then raise ``error``. If the pool is ending already, wait for its end.
        """
        assert self._main is not None
        if self._halted is None and not self._stop.is_set() and not self._main.done():
            self._halted = error
            self._life.cancel()
        await asyncio.wait([self._main])

    async def _stop_from_outside(self) -> str | None:
        """End the pool for `outrider stop`. Return a text about resources that may be left."""
        if self.let_save is not None:
            await self.let_save()
        await self.halt(RunStopped("The pool was ended from outside, by `outrider stop`."))
        return None if self.cleanup is None else str(self.cleanup)

    @property
    def waits_for_caller(self) -> bool:
        """Return whether the current code runs in the pool's own task, as a plugin's `attach` does, or in a task that
        such code has started.

        The pool's end waits for such code, so this code cannot wait for the pool's end.
        """
        return self._lifes_mark in _within.get()

    @property
    def inherited(self) -> bool:
        """True in a forked child of the pool's process.

        The child does not own the pool's resources, and no thread in the child runs the pool's loop.
        """
        return os.getpid() != self._process

    @property
    def cost(self) -> Cost:
        return self._budget.cost

    def explained(self, ending: Ending) -> Ending:
        # a call during which the pool ended because it was idle
        if isinstance(ending, GaveUp) and ending.reason is Reason.CLOSED:
            return replace(ending, failure=self._idle.error)
        return ending

    async def _live(self) -> None:
        _within.set((*_within.get(), self._lifes_mark))
        cleanup_failures: list[NotGone] = []
        failure: BaseException | None = None
        with self._life:
            try:
                async with uncancelled_exits() as stack:
                    await self._serve(stack, cleanup_failures)
            except BaseException as error:
                failure = self._halted or pool_error(error, self._block_end(error))
                if isinstance(error, asyncio.CancelledError):
                    raise
            finally:
                if self._preloading is not None:
                    self._preloading.cancel()
                self._ref = None
                self.remaking.close()
                self._packer.definitions.clear()
                self._end(failure, cleanup_failures)
                self._usage.close()
                self.observer.failure = failure
                self.observer(ev.PoolClosed())

    async def _serve(self, stack: AsyncExitStack, cleanup_failures: list[NotGone]) -> None:
        """Open the provider, and accept jobs until `stop`. Contexts are entered in ``stack``."""
        settings, provider = self.settings, self.settings.provider
        self._open_observer()
        unwatch = await stack.enter_async_context(ended_by(*self._budget.watches(), *self._idle.watches()))
        stack.callback(self._budget.close)
        record = self._adoption_record(stack)
        opening = collecting_failures(self._opening.take(self.tag), cleanup_failures, self._last_word)
        opened = await stack.enter_async_context(opening)
        # at the end, first stop watching the pool's limits of cost and time: a limit that is reached while machines are
        # being ended would interrupt that
        stack.callback(unwatch)
        fleet: Fleet = opened
        if record is not None:
            fleet, self.settings = await record.around(opened, settings)
            settings, self.most = self.settings, most_nodes(self.settings)
        fleet = self._budget.around(fleet)
        self.observer(ev.PoolStarting(self.name, provider.name, settings.nodes.desired, settings.nodes.min))
        # a slow import, made here so that it overlaps with the provider's start
        from ..transport.connection import Connector
        from ..transport.plugin_hosts import PluginHosts
        from ..transport.reachability import anybody

        plugins = merged(settings.plugins, ())
        hosts = PluginHosts(self.id, plugins, lambda: self.node_modules)
        connection_settings = self._connection_settings(opened, hosts, record, self._image(stack))
        self.connector = connector = Connector(connection_settings)
        stack.push_async_callback(connector.close)
        key = connection_settings.key
        request = launch_request(settings, "" if key is None else key.export_public_key().decode().strip())
        actors = supervise(
            Dependencies(
                fleet,
                request,
                pool_spec(settings),
                connector,
                self.observer,
                self.loop.time,
                anybody,
                preparing=self.observer.preparing,
            )
        )
        ref = await stack.enter_async_context(actors)
        await self._when_ready(ref)
        self._ref = ref
        async with AsyncExitStack() as attached:
            attached.push_async_callback(connector.stop_forwarding)
            for plugin in plugins:
                if type(plugin).attach is not Plugin.attach:
                    context = PoolContext(self._pool, self, plugin.name, hosts, connector)
                    self.handles[plugin.name] = await attached.enter_async_context(plugin.attach(context))
            if not self._ready.done():
                self._ready.set_result(None)
            await self._stop.wait()
        unwatch()
        self._ref = None
        await hosts.stop()

    def _open_observer(self) -> None:
        """Open the receiver of the pool's events.

        If the record (folder) of this run cannot be created, the pool continues without a record.
        """
        try:
            record = self.observer.sinks.record(self._budget.spending, self._requests, self.observer.job_counts)
        except Exception as error:  # noqa: BLE001  such as no home folder, or a plugin of the user's own
            self.observer.open(spending=self._budget.spending)
            self.observer(ev.RecordFailed(str(error) or type(error).__name__))
        else:
            self.observer.open(record, self._budget.spending)
            for event in self.observer.sinks.untracked() if record is None else ():
                self.observer(event)

    def _requests(self) -> Mapping[str, Request]:
        return requests_to(self, self._stop_from_outside)

    def _adoption_record(self, stack: AsyncExitStack) -> AdoptionRecord | None:
        """Return the adoption record, with which a later client could take over the pool.

        None: the pool's machines end with this program, so no client can take them over.
        """
        if not outlives(self.settings.provider):
            return None
        from .adoption import open_record

        record = open_record(self.settings, self.name, self.tag, self.id)
        self.id, self.tag = record.pool, record.name
        stack.push_async_callback(record.close)
        return record

    def _connection_settings(
        self,
        fleet: Fleet,
        hosts: PluginHosts,
        record: AdoptionRecord | None,
        image: Callable[[], Awaitable[Prepared]],
    ) -> ConnectionSettings:
        from ..objects.peer_transfers import PeerTransfers
        from ..transport.connection_settings import ConnectionSettings, Uploads
        from ..transport.instance_views import InstanceViews

        settings = ConnectionSettings(
            pool=self.id,
            views=InstanceViews(self.name, self.settings.worker.concurrency),
            key=new_client_key(self.settings) if record is None else record.key,
            setup={**executor_setup(self.settings), "logs": self.observer.logs.wanted},
            wanted=requirements(self.settings, fleet),
            lease_s=self.settings.lease_s,
            image=image,
            observe=self.observer,
            prints=self.observer.prints,
            logs=self.observer.logs,
            plugins=hosts,
            uploads=Uploads(self.observer),
            interpose=lambda: self.interpose,
            object_bytes=self.settings.worker.object_bytes,
            peers=PeerTransfers(self.observer) if self.settings.worker.node_to_node else None,
        )
        if record is None:
            return settings
        return replace(settings, turn=record.turn, pinned=record.pinned, rotated=record.rotated)

    def _image(self, stack: AsyncExitStack) -> PreparedImage:
        """Start to prepare the image for machines other than this computer, while they boot.

        Return a function that awaits the image.
        """
        if self.settings.provider.local:
            return _nothing_to_prepare
        from ..image.includes import roots
        from ..image.install_plan import prepare

        roots(self.settings.image)  # raises an error for a missing local file, before machines are requested
        packages = plugin_packages(self.settings)
        preparing = self.loop.create_task(prepare(self.settings.image, self.settings.volumes, packages))
        preparing.add_done_callback(self._prepared)
        stack.callback(preparing.cancel)
        return lambda: asyncio.shield(preparing)

    def _prepared(self, preparing: asyncio.Task[Prepared]) -> None:
        # a failure is raised where the image is awaited
        if not preparing.cancelled() and preparing.exception() is None:
            self._packer.node_modules = ImportableModules(preparing.result().includes.modules)

    async def _when_ready(self, ref: Ref[Any]) -> None:
        within_s = left_s = self.settings.boot_timeout_s + self.settings.replace_timeout_s
        while True:
            with suppress(TimeoutError):
                await ref.ask(WhenReady(), within_s=left_s)
                return
            state: PoolState = await ref.ask(Snapshot(), within_s=SNAPSHOT_S)
            if state.queued_ago_s is None or state.queued_ago_s >= within_s:
                break
            left_s = within_s - state.queued_ago_s  # the time that a machine waited in a queue does not count
        ready = sum(node.rank is not None for node in state.nodes)
        raise not_ready_error(state.failed, ready, self.settings.nodes.min, within_s)

    def _end(self, failure: BaseException | None, cleanup_failures: Sequence[NotGone]) -> None:
        self.cleanup = cleanup_result(cleanup_failures, self._warn, self._block_end(failure))
        if self.cleanup is not None:
            self._warn(str(self.cleanup))
        if failure is None:
            self._failure = self.cleanup
            return
        if self.cleanup is not None:
            add_cleanup(failure, self.cleanup)
        elif isinstance(failure, BudgetExceeded | PoolIdle):
            failure.add_note("Its machines are gone, as their provider confirms.")
        cancelled = isinstance(failure, asyncio.CancelledError)
        if not self._ready.done():
            self._ready.set_exception(PoolClosed("start was cancelled") if cancelled else failure)
            self._ready.exception()  # mark the exception as retrieved: `start` raises it, or was cancelled
        elif not cancelled:
            self._failure = failure

    def _block_end(self, failure: BaseException | None) -> BlockEnd:
        if self._called_off or not self._ready.done():
            return "unstarted"
        return "finished" if failure is None and not self._block_failed else "failed"

    def _last_word(self, word: LastWord) -> None:
        if isinstance(word, Warned):
            self._warn(word.text)
        else:
            self._usage.add(word)

    def _warn(self, text: str) -> None:
        self.observer(ev.ProviderWarned(text))


async def _nothing_to_prepare() -> Never:
    raise AssertionError("machines on this computer have its software")
