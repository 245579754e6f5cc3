"""The event loop that lasts from call to call, for functions with ``setup=``.

An object that `setup=` creates, such as an HTTP session, is bound to the event loop in which it is first used.
Therefore all calls of such a function in a thread share one loop. A function without `setup=` has a new loop for each
call, as with `asyncio.run`, so connections that it leaves open end with the call.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

# files whose frames stand before the user's frames in a traceback
FILES = (str(Path(asyncio.__file__ or "").parent), __file__)
_HAS_IMPLICIT_LOOP = sys.version_info < (3, 14)  # before 3.14, `asyncio.get_event_loop()` creates a loop


class LastingLoop:
    """The event loop of one thread, which runs coroutines one after the other."""

    def __init__(self) -> None:
        self._policy = _policy()
        self._loop = _current_loop() or asyncio.new_event_loop()
        self._runner = asyncio.Runner(loop_factory=lambda: self._loop)
        self._executor = _Executor()

    @property
    def is_usable(self) -> bool:
        """Return whether the loop is open, and user code has not chosen another kind of loop (`uvloop.install()`)."""
        return not self._loop.is_closed() and self._policy is _policy()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in a copy of the current context; return its value.

        Call `settle` after a task's last coroutine.
        """
        self._loop.set_default_executor(self._executor)
        return self._runner.run(coroutine, context=copy_context())

    def settle(self) -> None:
        """Clean up after a task as `asyncio.run` does, but keep the loop and its connections."""
        if self._loop.is_closed():
            return
        if tasks := asyncio.all_tasks(self._loop):
            self._runner.run(_cancelled(tasks), context=copy_context())
        # a loop of uvloop has no `_asyncgens`: it closes async generators when they are garbage-collected
        if generators := list(getattr(self._loop, "_asyncgens", ())):
            self._runner.run(_closed(generators), context=copy_context())
        if self._executor.is_used:
            self._executor.shutdown(wait=True)
            self._executor = _Executor()
        for number in list(getattr(self._loop, "_signal_handlers", ())):
            self._loop.remove_signal_handler(number)
        self._loop.set_task_factory(None)
        self._loop.set_exception_handler(None)


class _Executor(ThreadPoolExecutor):
    is_used = False

    def submit(self, *arguments: Any, **options: Any) -> Any:
        self.is_used = True
        return super().submit(*arguments, **options)


def lasting_loop() -> LastingLoop:
    """Return the lasting loop of this thread."""
    loop: LastingLoop | None = getattr(_threads, "loop", None)
    if loop is None or not loop.is_usable:
        _threads.loop = loop = LastingLoop()
    return loop


def run_lasting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine as `asyncio.run` does, on the lasting loop of this thread."""
    loop = lasting_loop()
    try:
        return loop.run(coroutine)
    finally:
        loop.settle()


def _policy() -> object:
    return asyncio.get_event_loop_policy() if _HAS_IMPLICIT_LOOP else None  # deprecated since Python 3.14


def _current_loop() -> asyncio.AbstractEventLoop | None:
    """Return the thread's current event loop, None if no loop is set or the loop is closed."""
    if _HAS_IMPLICIT_LOOP:
        loop = getattr(getattr(_policy(), "_local", None), "_loop", None)  # `get_event_loop` would create a loop
    else:
        try:
            loop = asyncio.get_event_loop()
        except RuntimeError:
            return None
    return None if loop is None or loop.is_closed() else loop


async def _cancelled(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel asyncio tasks and wait until they have ended.

    If a task ends with another error than the cancellation, the loop's exception handler logs the error.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            report = {"message": "unhandled exception as a task's leftovers end", "exception": error, "task": task}
            asyncio.get_running_loop().call_exception_handler(report)


async def _closed(generators: list[Any]) -> None:
    await asyncio.gather(*(generator.aclose() for generator in generators), return_exceptions=True)


_threads = threading.local()
