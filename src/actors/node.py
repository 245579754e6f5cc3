"""A node's actor: it reaches the machine, notices losses and reconnects until told to leave. It decides no more.

It is one task, and has no mailbox: what the pool tells it takes effect at once, as nothing of that can wait. A mailbox
and a task that reads it were half of what a node kept in memory.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Never, assert_never

import anyio

from ..lazy_dataclass import dataclass
from ..providers.base import Machine
from .interfaces import Connect, ConnectFailed, Connection, NodeId, Report
from .kernel import ActorFailed, ActorStopped
from .late_nodes import NO_ADDRESS, NO_ANSWER, PREPARED, Preparing
from .messages import Boots, Happened, Leave, NodeMessage, PoolMessage, Queued, Reachable, Received

if TYPE_CHECKING:
    from .node_lives import NodeLives

TRY_AGAIN_S = 0.1  # after the first refused try; then half as long again each time
TRY_AGAIN_LIMIT_S = 2.0
STEADY_S = 10.0  # after two connections in a row that held for less, reconnecting waits a little
CLOSE_S = 9.0
TRIES_AT_ONCE = 50  # over all nodes; opening 1,000 connections this way takes 2.2 s


@dataclass(frozen=True, slots=True)
class Dialer:
    """The means to reach a pool's nodes, shared by their actors."""

    connect: Connect
    boot_timeout_s: float
    tries: anyio.Semaphore  # held until a machine has answered
    returns: anyio.Semaphore  # held while reconnecting: a node that is away counts as lost within seconds
    preparing: Callable[[NodeId], Preparing | None]
    tell: Callable[[PoolMessage], None]


