"""Run the few blocking calls in daemon threads, off the event loop. Daemon threads never delay a program's exit.

Threads of anyio or asyncio would delay it. anyio's threads end only with the first task of their loop, and the
interpreter waits for them. When a second and third Ctrl-C end the loop without that task, the program would never exit.
The interpreter also waits for asyncio's threads.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import anyio

T = TypeVar("T")
THREADS = 32  # most threads; when all are busy, further calls wait
IDLE_S = 10.0  # seconds after which a thread without work ends; starting a new one takes only 0.1 ms


async def uninterrupted(run: Callable[[], T]) -> T:
    """Call ``run`` in a thread, and wait for its end even if cancelled. Needed to take locks: a lock whose result is
    lost would be held forever.
    """
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        results.append(await in_thread(run))
    return results[0]


async def in_thread(function: Callable[..., T], *args: Any, abandon: bool = False) -> T:
    """Call ``function(*args)`` in a thread and return its result.

    A cancelled caller waits for the end of the call, unless ``abandon`` is true: then the thread continues, and its
    result is dropped.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()
    _threads.hand(partial(_answer, loop, answer, partial(copy_context().run, function, *args)))
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=not abandon):
        while not answer.done():
            try:
                await asyncio.wait([answer])
            except asyncio.CancelledError as native:  # Task.cancel(), from which anyio's scopes do not shield
                if abandon:
                    raise
                cancelled = native
    if cancelled is not None:
        raise cancelled
    value, error = answer.result()
    if error is not None:
        try:
            raise error
        finally:
            del error  # break the reference cycle: the error's traceback refers to this frame
    return value  # type: ignore[return-value]


def hand(work: Callable[[], None]) -> None:
    """Run ``work`` in a thread, without waiting for it. ``work`` must not raise."""
    with suppress(RuntimeError):  # raised if the system cannot start a thread; the work is then not done now
        _threads.hand(work)


def _answer(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[tuple[T | None, BaseException | None]],
    function: Callable[[], T],
) -> None:
    try:
        outcome: tuple[T | None, BaseException | None] = function(), None
    except BaseException as error:  # noqa: BLE001 - raised in the caller that waits for the result
        outcome = None, error
    try:
        loop.call_soon_threadsafe(_set, answer, outcome)
    except RuntimeError:  # the loop is closed, so no caller waits for the result
        pass


def _set(answer: asyncio.Future[Any], outcome: object) -> None:
    if not answer.done():
        answer.set_result(outcome)


class _Threads:
    """A thread pool. It starts a thread when there is work and no thread is idle. A thread ends when it was idle for
    `IDLE_S`.

    ``_idle`` counts the idle threads to which no work is assigned. A thread that ends decrements ``_idle`` first;
    otherwise new work could be assigned to this thread, and would never run.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._count = 0
        self._making = threading.Lock()

    def hand(self, work: Callable[[], None]) -> None:
        self._work.put(work)
        if self._idle.acquire(blocking=False):
            return
        with self._making:
            if self._count < THREADS:
                try:
                    threading.Thread(target=self._run, name=f"outrider-{self._count}", daemon=True).start()
                except RuntimeError:  # the system cannot start more threads, so the existing threads do the work
                    if not self._count:
                        raise
                else:
                    self._count += 1

    def _run(self) -> None:
        while True:
            try:
                work = self._work.get_nowait()
            except Empty:
                self._idle.release()
                try:
                    work = self._work.get(timeout=IDLE_S)
                except Empty:
                    if self._may_end():
                        return
                    continue  # work has arrived in the meantime: this thread or another one runs it
            work()
            del work  # release the objects to which the finished work refers

    def _may_end(self) -> bool:
        with self._making:
            if not self._idle.acquire(blocking=False):
                return False
            self._count -= 1
            return True


_threads = _Threads()
os.register_at_fork(after_in_child=_threads.__init__)  # type: ignore[misc]  # a forked child has no threads
