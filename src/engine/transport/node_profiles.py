"""The client's side of profiles: requests to one node, their results, and the offset of the node's clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

from ...actors import events as ev
from ..api.printable import one_line
from ..wire import messages as wire
from .clock_offset import ClockOffset

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId, Order
    from ..serialization.payload import Received
    from ..serialization.task_payload import Payload

# A node must answer within the duration of a profile and this number of seconds more. The node's tasks have 70 s more.
MARGIN_S = 80.0
# number of pings at the beginning and at the end of a profile, and seconds between two pings; the ping with the
# shortest round trip gives the offset of the clocks
PINGS, PING_S = 8, 0.05
PROBLEM_CHARS = 2000


class NodeProfiles:
    """The profiles of one node. ``orders``: its attempts. ``fetches``: attempt -> running fetches from the node."""

    def __init__(
        self,
        node: NodeId,
        orders: Mapping[int, Order],
        fetches: Mapping[int, set[asyncio.Task[Received]]],
        send: Callable[[wire.Message], object],
    ) -> None:
        self._node, self._orders, self._fetches, self._send = node, orders, fetches, send
        self.clock = ClockOffset()
        self.observe: Callable[[ev.Event], object] = lambda _: None
        self._waiting: dict[tuple[int, str], tuple[Order, asyncio.Future[ev.ProfileTaken]]] = {}
        self._arriving: dict[asyncio.Task[None], tuple[Order, wire.Profiled]] = {}

    def ping(self) -> wire.Ping:
        """Return a ping to send to the node now, and record the time: the answer gives the offset of the clocks."""
        return wire.Ping(self.clock.ping(time.monotonic()))

    def ponged(self, pong: wire.Pong) -> None:
        self.clock.pong(pong.sent_ms, pong.clock_us / 1e6, time.monotonic())

    async def take(self, attempt: int, profile: str, steps: int, seconds: float) -> ev.ProfileTaken:
        """Take a profile of an attempt that runs on the node, and return its result."""
        order = self._orders[attempt]
        future: asyncio.Future[ev.ProfileTaken] = asyncio.get_running_loop().create_future()
        self._waiting[attempt, profile] = order, future
        await self._look_at_clock()
        self._send(wire.Profile(attempt, profile, steps, seconds))
        try:
            async with asyncio.timeout(seconds + MARGIN_S):
                return await future
        except TimeoutError:
            return self._of(order, profile, "", f"its node has not answered within {seconds + MARGIN_S:g} s")
        finally:
            self._waiting.pop((attempt, profile), None)

    def received(self, message: wire.Profiled) -> None:
        """Handle the end of a profile, including a profile that a task has started itself."""
        waiting = self._waiting.get((message.attempt, message.profile))
        if waiting is not None:
            task = asyncio.get_running_loop().create_task(self._arrive(waiting[0], message))
            self._arriving[task] = waiting[0], message
        elif (order := self._orders.get(message.attempt)) is not None:
            self._arrived(order, message)

    def close(self) -> None:
        for task, arriving in [*self._arriving.items()]:
            task.cancel()
            self._arrived(*arriving)
        self._arriving.clear()
        for (_, profile), (order, future) in self._waiting.items():
            if not future.done():
                future.set_result(self._of(order, profile, "", "its node was lost"))

    async def _arrive(self, order: Order, message: wire.Profiled) -> None:
        """Report the profile once its artifact is stored in the record."""
        if fetching := {*self._fetches.get(message.attempt, ())}:
            await asyncio.wait(fetching)
        await self._look_at_clock()
        self._arriving.pop(cast("asyncio.Task[None]", asyncio.current_task()), None)
        self._arrived(order, message)

    def _arrived(self, order: Order, message: wire.Profiled) -> None:
        taken = self._of(order, message.profile, message.artifact, message.problem)
        self.observe(taken)
        _, future = self._waiting.get((message.attempt, message.profile), (None, None))
        if future is not None and not future.done():
            future.set_result(taken)

    async def _look_at_clock(self) -> None:
        for _ in range(PINGS):
            self._send(self.ping())
            await asyncio.sleep(PING_S)

    def _of(self, order: Order, profile: str, artifact: str, problem: str) -> ev.ProfileTaken:
        payload, world, now = cast("Payload", order.task.content), order.world, time.monotonic()
        offset = self.clock.estimate(now)
        return ev.ProfileTaken(
            int(order.task.job),
            int(self._node),
            order.rank,
            one_line(profile),
            one_line(artifact),
            one_line(problem[:PROBLEM_CHARS]),
            one_line(payload.name),
            ranks=1 if world is None else world.size,
            generation=0 if world is None else world.generation,
            clock_offset_s=None if offset is None else offset.seconds - (time.time() - now),
            clock_error_s=None if offset is None else offset.error_s,
        )
