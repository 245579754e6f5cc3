"""An asyncio loop on virtual time: time stops while anything can run, then jumps to the next timer. Hours take no time.

Two runs of the same coroutine take the same steps in the same order. asyncio itself is first in, first out. The one
exception is anyio, which keeps tasks and scopes in sets, whose order depends on memory addresses; this module
fixes that order.

A trio run under its mock clock could do the same; this loop takes 0.4 times as long (2,000 tasks that sleep 20 times
under a deadline: 0.5 s, trio 1.3 s), and the client's link, which needs asyncio, runs on it unchanged.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from heapq import heappop, heappush
from itertools import count
from typing import Any, TypeVar, TypeVarTuple

from anyio._backends import _asyncio as anyio_on_asyncio

from .limit import Overtime

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TURNS_AT_ONE_TIME = 200_000  # number of loop turns at one instant after which the loop counts as endless
ROUNDS = 14  # number of waits, of 1, 2, 4, ... s, for the remaining tasks of a run to end


class Stuck(Exception):
    """A task waits although no event can happen any more."""


class Spinning(Exception):
    """The events at one instant never end."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time. ``at_rest`` is called whenever nothing more can happen at the current time.

    An error that ``at_rest`` raises ends the run.
    """

    _ready: deque[asyncio.Handle]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.steps = 0  # number of instants at which something happened
        self.at_rest: Callable[[], None] = lambda: None
        self.halt: Exception | None = None  # an error that ends the run at the next turn
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # (time, order of setting, handle)
        self._ties = count()
        self._turns = 0

    def time(self) -> float:
        return self.now

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heappush(self._timers, (when, next(self._ties), timer))
        return timer

    def _run_once(self) -> None:
        """Run one turn, as in the base class; without a selector and with a heap that compares no handles (-20 %).

        Raises:
            Stuck, Spinning
        """
        ready = self._ready
        if self.halt is not None:
            raise self.halt
        if not ready:
            self.at_rest()
            if not ready:
                self._jump()
        self._turns += 1
        if self._turns > TURNS_AT_ONE_TIME:
            raise Spinning(f"more than {TURNS_AT_ONE_TIME} turns of the loop at {self.now:.6f} s")
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()

    def _jump(self) -> None:
        """Advance to the time of the next timer, and run all timers of that time."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers or timers[0][0] == math.inf:
            raise Stuck("nothing is left that could happen")
        self.now = at = max(self.now, timers[0][0])
        self.steps += 1
        self._turns = 0
        while timers and timers[0][0] <= at:
            timer = heappop(timers)[2]
            if not timer.cancelled():
                ready.append(timer)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run ``main`` to its end, and end the tasks that remain afterwards."""
        with _ordered_sets():
            task = self.create_task(main)
            try:
                return self.run_until_complete(task)
            finally:
                try:
                    self._abandon()
                finally:
                    self.close()

    def _abandon(self) -> None:
        """Cancel the tasks that remain after an aborted run, for a limited number of turns."""
        self.at_rest, self.halt = lambda: None, None
        self.set_exception_handler(lambda loop, context: None)  # noqa: ARG005
        for number in range(ROUNDS):
            left = self._all_begun()
            if not left:
                return
            for task in sorted(left, key=lambda task: task.get_name()):
                task.cancel()
            self._run_for(2.0**number)

    def _all_begun(self) -> set[asyncio.Task[Any]]:
        """Return the remaining tasks, after each has begun: otherwise cancelling would skip a task's cleanup."""
        left = asyncio.all_tasks(self)
        for _ in range(ROUNDS):
            known = left
            self._run_for(0.0)
            left = asyncio.all_tasks(self)
            if left <= known:
                break
        return left

    def _run_for(self, seconds: float) -> None:
        self._turns = TURNS_AT_ONE_TIME - 1000
        stop = self.call_later(seconds, self.stop) if seconds else self.call_soon(self.stop)
        try:
            self.run_forever()
        except (Stuck, Spinning, Overtime):
            pass
        stop.cancel()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # the handle is skipped when its time comes

    def _write_to_self(self) -> None:
        pass  # never called from another thread


class _Ordered(dict[Any, None]):
    """A set that keeps the order of insertion."""

    __slots__ = ()

    def add(self, member: object) -> None:
        self[member] = None

    def remove(self, member: object) -> None:
        del self[member]

    def discard(self, member: object) -> None:
        self.pop(member, None)


@contextmanager
def _ordered_sets() -> Iterator[None]:
    """Make sets keep their order, so that anyio cancels the tasks of a scope in the same order in every process."""
    names = anyio_on_asyncio.__dict__
    was_shadowed = "set" in names
    before = names.get("set")
    names["set"] = _Ordered
    try:
        yield
    finally:
        if was_shadowed:
            names["set"] = before
        else:
            del names["set"]
