"""SIGTERM while pools are open: where it would have ended the process at once, it ends their blocks first.

That is where it has its default action when a pool opens in the main thread. Handlers of others are left alone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import FrameType


class Hold:
    """For one pool the default action is held back, from here on until `release`."""

    def __init__(self) -> None:
        self._sigterm = _Sigterm.found()
        if self._sigterm is not None:
            self._sigterm.holds.append(self)
            self._sigterm.settle()

    def release(self) -> None:
        """Once; again is without effect. The last one restores the default, and dies by it if SIGTERM has come."""
        if self._sigterm is not None and self in self._sigterm.holds:
            self._sigterm.holds.remove(self)
            self._sigterm.settle()

    def end(self, *, innermost: bool) -> None:
        """SIGTERM has come; told again whenever another pool has ended since."""
        raise NotImplementedError


class TaskHold(Hold):
    """SIGTERM cancels the task that opens the pool, the current one: once."""

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._told = False
        self.at_rest = asyncio.Event()  # the pool is neither being opened nor closed
        super().__init__()

    async def leave(self) -> None:
        """`release`, but not before those that SIGTERM has closing too: were this the main task's, asyncio would end
        with it, and cancel them."""
        self.at_rest.set()
        try:
            if self._told and self._sigterm is not None:
                for hold in [*self._sigterm.holds]:
                    if isinstance(hold, TaskHold):
                        await hold.at_rest.wait()
        finally:
            self.release()

    def end(self, *, innermost: bool) -> None:  # noqa: ARG002
        if self._told:
            return
        self._told = True
        if self._task is None or self._task.done() or self._loop.is_closed():
            self.release()  # there is nobody who would close the pool
        else:
            self._loop.call_soon_threadsafe(self._cancel, self._task)  # which wakes up a loop that waits

    def _cancel(self, task: asyncio.Task[object]) -> None:
        task.cancel()
        task.add_done_callback(lambda _: self.release())  # should it end and leave its pool open


class ThreadHold(Hold):
    """SIGTERM raises `SystemExit` in the main thread, once, while ``interruptible``.

    That is ended by an assignment: at a call, Python would first run the handler.
    """

    def __init__(self) -> None:
        self.interruptible = False
        super().__init__()

    def interrupt(self) -> None:
        """From now on; and now, if SIGTERM has come."""
        self.interruptible = True
        if self._sigterm is not None:
            self._sigterm.settle()

    def end(self, *, innermost: bool) -> None:
        if self.interruptible and innermost:  # the outer ones when the inner ones have been left
            self.interruptible = False
            raise SystemExit(128 + signal.SIGTERM)  # as shells say it


class _Sigterm:
    """The handler. There is one for all open pools, which find it where it is installed."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._came = False
        self.holds: list[Hold] = []  # the innermost last

    @staticmethod
    def found() -> _Sigterm | None:
        """None: SIGTERM is somebody else's business."""
        if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
            return None
        there = signal.getsignal(signal.SIGTERM)
        if there is signal.SIG_DFL or (isinstance(there, _Sigterm) and there._is_inherited()):
            there = _Sigterm()
            signal.signal(signal.SIGTERM, there)
        return there if isinstance(there, _Sigterm) else None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._is_inherited():
            self.holds.clear()
        self._came = True
        self.settle()

    def _is_inherited(self) -> bool:
        """By a fork of the process whose pools they are: it has none, and is to die as ever."""
        return os.getpid() != self._process

    def settle(self) -> None:
        """Tell those that have to end; and when there are none left, give SIGTERM back."""
        if self._came:
            for hold in [*self.holds]:
                hold.end(innermost=self.holds[-1:] == [hold])
        installed: object = signal.getsignal(signal.SIGTERM)
        if self.holds or installed is not self:
            return
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if self._came:
            os.kill(os.getpid(), signal.SIGTERM)  # from another thread: to the handler, which then does this again
