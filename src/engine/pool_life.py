"""The life of a pool: its opening and closing, on the event loop that opened it; and its `repr`."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from contextvars import Context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from ..collector import at_rest
from .api.checks import check_known
from .api.errors import CleanupError, OutriderError, PoolClosed, SpecError
from .api.language import PYTHON, reword
from .api.misuse import (
    CALLED_OFF,
    ENDED,
    INHERITED,
    NOT_OPEN,
    OPEN_FOR_THREADS,
    Runner,
    awaited_as,
    check_guard,
    check_loop,
)
from .api.printable import one_line
from .api.tracebacks import cut
from .client.opening import Opening
from .pool_options import DEFAULTS, PoolOptions, checked

if TYPE_CHECKING:
    import asyncio

    from ..providers.base import Provider
    from .api.settings import ConsoleOption, Spec
    from .client.loop_thread import LoopThread
    from .client.open_pool import OpenPool
    from .observe.observer import Observer
    from .runs.whole_program import WholeProgram
    from .sync import SyncPool
    from .testing.chaos.fault_injector import FaultInjector
    from .testing.chaos.plan import Chaos


def provider_name(provider: Provider) -> str:
    try:
        return one_line(provider.name)
    except Exception:  # noqa: BLE001  a provider by other authors may raise anything
        return type(provider).__name__


def _import_sync() -> None:
    from . import sync  # noqa: F401  also imports asyncio


class PoolLife(Runner):
    """The base class of `Pool`, which adds the methods that run calls."""

    def __init__(self, *specs: Spec, **options: Unpack[PoolOptions]) -> None:
        check_known("Pool", options, PoolOptions.__annotations__)
        whole: dict[str, Any] = {**DEFAULTS, **options}
        self._settings = checked(specs, whole)
        self._console: ConsoleOption = whole["console"]
        self._chaos: Chaos | None = whole["chaos"]
        self._injector: FaultInjector | None = None
        self._core: OpenPool | None = None
        self._ended = False
        self._called_off = False  # whether the pool was closed before its opening began
        self._begun_opening: Opening | None = None  # the opening that `with` began before the event loop existed
        self._opening: asyncio.Future[None] | None = None  # done when the pool is open, or opening it has failed
        self._closing: asyncio.Future[None] | None = None  # done when no resource of the pool is known to remain
        self._leaving: asyncio.Task[None] | None = None  # the task that closes the pool; nobody waits for it
        self._sync: Any = None
        self._entered: SyncPool | None = None
        # the interrupt of another thread that has cancelled its wait for the pool
        self._interrupt: BaseException | None = None
        self._loop_thread: LoopThread | None = None  # the thread of `with`, until the `SyncPool` owns it
        self._language = PYTHON  # how errors name options: as Python arguments or as keys of a TOML file
        self._program: WholeProgram | None = None  # the program that has opened the pool, and ends with it
        self.unusable = NOT_OPEN

    @awaited_as("await pool.open()")
    async def open(self) -> Self:
        """Open the pool without a block, and return it: for a notebook, or a service that starts and ends with it.

        The caller of `open` must close the pool. Errors and cancellation are the same as on entering the block.
        """
        return await self.__aenter__()

    @awaited_as("await pool.close()")
    async def close(self, error: BaseException | None = None) -> None:
        """Leave the pool, as the end of its block does; on the event loop that opened it.

        ``error``: the error that its user failed with. A pool that is not open, or was closed, is left alone. If
        another task is still opening the pool, the opening is cancelled: `open` raises `PoolClosed`, and both calls
        return when no resource remains. If another task is closing the pool, both calls return when that is done;
        cancelling a call that waits for another close cancels only its wait. In a plugin's `attach`, for which the end
        of the pool waits, `close` returns at once, and the pool is closed after `attach`.

        Raises:
            CleanupError: machines may remain.
            SpecError: this is another event loop.
        """
        if self._core is not None:
            await self._exit(self._core, error, of_block=False)

    async def __aenter__(self) -> Self:
        import asyncio  # imported only here, because `with Pool(...)` begins before asyncio is imported

        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise SpecError(
                "a pool needs an asyncio event loop: with trio, open it by `with Pool(...)` in a thread"
            ) from None
        self.check_unopened()
        if self._called_off:
            raise PoolClosed(CALLED_OFF)
        self._opening = asyncio.get_running_loop().create_future()
        try:
            return await self._enter()
        finally:
            self._opening.set_result(None)

    async def _enter(self) -> Self:
        from .client.signals import TaskHold

        self._hold = TaskHold()
        self.unusable = "" if self._sync is None else OPEN_FOR_THREADS
        try:
            await self._open()
        except BaseException as error:
            await self._hold.leave()
            cut(error)
            if self._language is not PYTHON and isinstance(error, OutriderError):
                reword(error, self._language)
            raise
        self._hold.at_rest.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit(self._core, error, of_block=True)

    async def _exit(self, core: OpenPool | None, error: BaseException | None, *, of_block: bool) -> None:
        if core is not None and core.inherited:
            return  # a forked child leaves the block, and the pool continues in the parent
        if core is not None and self._ended:
            await self._end_of_another(core, error, of_block=of_block)
            return
        core = self._here()
        if self._opening is not None and not self._opening.done():
            await self._call_off(core, self._opening)
            return
        self._ended, self.unusable = True, ENDED
        self._closing = core.loop.create_future()
        leaving = self._leave(core, self._closing, error)
        if core.waits_for_caller:
            self._leaving = core.loop.create_task(leaving, context=Context())
            # reads the task's error, of which the user was warned already
            self._leaving.add_done_callback(lambda task: task.cancelled() or task.exception())
        else:
            await leaving

    async def _leave(self, core: OpenPool, closing: asyncio.Future[None], error: BaseException | None) -> None:
        """Close the pool. Only one task runs this."""
        self._hold.at_rest.clear()
        try:
            await self._close(core, error)
        except CleanupError as cleanup:
            if error is None:
                raise
            from .client.cleanup import add_cleanup

            add_cleanup(error, cleanup)  # the block's own error is raised, with this one as its ``cleanup``
        finally:
            try:
                await self._hold.leave()
            finally:
                closing.set_result(None)

    async def _end_of_another(self, core: OpenPool, error: BaseException | None, *, of_block: bool) -> None:
        """Wait until another task has closed the pool, if that task is still closing it.

        A cancellation ends the wait of `close`. The wait at the end of a block continues, and the cancellation is
        raised afterwards: Ctrl-C cancels the main task, and if the task left its block, asyncio would cancel the other
        task, and with it the termination of the machines.
        """
        import asyncio

        from .client.cleanup import finished, raise_or_add

        end = self._closing or self._opening
        if end is None or end.done() or core.waits_for_caller:
            return
        check_loop(core.loop, synchronous=self._sync is not None)
        await (finished(end) if of_block else asyncio.wait([end]))
        raise_or_add(core.cleanup, error)

    async def _call_off(self, core: OpenPool, opening: asyncio.Future[None]) -> None:
        from .client.cleanup import finished

        core.call_off()
        if core.waits_for_caller:
            return
        await finished(opening)
        if core.cleanup is not None:
            raise core.cleanup

    async def call_off(self) -> bool:
        """End the opening that a thread has begun, or is about to begin; return when it is over.

        Return False if the pool is open or has ended; then nothing is done.
        """
        if self._core is None:
            self._called_off = True
        elif not self._ended and self._opening is not None and not self._opening.done():
            await self._call_off(self._core, self._opening)
        else:
            return False
        return True

    async def leave_opening(self, error: BaseException) -> None:
        """Cancel an opening in an interrupted thread, and wait for its end; if the pool is already open, close it.

        ``error``: the interrupt.
        """
        from .client.cleanup import finished

        if self._opening is not None:
            if self._core is not None and not self._opening.done():
                self._core.call_off()
            await finished(self._opening)
        if self._begun_opening is not None:
            await self._take_opening().drop()
        if self._core is not None and not self._ended:
            await self.__aexit__(type(error), error, None)

    def _cause_of(self, error: BaseException | None) -> BaseException | None:
        """Return the error that ends a block, or the opening of its pool; for a cancellation its reason, if there is
        one.
        """
        import asyncio

        if isinstance(error, asyncio.CancelledError) and self._interrupt is not None:
            return self._interrupt
        return self._hold.cause_of(error)

    async def _open(self) -> None:
        opening = self._take_opening()
        try:
            await self._open_core(opening)
        finally:
            await opening.drop()

    def _take_opening(self) -> Opening:
        opening, self._begun_opening = self._begun_opening or Opening(self._settings), None
        return opening

    async def _open_core(self, opening: Opening) -> None:
        with at_rest():  # these imports are slow; the provider's processes start at the same time
            from .client.open_pool import OpenPool
            from .observe.observer import Observer

        observer = Observer(self._console, slots=self._settings.worker.concurrency)
        pool: Any = self
        self._core = core = OpenPool(self._settings, observer, pool, opening)
        try:
            if self._chaos is not None:
                from .testing.chaos import fault_injector

                self._injector = fault_injector.FaultInjector(self._chaos, core)
                await self._injector.begin()
            await core.start()
        except BaseException as error:
            self._ended = True
            try:
                if self._injector is not None:
                    await self._injector.end()
            finally:
                await self._close_observer(observer, error)
            raise
        if self._injector is not None:
            self._injector.start()

    async def _close(self, core: OpenPool, error: BaseException | None) -> None:
        try:
            async with AsyncExitStack() as ending:
                ending.push_async_callback(core.stop, failed=error is not None)
                if self._settings.keep is not None:
                    from .client import file_transfer

                    ending.push_async_callback(file_transfer.keep, core, self._settings.keep, error)
                if self._injector is not None:
                    ending.push_async_callback(self._injector.end)
        except CleanupError as failure:
            error = error or failure
            raise
        except BaseException as failure:
            error = failure  # raised in place of the block's own error
            raise
        finally:
            await self._close_observer(core.observer, error)
            if self._injector is not None:
                await self._injector.collect()

    async def _close_observer(self, observer: Observer, error: BaseException | None) -> None:
        from .client.signals import ending_signal_came

        await observer.aclose(self._cause_of(error), is_ending=ending_signal_came)

    def check_unopened(self) -> None:
        """Check that the pool was never opened, and that no worker is importing the module that opens it.

        Raises:
            SpecError: the pool was opened before, or a worker imports this module.
        """
        check_guard()
        if self._core is not None:
            raise SpecError("this pool is open already, or was: make another Pool(...) for another block")

    def __enter__(self) -> SyncPool:
        from .client.loop_thread import LoopThread, interrupts_held

        self.check_unopened()
        pool: Any = self
        self._loop_thread = thread = LoopThread(_import_sync)
        try:  # from here on, an interrupt may be raised at any place
            with interrupts_held():  # an interrupt here could lose resources that a provider has just started
                self._begun_opening = Opening(self._settings)
            with at_rest():  # importing an event loop is slow; the provider's processes start at the same time
                thread.start()
            from .sync import SyncPool

            sync = SyncPool(pool)
            sync.open()
            self._entered = sync  # keeps the `SyncPool` alive: in `with Pool():` no variable refers to it
        except BaseException as error:
            if self._sync is not None:
                self._sync._abandon(error)
            else:
                self._drop_in_thread(thread)
            raise
        return sync

    def _take_thread(self) -> LoopThread:
        from .client.loop_thread import LoopThread

        thread, self._loop_thread = self._loop_thread or LoopThread(), None
        return thread

    def _drop_in_thread(self, thread: LoopThread) -> None:
        """End an opening that has begun, if an interrupt was raised before the `SyncPool` existed.

        Without a started thread, the opening ends by itself.
        """
        try:
            if self._begun_opening is not None:
                with suppress(RuntimeError):  # no thread can be started
                    thread.start()
                    thread.submit(self._take_opening().drop).result()
        finally:
            thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._core is None or not self._core.inherited:  # a forked child leaves the pool open, as in `__aexit__`
            self._sync.close(error)

    def __repr__(self) -> str:
        return f"<Pool {self._described()}>"

    def _repr_html_(self) -> str:
        """Return the pool's HTML for notebooks."""
        from .observe.notebook_html import simple_page, snapshot_page

        core = self._core if hasattr(self, "_settings") else None
        if core is None or core.inherited:
            return simple_page("Pool", self._described())
        record = core.observer.record_folder
        cost = core.cost
        return snapshot_page(
            core.observer.snapshot(),
            self._described(),
            (cost.spent, cost.hourly),
            "" if record is None else record.name,
        )

    def _described(self) -> str:
        """Return the pool's settings and state in words. Never raises, even for a pool whose options were refused."""
        settings = getattr(self, "_settings", None)
        if settings is None:
            return "without valid options"
        core = self._core
        name = settings.name if core is None else core.name
        of = f"{f'{one_line(name)!r} ' if name else ''}of {provider_name(settings.provider)}"
        if core is None:
            return f"{of}, not open yet"
        if core.inherited:
            return f"{of}, which belongs to the process that this one was forked from"
        return f"{of}: {core.observer.snapshot().described}"

    def _begun(self) -> OpenPool:
        if self._core is None:
            raise PoolClosed(NOT_OPEN)
        return self._core

    def _opened(self) -> OpenPool:
        core = self._core
        if core is None or self._ended or core.inherited:
            raise PoolClosed(NOT_OPEN if core is None else ENDED if self._ended else INHERITED)
        return core

    def check_thread(self) -> None:
        self._here()

    def _here(self) -> OpenPool:
        """Return the open pool; refuse another event loop than the pool's own, where a waiter would never wake up."""
        core = self._opened()
        check_loop(core.loop, synchronous=self._sync is not None)
        return core
