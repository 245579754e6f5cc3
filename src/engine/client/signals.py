"""Signals while pools are open: the pools end first, then the program.

SIGTERM and SIGHUP by default end the process at once. While pools are open, these signals end the pools' blocks first.
This applies only if a signal has its default action when a pool opens in the main thread. Other handlers are kept, and
a SIGHUP that is ignored, as under nohup, stays ignored.

SIGINT is handled by asyncio: `asyncio.run` cancels its task at the first SIGINT. At each further SIGINT it raises
KeyboardInterrupt at the point where the loop is. If that point is between a result and the wake-up of the task that
waits for it, the task never wakes up, and the loop waits for the task forever. Therefore only the first SIGINT is
passed on to asyncio; further ones are dropped if they arrive shortly after it, or while pools are ending. A pool that
ends at once still waits `LINGER_S` after the first SIGINT, so that duplicates of that signal are dropped.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, cast

# SIGTERM is sent by `kill` and by service managers, SIGHUP by a closed terminal
ENDING = (signal.SIGTERM, signal.SIGHUP)
# a further SIGINT within this time is a duplicate: a key held down, or a wrapper that forwards the terminal's signal
SAME_S = 1.0
LINGER_S = 0.25  # seconds that a pool stays open at least after a signal, so that a wrapper's duplicate arrives before
ENDING_S = 30.0  # SIGINTs are dropped for this long while pools end; a later one ends the wait for them


class Hold:
    """Delays the default action of the ending signals for one pool, from the hold's creation until `release`."""

    def __init__(self) -> None:
        self._handler = _EndingHandler.install()
        if self._handler is not None:
            self._handler.holds.append(self)
            self._handler.settle()

    def release(self) -> None:
        """Release the hold; further calls have no effect.

        The release of the last hold restores the default action, and ends the process by the signal that has arrived,
        if any.
        """
        if self._handler is not None and self in self._handler.holds:
            self._handler.holds.remove(self)
            self._handler.settle()

    def end(self, *, innermost: bool) -> None:
        """React to an ending signal. Called again each time that another pool has ended."""
        raise NotImplementedError


class TaskHold(Hold):
    """A hold for ``async with``: the signal cancels the task that opens the pool, which is the current task, once.

    SIGINT is held as well.
    """

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._cancelled = False
        self.at_rest = asyncio.Event()  # set while the pool is neither being opened nor closed
        self.hurry: Callable[[], None] | None = None  # called at the second SIGINT, instead of asyncio's handler
        super().__init__()
        _InterruptHandler.hold(self)

    async def leave(self) -> None:
        """Wait until the other pools that the signal ends are closed, then release this hold.

        Without the wait, this task may end first. If it is the main task, asyncio then cancels the tasks of all pools.
        """
        self.at_rest.set()
        try:
            if self._cancelled and self._handler is not None:
                for hold in [*self._handler.holds]:
                    if isinstance(hold, TaskHold):
                        await hold.at_rest.wait()
            await asyncio.sleep(_InterruptHandler.lingers_s(self))
        finally:
            self.release()

    def cause_of(self, error: BaseException | None) -> BaseException | None:
        """Return the error that ends a block.

        For a cancellation that Ctrl-C or a signal caused, return the error of that cause.
        """
        if not isinstance(error, asyncio.CancelledError):
            return error
        if self._cancelled and self._handler is not None:
            return SystemExit(128 + self._handler.came).with_traceback(error.__traceback__)
        if _InterruptHandler.has_come(self):
            return KeyboardInterrupt().with_traceback(error.__traceback__)
        return error

    def release(self) -> None:
        _InterruptHandler.release(self)
        super().release()

    def end(self, *, innermost: bool) -> None:  # noqa: ARG002
        if self._cancelled:
            return
        self._cancelled = True
        if self._task is None or self._task.done() or self._loop.is_closed():
            self.release()  # the task that would close the pool has ended
        else:
            # thread-safe call, because that wakes a loop that waits for I/O
            self._loop.call_soon_threadsafe(self._cancel, self._task)

    def hurried(self) -> bool:
        """Report another SIGINT to a block that is still ending after the first SIGINT.

        Return whether the block handles it.
        """
        if self.hurry is None or self._loop.is_closed():
            return False
        self._loop.call_soon_threadsafe(self.hurry)
        return True

    def _cancel(self, task: asyncio.Task[object]) -> None:
        task.cancel()
        task.add_done_callback(lambda _: self.release())  # the task may end and leave its pool open


class ThreadHold(Hold):
    """A hold for ``with``: the signal raises `SystemExit` in the main thread, once, while ``interruptible`` is true.

    To stop interrupts, assign False to ``interruptible``. A method for that would not be safe, because Python may run
    the signal handler at any call.
    """

    def __init__(self) -> None:
        self.interruptible = False
        super().__init__()

    def interrupt(self) -> None:
        """Allow the signal to raise `SystemExit` from now on. If the signal has arrived already, raise now."""
        self.interruptible = True
        if self._handler is not None:
            self._handler.settle()

    def end(self, *, innermost: bool) -> None:
        # of nested `with` blocks, only the innermost is interrupted; this method is called again when it has ended
        if self.interruptible and innermost:
            self.interruptible = False
            assert self._handler is not None
            raise SystemExit(128 + self._handler.came)  # the exit code that shells report for the signal


