"""Preemption as a task sees it: notices about its machine, the common stop of all ranks, and callbacks.

Outside a pool there is never a notice, so that the same function runs anywhere. A check takes a microsecond. While a
callback is registered, a thread looks for notices five times a second. Without callbacks there is no such thread, and
no cost.
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
from dataclasses import field, replace
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload

from ...lazy_dataclass import dataclass
from ..node import context
from ..node.context import TaskContext

if TYPE_CHECKING:
    import asyncio

    from ..node.notice_page import NoticePage, PostedNotice, World

POLL_S = 0.2
MARGIN_S = 5.0  # seconds that a callback leaves unused, in which the process ends and its last output is sent
# for a short notice, the margin is this fraction of the notice's time, if that is less than `MARGIN_S`
MARGIN_SHARE = 0.2
# seconds for the ranks to agree on a step to stop at: a round trip to the client and to every node, usually some
# milliseconds
AGREE_S = 5.0
_PAUSE_S = 0.001

Callback = TypeVar("Callback", bound="Callable[[Preemption], object]")


@dataclass(frozen=True, slots=True)
class Preemption:
    """A preemption notice: a machine will be taken. The remaining time is computed at each access.

    Attributes:
        source: Where the notice comes from: "aws", "gcp", "azure", "slurm", "signal", "file" and others.
        node: The number of the node whose machine will be taken.
        at: The time at which the machine is taken, by `time.monotonic` of this machine.
        margin_s: The seconds before ``at`` that a callback should leave unused.
        key: Internal: identifies the notice.
    """

    source: str  # origin of the notice: "aws", "gcp", "azure", "slurm", "signal", "file", ...
    node: int  # number of the node whose machine will be taken, as in `instance_info`
    at: float  # time when the machine is taken, by `time.monotonic()` of this machine
    margin_s: float  # seconds before ``at`` that a callback should leave unused
    key: tuple[int, ...] = field(repr=False)  # identifies the notice; it stays the same if the notice's time changes

    @property
    def seconds_left(self) -> float:
        """Seconds until the machine is taken."""
        return max(0.0, self.at - time.monotonic())

    @property
    def budget_s(self) -> float:
        """Seconds until the machine is taken, minus ``margin_s``: the time that a callback may use."""
        return max(0.0, self.at - self.margin_s - time.monotonic())


def preemption(*, everywhere: bool = False) -> Preemption | None:
    """Return the notice that this task's machine will be taken; None if there is none.

    Args:
        everywhere: True: also return the notice of any other machine that runs ranks of this task's broadcast.
    """
    page = context.notice_page()
    return None if page is None else pending(page, context.current(), everywhere=everywhere)


def should_stop(*, everywhere: bool = False) -> bool:
    """Return whether the task should save its state and return now.

    For training loops: ``if should_stop(): break``.

    Args:
        everywhere: True: also when any other machine that runs ranks of this broadcast will be taken. Then the result
            is True at the same call on every rank, so that no rank waits for a rank that has stopped. This is for ranks
            that run the same steps: each rank must call the function once per step, in the task's own process. While
            the ranks agree on the step, the call waits for some milliseconds; if they cannot agree, it returns False.

    Raises:
        RuntimeError: ``everywhere`` was used in a process that the task has started.
    """
    context.stepped("should_stop")
    return stopping(everywhere=everywhere)


def stopping(*, everywhere: bool) -> bool:
    """Return the result of `should_stop`, without counting a step of the loop."""
    page = context.notice_page()
    if page is None:
        return False
    if not everywhere:
        return page.read().own is not None
    task = context.current()
    if task is None:
        raise RuntimeError("should_stop(everywhere=True) counts the steps of a rank: call it in the task's own process")
    return page.read().own is not None if task.info["world_size"] == 1 else _agreed(page, task)


def pending(page: NoticePage, task: TaskContext | None, *, everywhere: bool) -> Preemption | None:
    """Return the result of `preemption` for ``task``. ``page``: the node's shared memory with preemption notices."""
    own, others = page.read()
    if own is None and not (everywhere and others):
        return None
    from .instance_info import instance_info

    node = instance_info().node if task is None else task.info["node"]
    if own is not None:
        return _preemption(own, node, (own.number,))
    world = None if task is None else _world(others, task)
    if world is None or world.notice is None or world.notice.node in (None, node):
        return None
    return _preemption(world.notice, world.notice.node, (world.generation, world.notice.number))


def _preemption(notice: PostedNotice, node: int | None, key: tuple[int, ...]) -> Preemption:
    margin_s = min(MARGIN_S, MARGIN_SHARE * notice.seconds)
    return Preemption(notice.source, -1 if node is None else node, notice.at, margin_s, key)


