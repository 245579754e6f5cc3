"""Callbacks for when a machine will be taken: run once per notice, in the task's process, while the task goes on.

As long as a callback is registered, a thread looks at the notice page five times a second. There is no such thread
otherwise: a task that asks for nothing pays nothing.
"""

from __future__ import annotations

import contextvars
import inspect
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import partial, update_wrapper
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from .preemption import Preemption, pending

if TYPE_CHECKING:
    import asyncio

    from ..node.context import TaskContext
    from ..node.notice_page import NoticePage

LOOK_S = 0.2

Callback = TypeVar("Callback", bound=Callable[[Preemption], object])


class OnPreemption(Generic[Callback]):
    """A registered callback. Calling it calls the function; leaving it as a context waits for running calls."""

    def __init__(self, callback: Callback, *, everywhere: bool, margin_s: float | None) -> None:
        from ..node import context

        update_wrapper(cast("Any", self), callback)
        self._callback = callback
        self._everywhere, self._margin_s = everywhere, margin_s
        self._loop = _running_loop(callback) if inspect.iscoroutinefunction(callback) else None
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._is_over = False
        self._seen: set[tuple[int, ...]] = set()
        self._calls: list[_Call] = []
        self.task: TaskContext | None = context.current()
        self._page: NoticePage | None = context.notice_page()
        if self._page is not None:
            _watch.add(self)

    @property
    def __call__(self) -> Callback:
        return self._callback

    def cancel(self) -> None:
        """Stop calling the callback; a call that runs goes on. Idempotent."""
        with self._lock:
            self._is_over = True
        _watch.remove(self)

    def wait(self) -> None:
        """Wait until the calls that run have ended, or their budget has."""
        for call in self._calls:
            call.wait()

    def look(self) -> None:
        """Check in the watching thread whether a notice has come and the callback is due."""
        with self._lock:
            if self._page is not None and not self._is_over:
                notice = pending(self._page, self.task, everywhere=self._everywhere)
                if notice is not None and notice.key not in self._seen:
                    self._seen.add(notice.key)
                    if self._margin_s is not None:
                        notice = replace(notice, margin_s=self._margin_s)
                    self._calls.append(_Call(self._callback, notice, self._context.copy(), self._loop))
        for call in self._calls:
            call.check()

    def __enter__(self) -> OnPreemption[Callback]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.cancel()
        if self._loop is None:  # on its loop it is the loop's to wait for: `async with`
            self.wait()

    async def __aenter__(self) -> OnPreemption[Callback]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        import asyncio

        self.cancel()
        if self._calls:
            await asyncio.to_thread(self.wait)


@overload
def on_preemption(
    callback: Callback, *, everywhere: bool = ..., margin: float | None = ...
) -> OnPreemption[Callback]: ...
@overload
def on_preemption(
    *, everywhere: bool = ..., margin: float | None = ...
) -> Callable[[Callback], OnPreemption[Callback]]: ...


def on_preemption(
    callback: Callback | None = None, *, everywhere: bool = False, margin: float | None = None
) -> OnPreemption[Callback] | Callable[[Callback], OnPreemption[Callback]]:
    """Call ``callback(notice)`` once when this task's machine will be taken: at once, if it has been told already.

    Registered until the task ends, or as a context until that is left; both wait for a call that runs, for as long as
    its budget is: the time left less ``margin`` seconds (default 5, or a fifth of a short notice). An async callback
    runs on the loop it was registered on and is cancelled when its budget is over; any other runs in a thread of its
    own. What it raises is printed, and the task goes on. ``everywhere``: when any machine of this generation will be
    taken. Outside a pool it is never called.

    Raises:
        RuntimeError: an async callback where no loop runs.
    """
    make = partial(OnPreemption, everywhere=everywhere, margin_s=margin)
    return cast("Any", make) if callback is None else make(callback)


async def wait_preemption(*, everywhere: bool = False) -> Preemption:
    """Return when there is a notice. Safe to cancel."""
    import asyncio

    loop = asyncio.get_running_loop()
    came: asyncio.Future[Preemption] = loop.create_future()

    async def tell(notice: Preemption) -> None:
        if not came.done():
            came.set_result(notice)

    async with on_preemption(tell, everywhere=everywhere):
        return await came


