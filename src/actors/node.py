"""The actor of a node: connects to the machine, reports losses of the connection, and reconnects until it gets `Leave`.

The actor has a task only while it connects or ends. While it is connected it has none: the connection calls the actor
when it is lost. The actor has no mailbox either: messages of the pool take effect at once, as handling them never
waits. A task and a mailbox were half of the objects per node that Python's garbage collector had to traverse.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, assert_never

import anyio

from ..lazy_dataclass import dataclass
from ..providers.base import Machine
from .interfaces import Connect, ConnectFailed, Connection, Lost, NodeId, Report
from .kernel import ActorFailed, ActorStopped
from .late_nodes import NO_ADDRESS, NO_ANSWER, PREPARED, Preparing
from .messages import Boots, Happened, Leave, NodeMessage, PoolMessage, Queued, Reachable, Received

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from .stragglers import Stragglers

TRY_AGAIN_S = 0.1  # seconds to wait after the first refused try to connect; each further pause is 1.5 times as long
TRY_AGAIN_LIMIT_S = 2.0
# fraction of a host's `patience_s` for which a host that is up may refuse connections: its sshd starts within seconds
REFUSED_PART = 0.3
STEADY_S = 10.0  # seconds; after two connections in a row that were lost sooner, reconnecting begins with a pause
CLOSE_S = 9.0
# number of tries to connect at the same time, over all nodes; 1,000 connections are opened in 2.2 s this way
TRIES_AT_ONCE = 50


class NodeReports(Protocol):
    """The methods that the pool's actor calls when a node's actor reports; `NodeLives` has them."""

    stragglers: Stragglers

    def waits(self, node: NodeId, now: float) -> None: ...

    def reached(self, node: NodeId, connection: Connection, now: float) -> None: ...

    def connection_failed(self, node: NodeId, error: ConnectFailed, now: float) -> None: ...

    def dropped(self, node: NodeId, lost: Lost, now: float) -> None: ...

    def resumed(self, node: NodeId, now: float) -> None: ...

    def closed(self, node: NodeId, now: float) -> None: ...


@dataclass(frozen=True, slots=True)
class Dialer:
    """The things that all actors of a pool's nodes use to connect to their nodes."""

    connect: Connect
    boot_timeout_s: float
    tries: anyio.Semaphore  # limits first connections; a try holds a place until its machine has answered
    # limits reconnections separately, as they must not wait for first connections: a node without a connection is lost
    # within seconds
    returns: anyio.Semaphore
    preparing: Callable[[NodeId], Preparing | None]
    tell: Callable[[PoolMessage], None]
    tasks: TaskGroup  # runs the actors' tasks, which exist while an actor connects or ends


