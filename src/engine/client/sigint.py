"""Ctrl-C while pools are open, again and again: the first is asyncio's, and what follows does not hurt it.

`asyncio.run` cancels its task at the first SIGINT. At each further one it raises KeyboardInterrupt wherever its loop
happens to be, also between a result and the task that waits for it: that task never wakes up, and the loop waits for
it for ever. So the first is passed on, and those that come with it or while its pools are being ended are not.
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
from typing import Any, Protocol

SAME_S = 1.0  # a key that is held down, a wrapper that passes on what the terminal has sent to both
ENDING_S = 30.0  # for so long pools are ended undisturbed; who presses again then does not want to wait any longer


class Busy(Protocol):
    """A pool. ``at_rest``: it is neither being opened nor closed."""

    at_rest: asyncio.Event


def hold(pool: Busy) -> None:
    """Hold SIGINT for this pool until `release`; only in the main thread, and where its handler is `asyncio.run`'s."""
    if threading.current_thread() is not threading.main_thread():  # only there can handlers be set
        return
    there: Any = signal.getsignal(signal.SIGINT)
    if _is_runners(there):
        there = _Sigint(there)
        signal.signal(signal.SIGINT, there)
    if isinstance(there, _Sigint):
        there.pools.append(pool)


def release(pool: Busy) -> None:
    there: Any = signal.getsignal(signal.SIGINT)
    if not isinstance(there, _Sigint) or pool not in there.pools:
        return
    there.pools.remove(pool)
    if not there.pools and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, there.runners)


class _Sigint:
    def __init__(self, runners: Callable[[int, FrameType | None], object]) -> None:
        self.runners = runners
        self.pools: list[Busy] = []
        self._process = os.getpid()
        self._passed_on: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._passed_on is not None and os.getpid() == self._process:
            ending = any(not pool.at_rest.is_set() for pool in self.pools)
            if now < self._passed_on + (ENDING_S if ending else SAME_S):
                return
        self._passed_on = now
        self.runners(number, frame)


def _is_runners(handler: object) -> bool:
    """Return whether `asyncio.run` has set the handler. If another Python names it differently, it is left as it is."""
    runners = getattr(asyncio.Runner, "_on_sigint", None)
    return isinstance(handler, partial) and getattr(handler.func, "__func__", None) is runners is not None
