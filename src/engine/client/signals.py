"""Signals while pools are open: pools end first, then the program.

SIGTERM and SIGHUP would end the process at once; while pools are open they end their blocks first. That holds where
they have their default action when a pool opens in the main thread. Handlers of others are left alone, and a SIGHUP
that is ignored, as under nohup, stays ignored.

SIGINT is asyncio's: `asyncio.run` cancels its task at the first one. At each further one it raises KeyboardInterrupt
wherever its loop happens to be, also between a result and the task that waits for it: that task never wakes up, and the
loop waits for it for ever. So the first is passed on, and those that come with it, or while its pools are being ended,
are not. A pool that ends at once is left only when those have come that may come with the first.
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

ENDING = (signal.SIGTERM, signal.SIGHUP)  # sent by `kill` and service managers; by a closed terminal
SAME_S = 1.0  # for a key that is held down, or a wrapper that forwards the terminal's signal to both
LINGER_S = 0.25  # the least time from the first signal to the end of a pool: a wrapper's signal comes within it
ENDING_S = 30.0  # for so long pools end undisturbed; a key that is pressed later ends the wait


class Hold:
    """The default action of the ending signals, held back for one pool from its creation until `release`."""

    def __init__(self) -> None:
        self._handler = _EndingHandler.install()
        if self._handler is not None:
            self._handler.holds.append(self)
            self._handler.settle()

    def release(self) -> None:
        """Release once; again has no effect. The last one restores the default, and dies by the signal that came."""
        if self._handler is not None and self in self._handler.holds:
            self._handler.holds.remove(self)
            self._handler.settle()

    def end(self, *, innermost: bool) -> None:
        """React to such a signal; called again whenever another pool has ended since."""
        raise NotImplementedError


class TaskHold(Hold):
    """A hold for ``async with``: the signal cancels the task that opens the pool, the current one, once. SIGINT is held
    as well.
    """

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._cancelled = False
        self.at_rest = asyncio.Event()  # the pool is neither being opened nor closed
        self.hurry: Callable[[], None] | None = None  # called at the second SIGINT, in place of asyncio's handler
        super().__init__()
        _InterruptHandler.hold(self)

    async def leave(self) -> None:
        """Release, but not before the pools that the signal has closing too: were this the main task's, asyncio would
        end with it, and cancel them.
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
        """Return the error that ends a block; in place of a cancellation, the error of its cause: Ctrl-C or a
        signal.
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
            self.release()  # no task is left to close the pool
        else:
            self._loop.call_soon_threadsafe(self._cancel, self._task)  # which wakes up a loop that waits

    def hurried(self) -> bool:
        """Notify a block that still ends after the first SIGINT of another one; return whether it takes that."""
        if self.hurry is None or self._loop.is_closed():
            return False
        self._loop.call_soon_threadsafe(self.hurry)
        return True

    def _cancel(self, task: asyncio.Task[object]) -> None:
        task.cancel()
        task.add_done_callback(lambda _: self.release())  # should it end and leave its pool open


class ThreadHold(Hold):
    """A hold for ``with``: the signal raises `SystemExit` in the main thread, once, while ``interruptible``.

    That is ended by an assignment: at a call, Python would first run the handler.
    """

    def __init__(self) -> None:
        self.interruptible = False
        super().__init__()

    def interrupt(self) -> None:
        """Let the signal raise `SystemExit` from now on; if such a signal has come, it is raised now."""
        self.interruptible = True
        if self._handler is not None:
            self._handler.settle()

    def end(self, *, innermost: bool) -> None:
        if self.interruptible and innermost:  # the outer ones when the inner ones have been left
            self.interruptible = False
            assert self._handler is not None
            raise SystemExit(128 + self._handler.came)  # as shells report it


class ProgramHold(Hold):
    """A hold for a program with work left after a signal has ended its pool, such as printing the result. A signal that
    comes while no pool is open ends the first pool that is opened; the program dies by it at the `release`.
    """

    @property
    def came(self) -> int:
        """The number of the signal that has come; 0: none has."""
        return 0 if self._handler is None else self._handler.came

    def end(self, *, innermost: bool) -> None:
        pass


def ending_signal_came() -> bool:
    """Return whether a signal has come that ends the program when its pools have ended. For any thread."""
    return any(isinstance(there := signal.getsignal(number), _EndingHandler) and there.came for number in ENDING)


class _EndingHandler:
    """The handler of the signals that would end the process: one for all open pools, which find it where it is
    installed.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self.came = 0  # the first of them
        self.holds: list[Hold] = []  # the innermost last

    @staticmethod
    def install() -> _EndingHandler | None:
        """Return the handler, installed now if it was not; None: the program itself handles these signals."""
        if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
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
        """Return whether this process is a fork of the pools' process: a fork has no pools, and dies by default."""
        return os.getpid() != self._process

    def settle(self) -> None:
        """End the blocks that have to end; and when there are none left, give the signals back."""
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
            os.kill(os.getpid(), self.came)  # from another thread: to the handler, which then does this again


class _InterruptHandler:
    """The handler of SIGINT in front of `asyncio.run`'s, while pools are open in the main thread."""

    def __init__(self, runners: Callable[[int, FrameType | None], object]) -> None:
        self.runners = runners
        self.holds: list[TaskHold] = []
        self._process = os.getpid()
        self._passed_on: float | None = None

    @classmethod
    def hold(cls, hold: TaskHold) -> None:
        """Hold SIGINT until `release`; only in the main thread, and where its handler is `asyncio.run`'s."""
        if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
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
        """Return whether a SIGINT was passed on while ``hold`` was there."""
        there: Any = signal.getsignal(signal.SIGINT)
        return isinstance(there, cls) and hold in there.holds and there._passed_on is not None

    @classmethod
    def lingers_s(cls, hold: TaskHold) -> float:
        """Return for how long ``hold`` is not to be released, because of a SIGINT that was passed on just now."""
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
    """Return whether `asyncio.run` has set the handler. If another Python names it differently, it is left as it is."""
    runners = getattr(asyncio.Runner, "_on_sigint", None)
    return isinstance(handler, partial) and getattr(handler.func, "__func__", None) is runners is not None