class NodeActor:
    """The supervisor of one node's connection. An error of this node alone is reported, and fails no other."""

    def __init__(self, node: NodeId, machine: Machine, dialer: Dialer, pool: NodeLives) -> None:
        self._node = node
        self._machine = machine
        self._pool = pool
        self._dialer = dialer
        self._has_answered = self._answers = self._has_turn = False
        self._work = anyio.CancelScope()
        # Until it is reached. Both take a kilobyte, and a pool may have a thousand nodes.
        self._addressed: anyio.Event | None = anyio.Event()
        self._boot: anyio.CancelScope | None = anyio.CancelScope(deadline=self._boots_until())
        if machine.address is not None:
            self._addressed.set()

    def receive(self, message: NodeMessage) -> None:
        match message:
            case Queued():
                if self._boot is not None:
                    self._boot.deadline = math.inf
            case Boots():
                if self._boot is not None:
                    self._boot.deadline = self._boots_until()
            case Reachable(machine):
                self._machine = machine
                if self._addressed is not None:
                    self._addressed.set()
            case Leave():
                self._work.cancel()
            case _:
                assert_never(message)

    async def live(self) -> None:
        """Run until the node is told to leave, or can never be reached again, and its connection is closed.

        Raises:
            ActorFailed: its connection could not be closed.
        """
        connection: Connection | None = None
        try:
            with self._work:
                connection = await self._reach()
                self._boot = self._addressed = None
                self._happened(partial(self._pool.reached, self._node, connection))
                await self._keep(connection)
        except ConnectFailed as error:
            self._happened(partial(self._pool.connection_failed, self._node, error))
        except Exception as error:  # noqa: BLE001 (this node's defect must not be the pool's)
            defect = ConnectFailed(f"{type(error).__name__}: {error}")
            self._happened(partial(self._pool.connection_failed, self._node, defect))
        finally:
            if connection is not None:
                await self._close(connection)
        self._happened(partial(self._pool.closed, self._node))

    async def _close(self, connection: Connection) -> None:
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            try:
                await connection.close()
            except Exception as error:
                raise ActorFailed(f"node {self._node}") from error

    def _boots_until(self) -> float:
        return anyio.current_time() + self._dialer.boot_timeout_s

    async def _reach(self) -> Connection:
        """Connect to the machine, trying until it succeeds or its time to boot is over; that passes while it runs.

        Raises:
            ConnectFailed: never reached, with the last reason.
        """
        last: ConnectFailed | None = None
        boot, addressed = self._boot, self._addressed
        assert boot is not None, "it is reached once"
        assert addressed is not None, "it is reached once"
        with boot:
            await addressed.wait()
            patience_s = self._machine.patience_s or math.inf
            down_at = anyio.current_time() + patience_s
            for tries in count():
                self._answers = False
                try:
                    async with self._turn():
                        return await self._dialer.connect(self._node, self._machine, self._reports, self._answered)
                except ConnectFailed as error:
                    if self._answers:  # the machine answered, so it is up or was until a moment ago
                        down_at = anyio.current_time() + patience_s
                    if error.futile or anyio.current_time() >= down_at:
                        raise
                    last = error
                await _pause(tries)
        raise self._late(last, addressed=addressed.is_set()) from last and last.__cause__

    def _late(self, last: ConnectFailed | None, *, addressed: bool) -> ConnectFailed:
        """Return the error for a node whose time is over. ``last``: of the tries to connect, if one has failed."""
        story, late, step = "its address is still unknown", NO_ADDRESS, ""
        if self._answers:  # the last try had come so far
            at = self._dialer.preparing(self._node)
            story = f"it answered, and {at or 'was being prepared'}"
            late, step = (PREPARED, "") if at is None else (f"at the step {at.step!r}", at.step)
        elif last is not None or addressed:
            story, late = str(last or "it did not answer"), NO_ANSWER
        failed = ConnectFailed(f"not ready within {self._dialer.boot_timeout_s:g} s: {story}")
        failed.late, failed.step = late, step
        return failed

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """Hold one of the turns to connect; tell the pool of a wait for it, as that is no silence of the machine's."""
        tries = self._dialer.tries
        waits = tries.value == 0
        if waits:
            self._happened(partial(self._pool.waits, self._node))
        await tries.acquire()
        self._has_turn = True
        try:
            if waits:
                self._happened(partial(self._pool.stragglers.tried, self._node))
            yield
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._dialer.tries.release()

    def _answered(self) -> None:
        self._end_turn()  # preparing the node may take long: others, whose leases nobody renews yet, come first
        self._answers = True
        if not self._has_answered:
            self._has_answered = True
            self._happened(partial(self._pool.stragglers.answered, self._node))

    async def _keep(self, connection: Connection) -> Never:
        """Wait for the loss of each connection and reconnect.

        Raises:
            ConnectFailed: the node will never be reached again.
        """
        since, short = anyio.current_time(), 0
        while True:
            lost = await connection.wait_lost()
            self._happened(partial(self._pool.dropped, self._node, lost))
            short = short + 1 if anyio.current_time() - since < STEADY_S else 0
            if short > 1:  # whatever ends the connections, it must not keep this program busy
                await _pause(short - 2)
            await self._resume(connection, lost.cause)
            since = anyio.current_time()
            self._happened(partial(self._pool.resumed, self._node))

    async def _resume(self, connection: Connection, cause: str) -> None:
        """Reconnect, trying until it succeeds: the pool decides how long that may take, and sends `Leave`."""
        for tries in count():
            try:
                async with self._dialer.returns:
                    resumed = await connection.resume()
            except ConnectFailed as error:
                if error.fatal:
                    raise
            else:
                if resumed:
                    return
                raise ConnectFailed(f"{cause}; its executor started anew")
            await _pause(tries)

    def _reports(self, reports: Sequence[Report]) -> None:
        self._tell(Received(self._node, reports))

    def _happened(self, handle: Callable[[float], None]) -> None:
        self._tell(Happened(handle))

    def _tell(self, message: PoolMessage) -> None:
        try:
            self._dialer.tell(message)
        except ActorStopped:
            pass  # the pool ends, and its nodes with it


async def _pause(tries: int) -> None:
    await anyio.sleep(min(TRY_AGAIN_S * 1.5 ** min(tries, 16), TRY_AGAIN_LIMIT_S))
