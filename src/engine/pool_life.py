"""The opening and closing of a pool, on the event loop of the task that opens it; and the pool's `repr`.

`State` is the table of a pool's states. Only the pool's event loop changes the state; other threads leave marks, such
as a pool that is called off before its loop has begun to open it.

LIFE-1: a pool's state changes only as `NEXT` allows. The last state is final: a pool is opened once.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from contextvars import Context
from enum import Enum, auto
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
    check_guard,
    check_loop,
)
from .api.pending_base import awaited_as
from .api.printable import one_line
from .api.tracebacks import cut
from .client.opening import Opening
from .pool_options import DEFAULTS, PoolOptions, checked

if TYPE_CHECKING:
    import asyncio

    from ..providers.base import Provider
    from .api.chaos import ChaosPlan, Injection
    from .api.settings import ConsoleOption, Spec
    from .client.observer import Observer
    from .client.open_pool import OpenPool
    from .record.runs.files import WholeProgram


def provider_name(provider: Provider) -> str:
    try:
        return one_line(provider.name)
    except Exception:  # noqa: BLE001  of somebody else's provider
        return type(provider).__name__


class State(Enum):
    """The states of a pool. The core is the `OpenPool`, which has the provider, the actors and the connections.

    =======  ============================  ========================================  ==================================
    State    There is                      `close`, or the end of the block          Next state
    =======  ============================  ========================================  ==================================
    NEW      no core                       `close` does nothing; a block raises      OPENING
    OPENING  a core, once the provider     calls the opening off, and waits until    OPEN; CLOSING if it fails or is
             is being opened               nothing is left                           called off; NEW if there is no core
    OPEN     a core that takes calls       closes the pool                           CLOSING
    CLOSING  a core, whose machines a      waits until that task has ended           ENDED
             task is ending
    ENDED    the core; its record (a       does nothing                              none: a pool is opened once
             folder) can still be read
    =======  ============================  ========================================  ==================================
    """

    NEW = auto()
    OPENING = auto()
    OPEN = auto()
    CLOSING = auto()
    ENDED = auto()


NEXT = {
    State.NEW: {State.OPENING},
    State.OPENING: {State.OPEN, State.CLOSING, State.NEW},
    State.OPEN: {State.CLOSING},
    State.CLOSING: {State.ENDED},
    State.ENDED: set[State](),
}
# why no call can run in a state; empty: the core takes calls, as soon as its actor has begun
UNUSABLE = {State.NEW: NOT_OPEN, State.OPENING: "", State.OPEN: "", State.CLOSING: ENDED, State.ENDED: ENDED}


class PoolLife(Runner):
    """The base class of `Pool`: opens and closes the pool. `Pool` adds the methods that run calls."""

    def __init__(self, *specs: Spec, **options: Unpack[PoolOptions]) -> None:
        check_known("Pool", options, PoolOptions.__annotations__)
        whole: dict[str, Any] = {**DEFAULTS, **options}
        self._settings = checked(specs, whole)
        self._console: ConsoleOption = whole["console"]
        self._chaos: ChaosPlan | None = whole["chaos"]
        # the state, and what there is in it
        self._state = State.NEW
        self.unusable = UNUSABLE[State.NEW]
        self._core: OpenPool | None = None
        self._injector: Injection | None = None
        self._opening: asyncio.Future[None] | None = None  # done when the pool is open, or when opening it has failed
        # done when the pool is closed, and nothing is known to be left of it
        self._closing: asyncio.Future[None] | None = None
        self._closing_task: asyncio.Task[None] | None = None  # closes the pool, while no caller waits for it
        # how the pool is opened:
        # the opening that the statement `with` starts before an event loop exists
        self._begun_opening: Opening | None = None
        self._sync: Any = None  # the `SyncPool` that opens this pool
        # the language in which errors of the opening name the pool's options, for example Python
        self._language = PYTHON
        # the `outrider run` program that opens the pool; the program ends when the pool ends
        self._program: WholeProgram | None = None
        # marks that other threads leave
        self._called_off = False  # whether the pool was called off before the opening began
        # the error that interrupted another thread's wait for this pool, so that the wait was cancelled
        self._interrupt: BaseException | None = None

    def _become(self, state: State) -> None:
        assert state in NEXT[self._state], f"a pool that is {self._state.name} cannot become {state.name}"
        self._state = state
        # assigned once, as other threads read it
        self.unusable = UNUSABLE[state] or (OPEN_FOR_THREADS if self._sync is not None else "")

    @property
    def _has_ended(self) -> bool:
        """Return whether the pool is being closed, or is closed."""
        return self._state in {State.CLOSING, State.ENDED}

    @awaited_as("await pool.open()")
    async def open(self) -> Self:
        """Open the pool without a block, and return it: for notebooks, or for the start-up hook of a service.

        The caller must `close` the pool. The errors, and the effect of a cancellation, are the same as on entering a
        block.
        """
        return await self.__aenter__()

    @awaited_as("await pool.close()")
    async def close(self, error: BaseException | None = None) -> None:
        """Close the pool, as the end of its block does, on the event loop that opened it.

        If the pool is not open, or is closed already, do nothing. ``error``: the error of the code that used the pool.

        If another task is still opening the pool, the opening is called off: `open` raises `PoolClosed`, and both calls
        return when nothing is left. If another task is closing the pool, both calls return when the pool is closed; a
        cancellation of this call then ends only its wait. In a plugin's `attach`, this returns at once, and the pool is
        closed after the `attach` has ended, as closing the pool waits for it.

        Raises:
            CleanupError: machines may be left.
            SpecError: the pool was opened on another event loop.
        """
        if self._core is not None:
            await self._exit(self._core, error, of_block=False)

    async def __aenter__(self) -> Self:
        import asyncio  # imported late, as this import is slow: `with Pool(...)` starts its provider first

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
        self._become(State.OPENING)
        try:
            await self._enter()
        except BaseException:
            self._become(State.ENDED if self._has_ended else State.NEW if self._core is None else State.OPEN)
            raise
        else:
            self._become(State.OPEN)
        finally:
            self._opening.set_result(None)
        return self

    async def _enter(self) -> None:
        from .client.signals import TaskHold

        self._hold = TaskHold()
        try:
            await self._open()
        except BaseException as error:
            await self._hold.leave()
            cut(error)
            if self._language is not PYTHON and isinstance(error, OutriderError):
                reword(error, self._language)
            raise
        self._hold.at_rest.set()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._exit(self._core, error, of_block=True)

    async def _exit(self, core: OpenPool | None, error: BaseException | None, *, of_block: bool) -> None:
        if core is not None and core.inherited:
            return  # this process is a forked child: it may leave the block, but must not end its parent's pool
        if core is not None and self._has_ended:
            await self._wait_for_closing_task(core, error, of_block=of_block)
            return
        core = self._here()
        if self._state is State.OPENING and self._opening is not None:
            await self._call_off(core, self._opening)
            return
        self._become(State.CLOSING)
        self._closing = core.loop.create_future()
        closing = self._close(core, self._closing, error)
        if core.waits_for_caller:
            self._closing_task = core.loop.create_task(closing, context=Context())
            # read the error, or asyncio would warn that nobody did; the user has been warned of it already
            self._closing_task.add_done_callback(lambda task: task.cancelled() or task.exception())
        else:
            await closing

    async def _close(self, core: OpenPool, closing: asyncio.Future[None], error: BaseException | None) -> None:
        """Close the pool. Only one task calls this."""
        self._hold.at_rest.clear()
        try:
            await self._close_core(core, error)
        except CleanupError as cleanup:
            if error is None:
                raise
            from .client.cleanup import add_cleanup

            add_cleanup(error, cleanup)  # the caller gets the block's error, with the `CleanupError` attached
        finally:
            try:
                await self._hold.leave()
            finally:
                self._become(State.ENDED)
                closing.set_result(None)

    async def _wait_for_closing_task(self, core: OpenPool, error: BaseException | None, *, of_block: bool) -> None:
        """Wait while another task is closing the pool.

        A cancellation ends this wait if it is a call of `close`. At the end of a block, the wait continues, and the
        cancellation is raised afterwards: Ctrl-C cancels the main task, and if the main task left its block, asyncio
        would cancel the task that ends the machines.
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
        """Call off the opening that a thread has begun, or is about to begin, and return when it has ended.

        Return False, and do nothing, if the pool is open or has ended already.
        """
        if self._core is None:
            self._called_off = True
        elif self._state is State.OPENING and self._opening is not None:
            await self._call_off(self._core, self._opening)
        else:
            return False
        return True

    async def leave_opening(self, error: BaseException) -> None:
        """Call off an opening whose thread was interrupted, and wait for the end of the opening.

        If the pool is open already, close it. ``error``: the interrupt, such as a KeyboardInterrupt.
        """
        from .client.cleanup import finished

        if self._opening is not None:
            if self._core is not None and not self._opening.done():
                self._core.call_off()
            await finished(self._opening)
        if self._begun_opening is not None:
            await self._take_opening().drop()
        if self._core is not None and not self._has_ended:
            await self.__aexit__(type(error), error, None)

    def _cause_of(self, error: BaseException | None) -> BaseException | None:
        """Return the error that ends a block, or the opening of its pool.

        If ``error`` is a cancellation, return the cause of the cancellation, if there is one.
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
        with at_rest():  # these imports are slow; meanwhile, the provider's processes start
            from .client.observer import Observer
            from .client.open_pool import OpenPool
            from .record.sinks import PoolSinks

        sinks = PoolSinks(self._console, self._settings, self._program)
        observer = Observer(sinks, slots=self._settings.worker.concurrency)
        pool: Any = self
        self._core = core = OpenPool(self._settings, observer, pool, opening)
        if (sync := self._sync) is not None:
            core.objects.reference = lambda stored: sync._ref(stored)  # noqa: PLW0108  a bound method would keep it
        try:
            if self._chaos is not None:
                self._injector = self._chaos._injection(core)
                await self._injector.begin()
            await core.start()
        except BaseException as error:
            self._become(State.CLOSING)
            try:
                if self._injector is not None:
                    await self._injector.end()
            finally:
                await self._close_observer(observer, error)
            raise
        if self._injector is not None:
            self._injector.start()

    async def _close_core(self, core: OpenPool, error: BaseException | None) -> None:
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
            error = failure  # this error is raised, and not the block's error
            raise
        finally:
            await self._close_observer(core.observer, error)
            if self._injector is not None:
                await self._injector.collect()

    async def _close_observer(self, observer: Observer, error: BaseException | None) -> None:
        from .client.signals import ending_signal_came

        await observer.aclose(self._cause_of(error), is_ending=ending_signal_came)

    def check_unopened(self) -> None:
        """Refuse to open a pool a second time, or to open it in a module that a worker imports.

        Raises:
            SpecError: The pool must not be opened here.
        """
        check_guard()
        if self._core is not None or self._state is not State.NEW:
            raise SpecError("this pool is open already, or was: make another Pool(...) for another block")

    def __repr__(self) -> str:
        return f"<Pool {self._described()}>"

    def _repr_html_(self) -> str:
        """Return a pool's description as HTML, for notebooks."""
        from .api.html import simple_page
        from .record.display.notebook import snapshot_page

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
        """Describe the pool's settings and state. Never raises, not even if the pool's options were refused."""
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
        if core is None or self._has_ended or core.inherited:
            raise PoolClosed(NOT_OPEN if core is None else ENDED if self._has_ended else INHERITED)
        return core

    def check_thread(self) -> None:
        self._here()

    def _here(self) -> OpenPool:
        """Return the open pool.

        Refuse any event loop except the one that the pool was opened on: a waiter on another loop would never be woken.
        """
        core = self._opened()
        check_loop(core.loop, synchronous=self._sync is not None)
        return core