class ProgramHold(Hold):
    """A hold for a program that has work left after a signal has ended its pool, such as printing the result.

    A signal that arrives while no pool is open ends the first pool that is opened. At `release`, the program dies by
    the signal.
    """

    @property
    def came(self) -> int:
        """The number of the signal that has arrived; 0: none has."""
        return 0 if self._handler is None else self._handler.came

    def end(self, *, innermost: bool) -> None:
        pass


def ending_signal_came() -> bool:
    """Return whether a signal has arrived that ends the program after its pools have ended.

    Any thread may call this.
    """
    return any(isinstance(there := signal.getsignal(number), _EndingHandler) and there.came for number in ENDING)


class _EndingHandler:
    """The handler of the signals that would end the process.

    All open pools share one instance, which each pool finds by asking Python for the installed signal handler.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.came = 0  # number of the first signal; 0: none has arrived
        self.holds: list[Hold] = []  # those that are not released; that of the innermost `with` block is last

    @staticmethod
    def install() -> _EndingHandler | None:
        """Return the handler, after installing it if necessary; None: the program itself handles these signals."""
        if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
            return None
        there = {number: signal.getsignal(number) for number in ENDING}
        ours = [each for each in there.values() if isinstance(each, _EndingHandler) and not each._is_inherited()]
        handler = ours[0] if ours else _EndingHandler()
        for number, each in there.items():
            if each is signal.SIG_DFL or (isinstance(each, _EndingHandler) and each._is_inherited()):
                signal.signal(number, handler)
        return handler if handler._installed else None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._is_inherited():
            self.holds.clear()
        self.came = self.came or number
        self.settle()

    @property
    def _installed(self) -> list[signal.Signals]:
        return [number for number in ENDING if cast("object", signal.getsignal(number)) is self]

    def _is_inherited(self) -> bool:
        """Return whether this process is a fork of the pools' process.

        A fork has no pools, so signals end it as by default.
        """
        return os.getpid() != self._process

    def settle(self) -> None:
        """End the pools' blocks if a signal has arrived. When no `Hold` is left, restore the default actions."""
        if self.came:
            for hold in [*self.holds]:
                hold.end(innermost=self.holds[-1:] == [hold])
        installed = self._installed
        if self.holds or not installed:
            return
        if threading.current_thread() is threading.main_thread():
            for number in installed:
                signal.signal(number, signal.SIG_DFL)
        if self.came in installed:
            # called in another thread, this runs the handler in the main thread, and the handler calls this method
            # again
            os.kill(os.getpid(), self.came)


class _InterruptHandler:
    """A handler of SIGINT that wraps the handler of `asyncio.run` while pools are open in the main thread."""

    def __init__(self, runners: Callable[[int, FrameType | None], object]) -> None:
        self.runners = runners
        self.holds: list[TaskHold] = []
        self._process = os.getpid()
        self._passed_on: float | None = None

    @classmethod
    def hold(cls, hold: TaskHold) -> None:
        """Handle SIGINT for the pool of ``hold`` until `release`.

        Do nothing outside the main thread, or if the program has its own handler instead of that of `asyncio.run`.
        """
        if threading.current_thread() is not threading.main_thread():  # only the main thread can set signal handlers
            return
        there: Any = signal.getsignal(signal.SIGINT)
        if _is_runners(there):
            there = cls(there)
            signal.signal(signal.SIGINT, there)
        if isinstance(there, cls):
            there.holds.append(hold)

    @classmethod
    def release(cls, hold: TaskHold) -> None:
        there: Any = signal.getsignal(signal.SIGINT)
        if not isinstance(there, cls) or hold not in there.holds:
            return
        there.holds.remove(hold)
        if not there.holds and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, there.runners)

    @classmethod
    def has_come(cls, hold: TaskHold) -> bool:
        """Return whether a SIGINT was passed on to asyncio, and ``hold`` is not released yet."""
        there: Any = signal.getsignal(signal.SIGINT)
        return isinstance(there, cls) and hold in there.holds and there._passed_on is not None

    @classmethod
    def lingers_s(cls, hold: TaskHold) -> float:
        """Return for how many seconds the pool must still stay open, because a SIGINT was passed on just now."""
        there: Any = signal.getsignal(signal.SIGINT)
        if not isinstance(there, cls) or hold not in there.holds or there._passed_on is None:
            return 0.0
        return max(0.0, there._passed_on + LINGER_S - time.monotonic())

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._passed_on is not None and os.getpid() == self._process:
            ending = any(not hold.at_rest.is_set() for hold in self.holds)
            if now < self._passed_on + (ENDING_S if ending else SAME_S):
                return
            hurried = [hold.hurried() for hold in self.holds]
            if any(hurried):
                return
        self._passed_on = now
        self.runners(number, frame)


def _is_runners(handler: object) -> bool:
    """Return whether the handler was set by `asyncio.run`.

    In a Python that names that handler differently, return False, and the handler is left alone.
    """
    runners = getattr(asyncio.Runner, "_on_sigint", None)
    return isinstance(handler, partial) and getattr(handler.func, "__func__", None) is runners is not None
