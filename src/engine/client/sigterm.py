"""SIGTERM and SIGHUP while pools are open: where they would have ended the process at once, they end blocks first.

That is where they have their default action when a pool opens in the main thread. Handlers of others are left alone,
and a SIGHUP that is ignored, as under nohup, stays that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from types import FrameType
from typing import cast

from . import sigint

ENDING = (signal.SIGTERM, signal.SIGHUP)  # what ends programs: `kill` and all that manage services; a closed terminal


class Hold:
    """The default action of the signals, held back for one pool from its creation until `release`."""

    def __init__(self) -> None:
        self._sigterm = _Sigterm.found()
        if self._sigterm is not None:
            self._sigterm.holds.append(self)
            self._sigterm.settle()

    def release(self) -> None:
        """Release once; again has no effect. The last one restores the default, and dies by the signal that came."""
        if self._sigterm is not None and self in self._sigterm.holds:
            self._sigterm.holds.remove(self)
            self._sigterm.settle()

    def end(self, *, innermost: bool) -> None:
        """React to such a signal; called again whenever another pool has ended since."""
        raise NotImplementedError


class TaskHold(Hold):
    """The signal cancels the task that opens the pool, the current one: once."""

    def __init__(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._told = False
        self.at_rest = asyncio.Event()  # the pool is neither being opened nor closed
        super().__init__()
        sigint.hold(self)

    async def leave(self) -> None:
        """`release`, but not before those that the signal has closing too: were this the main task's, asyncio would end
        with it, and cancel them."""
        self.at_rest.set()
        try:
            if self._told and self._sigterm is not None:
                for hold in [*self._sigterm.holds]:
                    if isinstance(hold, TaskHold):
                        await hold.at_rest.wait()
        finally:
            self.release()

    def release(self) -> None:
        sigint.release(self)
        super().release()

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
    """The signal raises `SystemExit` in the main thread, once, while ``interruptible``.

    That is ended by an assignment: at a call, Python would first run the handler.
    """

    def __init__(self) -> None:
        self.interruptible = False
        super().__init__()

    def interrupt(self) -> None:
        """Let the signal raise `SystemExit` from now on; if such a signal has come, it is raised now."""
        self.interruptible = True
        if self._sigterm is not None:
            self._sigterm.settle()

    def end(self, *, innermost: bool) -> None:
        if self.interruptible and innermost:  # the outer ones when the inner ones have been left
            self.interruptible = False
            assert self._sigterm is not None
            raise SystemExit(self._sigterm.status)


class _Sigterm:
    """The handler, of each of the signals that would end the process. There is one for all open pools, which find it
    where it is installed."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._came = 0  # the first of them
        self.holds: list[Hold] = []  # the innermost last

    @staticmethod
    def found() -> _Sigterm | None:
        """None: these signals are somebody else's business."""
        if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
            return None
        there = {number: signal.getsignal(number) for number in ENDING}
        ours = [each for each in there.values() if isinstance(each, _Sigterm) and not each._is_inherited()]
        handler = ours[0] if ours else _Sigterm()
        for number, each in there.items():
            if each is signal.SIG_DFL or (isinstance(each, _Sigterm) and each._is_inherited()):
                signal.signal(number, handler)
        return handler if handler._installed() else None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._is_inherited():
            self.holds.clear()
        self._came = self._came or number
        self.settle()

    @property
    def status(self) -> int:
        """The exit status as shells report it."""
        return 128 + self._came

    def _installed(self) -> list[signal.Signals]:
        return [number for number in ENDING if cast("object", signal.getsignal(number)) is self]

    def _is_inherited(self) -> bool:
        """Return whether this process is a fork of the one that has the pools. The fork has none, and is to die as
        ever.
        """
        return os.getpid() != self._process

    def settle(self) -> None:
        """Tell those that have to end; and when there are none left, give the signals back."""
        if self._came:
            for hold in [*self.holds]:
                hold.end(innermost=self.holds[-1:] == [hold])
        installed = self._installed()
        if self.holds or not installed:
            return
        if threading.current_thread() is threading.main_thread():
            for number in installed:
                signal.signal(number, signal.SIG_DFL)
        if self._came in installed:
            os.kill(os.getpid(), self._came)  # from another thread: to the handler, which then does this again