def _world(worlds: dict[int, World], task: TaskContext) -> World | None:
    """Return the preemption state of the task's broadcast from ``worlds``; None: it has none.

    ``worlds``: job number -> state of the job's current generation (one try of a broadcast). After the loss of a node,
    a surviving rank may still belong to an older generation.
    """
    world = worlds.get(task.job)
    return world if world is not None and 0 < task.info["generation"] <= world.generation else None


def _agreed(page: NoticePage, task: TaskContext) -> bool:
    """Return whether all ranks stop at this call of `should_stop`.

    They stop at the call after the highest number of calls that any rank had made. A rank first counts its call, then
    reads the notices in ``page``, its node's shared memory. Therefore the rank either sees the notice about a machine
    and waits here, or its node reports a number that includes this call.
    """
    calls = page.count(task.info["worker"], task.attempt, task.job, task.info["generation"])
    world = _world(page.read().worlds, task)
    if world is not None and world.stop_at is None and world.notice is not None:
        world = _waited(page, task, world.notice)
    return world is not None and world.stop_at is not None and calls >= world.stop_at


def _waited(page: NoticePage, task: TaskContext, notice: PostedNotice) -> World | None:
    """Wait until the ranks agree on a step to stop at. Return the preemption state of their broadcast, or None.

    If the ranks did not agree in time, the next call for the same notice does not wait again.
    """
    failed_request = (task.attempt, notice.number)
    if failed_request in _in_vain:
        return None
    until = time.monotonic() + AGREE_S
    while time.monotonic() < until:
        time.sleep(_PAUSE_S)
        world = _world(page.read().worlds, task)
        if world is None or world.stop_at is not None or world.notice is None:
            return world
    _in_vain.clear()
    _in_vain.add(failed_request)
    return None


_in_vain: set[tuple[int, int]] = set()

# --- callbacks --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Call:
    until: float  # the time until which the callback may run, by `time.monotonic`
    ended: threading.Event = field(default_factory=threading.Event)
    is_overdue: bool = False


class OnPreemption(Generic[Callback]):
    """A registered callback; calling this object calls the function.

    As a context manager, it waits at the end of the block for running calls.
    """

    def __init__(self, callback: Callback, *, everywhere: bool, margin_s: float | None) -> None:
        update_wrapper(cast("Any", self), callback)
        self._callback = callback
        self._name = getattr(callback, "__qualname__", repr(callback))
        self._everywhere, self._margin_s = everywhere, margin_s
        self._loop = self._running_loop() if inspect.iscoroutinefunction(callback) else None
        self._context = contextvars.copy_context()
        self._lock = threading.Lock()
        self._is_over = False
        self._seen: set[tuple[int, ...]] = set()
        self._calls: list[_Call] = []
        self.task: TaskContext | None = context.current()
        self._page: NoticePage | None = context.notice_page()
        if self._page is not None:
            _poller.add(self)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        import asyncio

        try:
            return asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(f"{self._name} is async: register it where the loop runs that is to run it") from None

    @property
    def __call__(self) -> Callback:
        return self._callback

    def cancel(self) -> None:
        """Make no more calls of the callback. A running call continues. Idempotent."""
        with self._lock:
            self._is_over = True
        _poller.remove(self)

    def wait(self) -> None:
        """Wait until each running call has ended or has used up its time."""
        for call in self._calls:
            call.ended.wait(max(0.0, call.until - time.monotonic()))

    def poll(self) -> None:
        """Check, in the polling thread, whether there is a new notice for which the callback must be called."""
        with self._lock:
            if self._page is not None and not self._is_over:
                notice = pending(self._page, self.task, everywhere=self._everywhere)
                if notice is not None and notice.key not in self._seen:
                    self._seen.add(notice.key)
                    self._start(notice if self._margin_s is None else replace(notice, margin_s=self._margin_s))
        for call in self._calls:
            if not call.is_overdue and time.monotonic() > call.until and not call.ended.is_set():
                call.is_overdue = True
                self._context.copy().run(self._print, "has used up its time, and is not waited for")

    def _start(self, notice: Preemption) -> None:
        call, surroundings = _Call(notice.at - notice.margin_s), self._context.copy()
        self._calls.append(call)
        if self._loop is None:
            run = partial(surroundings.run, self._run, notice, call)
            threading.Thread(target=run, name=f"on_preemption {self._name}").start()
            return
        import asyncio

        coroutine = self._run_async(notice)
        try:
            started = surroundings.run(asyncio.run_coroutine_threadsafe, coroutine, self._loop)
            started.add_done_callback(lambda _: call.ended.set())
        except RuntimeError:  # the callback's event loop is closed, so calling the callback has no purpose any more
            coroutine.close()
            call.ended.set()

    def _run(self, notice: Preemption, call: _Call) -> None:
        try:
            self._callback(notice)
        except Exception:  # noqa: BLE001  reported, not fatal
            self._report()
        finally:
            call.ended.set()

    async def _run_async(self, notice: Preemption) -> None:
        import asyncio

        try:
            async with asyncio.timeout(notice.budget_s):
                await cast("Coroutine[Any, Any, object]", self._callback(notice))
        except Exception:  # noqa: BLE001  reported, not fatal
            self._report()

    def _report(self) -> None:
        self._print("has failed; the task goes on")
        traceback.print_exc()

    def _print(self, what: str) -> None:
        print(f"outrider: the on_preemption callback {self._name} {what}", file=sys.stderr, flush=True)

    def __enter__(self) -> OnPreemption[Callback]:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()
        # an async callback needs the event loop, which waiting here would block: only `async with` waits for it
        if self._loop is None:
            self.wait()

    async def __aenter__(self) -> OnPreemption[Callback]:
        return self

    async def __aexit__(self, *_: object) -> None:
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
    """Call ``callback(notice)`` once when this task's machine will be taken; at once if there already is a notice.

    The registration lasts until the task ends or, in a ``with`` statement, until the block ends. At that end a running
    callback gets the time to finish, but not longer than its budget: the time until the machine is taken minus the
    margin. An async callback runs on the event loop on which it was registered, and is cancelled when its budget is
    used up; any other callback runs in a new thread. If the callback raises, the error is printed and the task
    continues. Outside a pool the callback is never called.

    Args:
        callback: A function, or an async function, that gets the `Preemption`.
        everywhere: True: also when any other machine that runs ranks of this broadcast will be taken.
        margin: Seconds to leave unused. Default: 5, or a fifth of a short notice.

    Raises:
        RuntimeError: The callback is async, and no event loop is running here.
    """
    make = partial(OnPreemption, everywhere=everywhere, margin_s=margin)
    return cast("Any", make) if callback is None else make(callback)


