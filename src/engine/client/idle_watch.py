"""Detection of idle pools: watches a pool's events, and ends the pool after ``max_idle`` without work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Never

from ...actors import events as ev
from ...actors.idleness import Idle, Idleness
from ..api.errors import PoolIdle
from ..api.quantities import count, seconds
from .budget import Cost, clock
from .limits import Watch


class IdleWatch:
    """The idle watch of one open pool. It receives the pool's events; without ``max_idle_s`` it does nothing.

    ``calls`` returns how many calls have begun, and how many have ended. ``error`` returns the error that ends the
    pool.
    """

    def __init__(
        self,
        max_idle_s: float | None,
        every_s: float | None,
        *,
        observe: Callable[[ev.Event], object],
        cost: Callable[[], Cost],
        calls: Callable[[], tuple[int, int]],
    ) -> None:
        self._idleness = Idleness(max_idle_s, every_s) if max_idle_s is not None and every_s is not None else None
        self._observe, self._cost, self._calls = observe, cost, calls
        self._seen = calls()
        self._reached: asyncio.Future[PoolIdle] = asyncio.get_running_loop().create_future()
        self.error: PoolIdle | None = None

    def watches(self) -> Sequence[Watch]:
        return () if self._idleness is None else (self._watch,)

    def __call__(self, event: ev.Event) -> None:
        if self._idleness is None or self._reached.done():
            return
        match event:
            case ev.NodeLaunching() | ev.NodeStarted() | ev.NodePreparing():
                self._idleness.boots(event.node, clock())
            case ev.NodeReady() | ev.NodeStandby():
                self._idleness.joined(event.node, event.accelerators, clock())
            case ev.NodeQueued():
                self._idleness.queued(event.node, clock())
            case ev.NodeFailed() | ev.NodeLost() | ev.NodeDismissed():
                self._idleness.left(event.node, clock())
            case ev.NodeSampled():
                self._sampled(event, self._idleness)
            case _:
                pass

    def _sampled(self, event: ev.NodeSampled, idleness: Idleness) -> None:
        now = clock()
        if (calls := self._calls()) != self._seen:
            self._seen = calls
            idleness.called(now)
        idleness.sampled(event, now)
        idle = idleness.over(now)
        if idle is not None:
            self.error = self._error(idle, now - idle.since, idleness.max_idle_s)
            self._reached.set_result(self.error)
            self._observe(ev.PoolIdleTooLong(self.error.idle_s, self.error.limit, idle.gpus, idle.most))

    async def _watch(self) -> Never:
        raise await self._reached

    def _error(self, idle: Idle, idle_s: float, limit_s: float) -> PoolIdle:
        begun, ended = self._calls()
        running = begun - ended
        use = (
            f"none of its {count(idle.gpus, 'GPU')} was used for more than {idle.most:.0%} of the time"
            if idle.gpus
            else f"no more than {idle.most:.2f} processors of any of its {count(idle.nodes, 'node')} were busy"
        )
        look = f"{count(running, 'call')} did not end: look for what they wait for" if running else "No call ran"
        cost = self._cost()
        message = (
            f"The pool has done nothing for {seconds(idle_s)}, and may for {seconds(limit_s)} (max_idle): {use}. "
            f"It was ended. {look}, or allow it more; it has cost {cost}."
        )
        return PoolIdle(
            message,
            since=time.time() - idle_s,
            idle_s=idle_s,
            limit=limit_s,
            gpus=idle.gpus,
            use=idle.most,
            calls=running,
            spent=cost.spent,
            hourly=cost.hourly,
        )