class _Call:
    """A call of a callback."""

    def __init__(
        self,
        callback: Callable[[Preemption], object],
        notice: Preemption,
        surroundings: contextvars.Context,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._name = getattr(callback, "__qualname__", repr(callback))
        self._until = notice.at - notice.margin_s
        self._surroundings = surroundings
        self._overdue = False
        self._done = threading.Event()
        if loop is None:
            run = partial(self._run, callback, notice)
            threading.Thread(target=partial(surroundings.run, run), name=f"on_preemption {self._name}").start()
            return
        coroutine = self._awaited(cast("Callable[[Preemption], Coroutine[Any, Any, object]]", callback), notice)
        try:
            surroundings.run(_start_on, loop, coroutine).add_done_callback(lambda _: self._done.set())
        except RuntimeError:  # its loop has ended, and with it whatever it was for
            coroutine.close()
            self._done.set()

    def wait(self) -> None:
        self._done.wait(max(0.0, self._until - time.monotonic()))

    def check(self) -> None:
        if not self._overdue and time.monotonic() > self._until and not self._done.is_set():
            self._overdue = True
            self._surroundings.copy().run(self._say, "has used up its time, and is not waited for")

    def _run(self, callback: Callable[[Preemption], object], notice: Preemption) -> None:
        try:
            callback(notice)
        except Exception:  # noqa: BLE001  the edge: reported, not fatal
            self._report()
        finally:
            self._done.set()

    async def _awaited(self, callback: Callable[[Preemption], Coroutine[Any, Any, object]], notice: Preemption) -> None:
        import asyncio

        try:
            async with asyncio.timeout(notice.budget_s):
                await callback(notice)
        except Exception:  # noqa: BLE001  the edge
            self._report()

    def _report(self) -> None:
        self._say("has failed; the task goes on")
        traceback.print_exc()

    def _say(self, what: str) -> None:
        print(f"outrider: the on_preemption callback {self._name} {what}", file=sys.stderr, flush=True)


class _Watch:
    """The thread that looks at the notice page, for all callbacks of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: list[OnPreemption[Any]] = []
        self._tasks: set[int] = set()  # attempts that have registered any
        self._thread: threading.Thread | None = None
        self._stirred = threading.Event()

    def add(self, handler: OnPreemption[Any]) -> None:
        with self._lock:
            self._handlers.append(handler)
            if handler.task is not None and handler.task.attempt not in self._tasks:
                self._tasks.add(handler.task.attempt)
                handler.task.closing.append(partial(self._ended, handler.task))
            if self._thread is None or not self._thread.is_alive():  # it is not, in a forked child
                self._thread = threading.Thread(target=self._look, daemon=True, name="outrider-preemption")
                self._thread.start()
            self._stirred.set()

    def remove(self, handler: OnPreemption[Any]) -> None:
        with self._lock:
            if handler in self._handlers:
                self._handlers.remove(handler)
            self._stirred.set()

    def _look(self) -> None:
        while True:
            self._stirred.clear()
            with self._lock:
                handlers = list(self._handlers)
                if not handlers:
                    self._thread = None
                    return
            for handler in handlers:
                handler.look()
            self._stirred.wait(LOOK_S)

    def _ended(self, task: TaskContext, failed: bool) -> None:  # noqa: ARG002 - either way
        """End what a task has registered, as its function is over. Its answer waits for calls that run."""
        with self._lock:
            self._tasks.discard(task.attempt)
            theirs = [handler for handler in self._handlers if handler.task is task]
        for handler in theirs:
            handler.cancel()
        for handler in theirs:
            handler.wait()


def _running_loop(callback: object) -> asyncio.AbstractEventLoop:
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        name = getattr(callback, "__qualname__", repr(callback))
        raise RuntimeError(f"{name} is async: register it where the loop runs that is to run it") from None


def _start_on(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> Future[None]:
    import asyncio

    return asyncio.run_coroutine_threadsafe(coroutine, loop)


_watch = _Watch()
os.register_at_fork(after_in_child=_watch.__init__)  # type: ignore[misc]  # callbacks are the process's that registered them