class NodeActor:
    """The supervisor of the connection to one node. An error that concerns this node is reported, and affects no other
    node.
    """

    def __init__(self, node: NodeId, machine: Machine, dialer: Dialer, pool: NodeReports) -> None:
        self._node = node
        self._machine = machine
        self._pool = pool
        self._dialer = dialer
        self._has_answered = self._answers = self._has_turn = False
        self._connection: Connection | None = None  # None until the node is connected
        # when the node was last connected, and the number of short connections (`STEADY_S`) in a row
        self._since, self._short = 0.0, 0
        # cancels the actor's task; None: the node is connected, and the actor has no task
        self._work: anyio.CancelScope | None = None
        # `_addressed` and `_boot` exist only until the node is connected: each takes a kilobyte, and a pool may have a
        # thousand nodes
        self._addressed: anyio.Event | None = anyio.Event()
        self._boot: anyio.CancelScope | None = anyio.CancelScope(deadline=self._boots_until())
        if machine.address is not None:
            self._addressed.set()

    def begin(self) -> None:
        """Connect to the machine. After that, the node stays connected until the actor gets `Leave`, or reconnecting
        fails for good.

        When the connection is closed, call `NodeLives.closed`.
        """
        self._begin(self._reach_first)

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
                if self._work is None:
                    self._begin(_nothing_more)
                else:
                    self._work.cancel()
            case _:
                assert_never(message)

    def _begin(self, work: Callable[[], Awaitable[bool]]) -> None:
        self._work = scope = anyio.CancelScope()
        self._dialer.tasks.start_soon(self._carry_out, work, scope, name=f"node {self._node}")

    async def _carry_out(self, work: Callable[[], Awaitable[bool]], scope: anyio.CancelScope) -> None:
        """Run ``work``, which connects or reconnects; if it succeeds, end this task and let the connection call when it
        is lost.

        If ``work`` fails, or the actor got `Leave`, close the connection: the node has ended.

        Raises:
            ActorFailed: the node's connection could not be closed.
        """
        connected = False
        try:
            with scope:
                connected = await work() and not scope.cancel_called
        except ConnectFailed as error:
            self._happened(partial(self._pool.connection_failed, self._node, error))
        except Exception as error:  # noqa: BLE001 (this node's defect must not be the pool's)
            defect = ConnectFailed(f"{type(error).__name__}: {error}", systematic=True)
            defect.__cause__ = error
            self._happened(partial(self._pool.connection_failed, self._node, defect))
        finally:
            if not connected:
                await self._close()
        if connected:
            self._rest()
        else:
            self._happened(partial(self._pool.closed, self._node))

    def _rest(self) -> None:
        assert self._connection is not None, "it is connected"
        self._since, self._work = anyio.current_time(), None
        self._connection.watch(self._dropped)

    def _dropped(self, lost: Lost) -> None:
        self._happened(partial(self._lost, lost))

    def _lost(self, lost: Lost, now: float) -> None:
        """Reconnect after a loss, unless the actor has got `Leave` or gets it now, as the pool's reaction to the
        loss.
        """
        if self._work is None:
            self._short = self._short + 1 if now - self._since < STEADY_S else 0
            self._begin(partial(self._return, lost.cause))
            self._pool.dropped(self._node, lost, now)

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            try:
                await connection.close()
            except Exception as error:
                raise ActorFailed(f"node {self._node}") from error

    def _boots_until(self) -> float:
        return anyio.current_time() + self._dialer.boot_timeout_s

    async def _reach_first(self) -> bool:
        self._connection = await self._reach()
        self._boot = self._addressed = None
        self._happened(partial(self._pool.reached, self._node, self._connection))
        return True

    async def _reach(self) -> Connection:
        """Connect to the machine, and retry until a try succeeds or the machine's time to boot is over.

        Raises:
            ConnectFailed: the machine was never connected; the message has the reason of the last try.
        """
        last: ConnectFailed | None = None
        boot, addressed = self._boot, self._addressed
        assert boot is not None, "it is reached once"
        assert addressed is not None, "it is reached once"
        with boot:
            await addressed.wait()
            patience_s = self._machine.patience_s or math.inf
            down_at = anyio.current_time() + patience_s
            refused_at = math.inf
            for tries in count():
                self._answers = False
                try:
                    async with self._turn():
                        return await self._dialer.connect(self._node, self._machine, self._reports, self._answered)
                except ConnectFailed as error:
                    if self._answers:  # the machine answered during this try, so it was up a moment ago
                        down_at = anyio.current_time() + patience_s
                    refused_at = min(refused_at, anyio.current_time()) if error.refused else math.inf
                    if error.futile or anyio.current_time() >= min(down_at, refused_at + REFUSED_PART * patience_s):
                        raise
                    last = error
                await _pause(tries)
        raise self._late(last, addressed=addressed.is_set()) from last and last.__cause__

    def _late(self, last: ConnectFailed | None, *, addressed: bool) -> ConnectFailed:
        """Return the error for a node whose time to boot is over. ``last``: the error of the last failed try, if
        any.
        """
        story, late, step = "its address is still unknown", NO_ADDRESS, ""
        if self._answers:  # in the last try, the machine answered
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
        """Hold one of the limited places for tries to connect. Report a wait for a place: it must not count as the
        machine's silence.
        """
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
        # preparing the node may take long: free the place for other nodes, as leases are renewed only after connecting
        self._end_turn()
        self._answers = True
        if not self._has_answered:
            self._has_answered = True
            self._happened(partial(self._pool.stragglers.answered, self._node))

    async def _return(self, cause: str) -> bool:
        """Reconnect after the connection was lost with ``cause``.

        Raises:
            ConnectFailed: reconnecting to the node will never work.
        """
        if self._short > 1:  # if connections end again and again, reconnecting must not keep this program busy
            await _pause(self._short - 2)
        assert self._connection is not None, "it was connected"
        await self._resume(self._connection, cause)
        self._happened(partial(self._pool.resumed, self._node))
        return True

    async def _resume(self, connection: Connection, cause: str) -> None:
        """Reconnect, and retry until a try succeeds: the pool decides how long that may take, and ends it by
        `Leave`.
        """
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
            pass  # the pool is ending, and ends its nodes itself


async def _nothing_more() -> bool:
    """Do nothing: the work of a connected node that gets `Leave`, so that only its connection is closed."""
    return False


async def _pause(tries: int) -> None:
    await anyio.sleep(min(TRY_AGAIN_S * 1.5 ** min(tries, 16), TRY_AGAIN_LIMIT_S))
