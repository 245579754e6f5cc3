"""An event loop in a thread of its own, for pools that are used without async.

A KeyboardInterrupt may be raised in the caller's thread at any point.

LOOP-1: an exception on the loop settles the future of its call, and the loop continues: only `stop` ends the loop.
LOOP-2: `stop` ends the thread, even if `stop` is called before the loop runs; by then each future is settled.

Slow imports are made in the loop's thread, never in the caller's: a package whose import was interrupted in the
caller's thread cannot be imported again in the same process.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..api.errors import PoolClosed
from ..api.misuse import ENDED

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import Future

P = ParamSpec("P")
T = TypeVar("T")
# longest wait without a wake-up of the main thread: if another thread received a signal, Python runs the handler only
# when the main thread wakes up
DEAF_S = 1.0


class LoopThread:
    """The thread and its loop. ``imports`` is called in the thread before the loop runs.

    Each task runs in a copy of the context of the thread that submits it.
    """

    def __init__(self, imports: Callable[[], object] = lambda: None) -> None:
        self.ident = 0  # the thread's identifier; 0 until the thread runs
        self._imports = imports
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # None until the loop runs
        self._wake: asyncio.Event
        self._tasks: set[asyncio.Task[None]] = set()
        self._futures: set[Future[Any]] = set()  # futures that are not settled yet
        self._failure: BaseException | None = None
        self._ready = threading.Event()  # set when the loop runs, or can no longer start
        self._over = threading.Event()
        self._stopping = self._cancelling = False

    def start(self) -> None:
        """Start the thread, unless it was started before, and return when the loop runs.

        Raises:
            RuntimeError: no thread can be started.
            BaseException: an error of ``imports``.
        """
        if self._thread is None:
            with interrupts_held():  # an interrupt during the start would leave it unknown whether the thread exists
                self._thread = threading.Thread(target=self._run, name="outrider-loop", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    raise
        wait_for(self._ready)
        if self._failure is not None:
            raise self._failure

    def wait_ready(self) -> bool:
        """Wait until the loop runs. Return False if it can no longer start."""
        if self._thread is None:
            return False
        wait_for(self._ready)
        return self._failure is None

    def submit(self, function: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> Future[T]:
        """Start ``function`` on the loop. Cancelling the future cancels the task.

        Raises:
            PoolClosed: the loop does not run, or was stopped.
        """
        loop = self._loop
        if loop is None or self._stopping:
            raise PoolClosed(ENDED)
        from concurrent.futures import Future  # not slow here: the loop's thread has imported this module already

        future: Future[T] = Future()
        # added before the loop receives the call, so that `_settle_rest` finds it in any case
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        try:
            loop.call_soon_threadsafe(self._begin, future, lambda: function(*args, **options), context=copy_context())
        except RuntimeError:
            self._futures.discard(future)
            raise PoolClosed(ENDED) from None
        return future

    def stop(self, *, cancel: bool = False) -> None:
        """End the thread after its tasks have ended, and wait for its end. An interrupt ends only this wait.

        ``cancel``: cancel the tasks first.
        """
        self._cancelling = self._cancelling or cancel
        # A loop that has not started yet reads this flag at its start; a running loop is woken below.
        self._stopping = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._wake.set)
        if self._thread is not None and self._thread is not threading.current_thread():
            while not self._over.wait(DEAF_S):
                if self._thread.ident is None:  # never started: a signal handler raised an exception during the start
                    return
            self._thread.join()

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        self.ident = threading.get_ident()
        try:
            import asyncio

            self._imports()
            with asyncio.Runner() as runner:
                loop = runner.get_loop()
                serving = loop.create_task(self._serve())
                while not serving.done():
                    try:
                        loop.run_until_complete(serving)
                    # raised by a callback; asyncio then stops the loop
                    except (SystemExit, KeyboardInterrupt) as error:
                        _report(loop, error)
        except BaseException as error:  # noqa: BLE001  `start` raises it
            self._failure = error
        finally:
            self._settle_rest()
            self._ready.set()
            self._over.set()

    async def _serve(self) -> None:
        import asyncio

        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        while not self._stopping:
            await self._wake.wait()
        for task in self._tasks if self._cancelling else ():
            task.cancel()
        while self._tasks:
            await asyncio.wait([*self._tasks])

    def _settle_rest(self) -> None:
        """Settle the futures whose tasks never ran. The loop is closed, so no more calls are accepted."""
        for future in [*self._futures]:
            if future.set_running_or_notify_cancel():
                future.set_exception(PoolClosed(ENDED))

    def _begin(self, future: Future[Any], call: Callable[[], Awaitable[Any]]) -> None:
        assert self._loop is not None, "its callback runs on it"
        loop = self._loop
        task = loop.create_task(_settle(future, call))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def cancel(future: Future[Any]) -> None:
            if future.cancelled():
                with suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(task.cancel)

        future.add_done_callback(cancel)


async def _settle(future: Future[Any], call: Callable[[], Awaitable[Any]]) -> None:
    """Settle ``future`` with the result or the exception of the call (LOOP-1)."""
    import asyncio

    error: BaseException | None = None
    value: Any = None
    try:
        value = await call()
    except asyncio.CancelledError:
        future.cancel()
        return
    except BaseException as raised:  # noqa: BLE001  whoever has submitted it gets it
        error = raised
    try:
        if not future.set_running_or_notify_cancel():
            return
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
    except BaseException as raised:  # noqa: BLE001  of a callback of the future's
        _report(asyncio.get_running_loop(), raised)


def _report(loop: asyncio.AbstractEventLoop, error: BaseException) -> None:
    message = f"{type(error).__name__} was raised in the thread of a pool's event loop, which goes on"
    loop.call_exception_handler({"message": message, "exception": error})


def wait_for(event: threading.Event) -> None:
    while not event.wait(DEAF_S):
        pass


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Delay SIGINT during this block, which must be short. If a SIGINT arrives, its handler runs at the block's end."""
    handler: Any = signal.getsignal(signal.SIGINT)
    came: list[tuple[int, Any]] = []
    held = False
    if threading.current_thread() is threading.main_thread() and callable(handler):
        with suppress(ValueError):  # a subinterpreter cannot set signal handlers
            signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
            held = True
    try:
        yield
    finally:
        if held:
            signal.signal(signal.SIGINT, handler)
        for number, frame in came[:1]:
            handler(number, frame)