async def wait_preemption(*, everywhere: bool = False) -> Preemption:
    """Wait until there is a notice, and return it. Safe to cancel.

    Args:
        everywhere: True: also wait for the notice of any other machine that runs ranks of this broadcast.
    """
    import asyncio

    loop = asyncio.get_running_loop()
    came: asyncio.Future[Preemption] = loop.create_future()

    async def tell(notice: Preemption) -> None:
        if not came.done():
            came.set_result(notice)

    async with on_preemption(tell, everywhere=everywhere):
        return await came


class _NoticePoller:
    """The thread that looks for notices, for all callbacks of a process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handlers: list[OnPreemption[Any]] = []
        self._tasks: set[int] = set()  # ids of the attempts whose callbacks are registered
        self._thread: threading.Thread | None = None
        self._changed = threading.Event()

    def add(self, handler: OnPreemption[Any]) -> None:
        with self._lock:
            self._handlers.append(handler)
            if handler.task is not None and handler.task.attempt not in self._tasks:
                self._tasks.add(handler.task.attempt)
                handler.task.closing.append(partial(self._ended, handler.task))
            if self._thread is None or not self._thread.is_alive():  # a forked child does not have its parent's thread
                self._thread = threading.Thread(target=self._run, daemon=True, name="outrider-preemption")
                self._thread.start()
            self._changed.set()

    def remove(self, handler: OnPreemption[Any]) -> None:
        with self._lock:
            if handler in self._handlers:
                self._handlers.remove(handler)
            self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            with self._lock:
                handlers = list(self._handlers)
                if not handlers:
                    self._thread = None
                    return
            for handler in handlers:
                handler.poll()
            self._changed.wait(POLL_S)

    def _ended(self, task: TaskContext, failed: bool) -> None:  # noqa: ARG002 - the same after a failure
        """Cancel the callbacks of a task whose function has ended. Its result is sent after the running callbacks."""
        with self._lock:
            self._tasks.discard(task.attempt)
            theirs = [handler for handler in self._handlers if handler.task is task]
        for handler in theirs:
            handler.cancel()
        for handler in theirs:
            handler.wait()


_poller = _NoticePoller()
# A forked child starts without callbacks, which belong to the process that registered them.
os.register_at_fork(after_in_child=_poller.__init__)  # type: ignore[misc]
