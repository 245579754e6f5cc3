"""Turns the messages of one node into reports for the pool's actor: `NodeReports`, with a table of the node's attempts.

An attempt is one try to run a task. An order is the pool's request to run an attempt, and a report is a fact for the
actor, such as "this attempt has ended".
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeGuard, cast

from ...actors.interfaces import (
    AttemptId,
    Finished,
    JobId,
    Joined,
    NodeId,
    Order,
    PortsFree,
    Report,
    Returned,
    Started,
    StopChecks,
    Unfit,
    Verdict,
)
from ...providers.base import MachineId, PreemptionNotice
from ..node import limits
from ..objects.blob_transfers import BlobTransfers, is_lost
from ..objects.node_objects import NodeObjects, size_of
from ..serialization.payload import Received
from ..serialization.stored_objects import Whereabouts
from ..wire import messages as wire
from ..wire.codec import ProtocolError
from ..wire.log_records import ARTIFACT_BYTES

if TYPE_CHECKING:
    from ..serialization.task_payload import Payload
    from .diagnostics import NodeProfiles, NodeStacks
    from .memory_checkpoints import NodeReplicas
    from .task_output import PrintedLines, TaskLogs
    from .task_streams import TaskStreams

_FROM_OUTSIDE = {signal.SIGTERM, signal.SIGKILL}  # signals that the system or a user sends to end a machine's processes


class Attempts:
    """The attempts of one node. Each of them is in one of these states:

    =========  =======================  =====================================================  =======================
    state      entry in                 meaning                                                messages of the node
    =========  =======================  =====================================================  =======================
    held back  `orders`, `held_back`    not sent yet: its large data is still being sent       ignored
    running    `orders`                 sent: it runs on the node, or waits there for a slot   accepted
    fetching   `orders`, `fetching`     ended on the node: its values are still being fetched  ignored
    over       none                     its end is reported to the pool                        ignored
    =========  =======================  =====================================================  =======================

    A new attempt begins as held back or running. From there, it passes through the states in this order, and may skip
    some of them.
    """

    # All fields are dicts, some of them used as sets. An empty dict takes a third of the memory of an empty set, and
    # Python's garbage collector does not visit it. Most of these dicts stay empty, and a pool may have a thousand
    # nodes.
    __slots__ = ("_over", "awaited", "fetching", "held_back", "orders", "recalled")

    def __init__(self) -> None:
        self.orders = dict[int, Order]()
        self.held_back: dict[int, asyncio.Task[None]] = {}  # attempt -> the task that sends its data, and then itself
        self.fetching: dict[int, None] = {}
        # attempts that the pool has recalled: if they have not started, the node sends them back
        self.recalled: dict[int, None] = {}
        self.awaited: dict[int, None] = {}  # attempts whose end `wait_until_over` waits for
        self._over: asyncio.Future[None] | None = None  # result is set when `awaited` becomes empty

    def is_running(self, attempt: int) -> bool:
        return attempt in self.orders and attempt not in self.held_back and attempt not in self.fetching

    def running(self) -> Iterator[int]:
        return (attempt for attempt in self.orders if self.is_running(attempt))

    def running_order(self, attempt: int) -> Order | None:
        return self.orders[attempt] if self.is_running(attempt) else None

    def recall(self, attempts: Sequence[int]) -> None:
        # attempts that have already ended are not in `orders`
        self.recalled |= dict.fromkeys(self.orders.keys() & attempts)

    def returnable(self, attempts: Iterable[int]) -> list[AttemptId]:
        """Return those of the attempts that the node may send back: they are recalled and running."""
        return [AttemptId(a) for a in dict.fromkeys(attempts) if a in self.recalled and self.is_running(a)]

    async def wait_until_over(self, attempts: Iterable[int], end: Callable[[int], object], within_s: float) -> None:
        """Call ``end`` with each of the attempts, and wait until all of them are over, or for ``within_s`` seconds."""
        self.awaited = dict.fromkeys(attempts)
        if not self.awaited:
            return
        self._over = asyncio.get_running_loop().create_future()
        for attempt in tuple(self.awaited):
            end(attempt)
        await asyncio.wait([self._over], timeout=within_s)

    def end_wait(self, attempt: int) -> None:
        """Note the end of an attempt: `wait_until_over` may wait for it. Call this while `awaited` is not empty."""
        self.awaited.pop(attempt, None)
        if not self.awaited and self._over is not None:
            self._over.set_result(None)


class ReportsOwner(Protocol):
    """The interface of a node's link, which `NodeReports` calls: one reference takes less memory than callbacks."""

    def report(self, reports: Sequence[Report], /) -> None:
        """Send the pool the reports that were delayed until the values in them were fetched from the node."""

    def ponged(self, pong: wire.Pong, /) -> None:
        """Handle the answer to a ping."""

    def executor_failed(self, reason: str, /) -> None:
        """Note the internal error for which the executor ends itself."""


class NodeReports:
    """Turns the messages of one node into reports, and passes all other messages to the parts that await them."""

    def __init__(
        self,
        node: NodeId,
        machine: MachineId,
        attempts: Attempts,
        *,
        same_host: bool,
        transfers: BlobTransfers,
        streams: TaskStreams,
        objects: NodeObjects,
        replicas: NodeReplicas,
        stacks: NodeStacks,
        profiles: NodeProfiles,
        prints: PrintedLines,
        logs: TaskLogs,
        sampled: Callable[[wire.Sampled], object],
        owner: ReportsOwner,
    ) -> None:
        """Create the reports of a node.

        Args:
            node: The node, by whose number other messages name it.
            machine: The node's machine, to which its preemption notices apply.
            attempts: The node's attempts. The link adds them; this class removes them when they end.
            same_host: Whether the node is on this computer, so that values are mapped and not fetched.
            transfers: Fetches values that are too large for a frame.
            streams: Receives values of generators, and requests for items of arguments.
            objects: Receives results that stay on the node.
            replicas: Receives messages about checkpoints in the node's memory.
            stacks: Receives stack traces.
            profiles: Receives profiles.
            prints: Receives the output of tasks.
            logs: Receives the log records of tasks.
            sampled: Called with each sample of the machine's load.
            owner: The link of the node.
        """
        self._node, self._machine, self._attempts, self._same_host = node, machine, attempts, same_host
        self._transfers, self._streams, self._objects, self._replicas = transfers, streams, objects, replicas
        self._stacks, self._profiles, self._prints, self._logs = stacks, profiles, prints, logs
        self._sampled, self._owner = sampled, owner
        # local aliases, as each end of an attempt reads both
        self._items, self._credit = streams.fetches, streams.credit

    def report_of(self, message: wire.Message) -> Report | None:  # noqa: PLR0911, PLR0912 (a table)
        """Return the report for a message; None: there is none, or it follows later.

        Raises:
            ProtocolError: this node may not send the message.
        """
        match message:
            case wire.Done(attempt, value, duration_us) if (  # the most frequent case
                value.blob is None and not self._items and self._attempts.is_running(attempt)
            ):
                self.end(attempt)
                busy_s = duration_us / 1e6
                received = Received(value.data, value.sizes, busy_s)
                return Finished(AttemptId(attempt), Verdict.RETURNED, received, busy_s)
            case wire.Done() | wire.Failed() | wire.Ended():
                return self._finish(message)
            case wire.Pong():  # the answer to each heartbeat
                self._owner.ponged(message)
            case wire.Started(attempt):
                return Started(AttemptId(attempt)) if self._attempts.is_running(attempt) else None
            case wire.Returned(attempts):
                back = self._attempts.returnable(attempts)
                for attempt in back:
                    self.end(attempt)
                return Returned(tuple(back))
            case wire.PreemptionNotice(source, seconds, None):
                return PreemptionNotice(self._machine, source, seconds)
            case wire.PreemptionNotice():
                raise ProtocolError(f"node {self._node} speaks of another's machine")
            case wire.StopChecks(job, generation, number, checks):
                return StopChecks(JobId(job), generation, number, checks)
            case wire.Stacks():
                self._stacks.received(message)
            case wire.NotMoved(blob):
                self._objects.not_moved(blob)
            case wire.Serving() | wire.Arrived():
                self._objects.end.received(message)
            case wire.Ports(first, ports):
                return PortsFree(first, ports)
            case wire.Unfit(reason, has_run):
                self._owner.executor_failed(reason)
                return Unfit(reason, has_run)
            case wire.Yield(attempt, item):
                self._streams.yielded(attempt, item)
            case wire.Credit(attempt, stream, count):
                self._streams.wanted(attempt, stream, count)
            case wire.Sampled():
                self._sampled(message)
            case wire.Output(attempt=attempt):
                self._stacks.heard(attempt)
                self._prints.wrote(self._node, self._attempts.orders.get(attempt), message)
            case wire.Logged():
                self._stacks.heard(message.attempt)
                self._receive_log(message)
            case wire.Kept(attempt) | wire.Stored(attempt):
                self._replicas.received(message, self._attempts.running_order(attempt))
            case wire.Joined(attempt):
                return Joined(AttemptId(attempt)) if self._attempts.is_running(attempt) else None
            case wire.Replicated():
                self._replicas.received(message, None)
            case wire.Profiled():
                self._profiles.received(message)
        return None

    def _receive_log(self, message: wire.Logged) -> None:
        """Pass on what an attempt has logged, and fetch its artifact, a file that the attempt has logged.

        The attempt's end is reported after its artifacts have arrived.
        """
        order = self._attempts.running_order(message.attempt)
        if message.blob is None:
            if order is not None:
                self._logs.received(self._node, order, message)
        elif order is None or not self._logs.wanted:
            self._transfers.send(wire.Drop((message.blob,)))
        else:
            drop = partial(self._transfers.send, wire.Drop((message.blob,)))
            fetch = partial(self._streams.bring, order, wire.Value(b"", None, message.blob), ARTIFACT_BYTES)
            self._streams.fetch_before_end(order.attempt, self._logs.artifact(self._node, order, message, fetch, drop))

    # --- ends of attempts ---------------------------------------------------------------------------------------

    def _finish(self, message: wire.Done | wire.Failed | wire.Ended) -> Finished | None:  # noqa: PLR0911 (a table)
        """Return the report of an attempt's end.

        None: its value must be fetched first, or the node runs no such attempt.
        """
        attempt = message.attempt
        if not self._attempts.is_running(attempt):
            return None
        if isinstance(message, wire.Ended):
            if message.cause is wire.Cause.UNKNOWN:
                raise ProtocolError(f"node {self._node} does not have attempt {attempt} and has not answered it")
            self.end(attempt)
            return Finished(AttemptId(attempt), verdict(message), message, 0.0)
        value = message.value if isinstance(message, wire.Done) else message.error
        items = {*self._items.get(attempt, ())}
        if not items and self._stays_on_node(message):
            return self._finish_on_node(message)
        if items or (value is not None and value.blob is not None and not self._same_host):
            self._attempts.fetching[attempt] = None
            self._transfers.spawn(self._finish_when_fetched(message, value, items))
            return None
        try:
            received = None if value is None else self._transfers.arrived(value, message.duration_us)
        except ConnectionError:  # the loss of the node is reported next
            return None
        except Exception as error:  # noqa: BLE001  for example, no memory: only this task fails
            return self.failed(attempt, "fetch", error)
        return self._finish_with(message, received)

    async def _finish_when_fetched(
        self, message: wire.Done | wire.Failed, value: wire.Value | None, items: set[asyncio.Task[Received]]
    ) -> None:
        """Report the end of an attempt when its value, and all items of a generator, have arrived.

        If the node is lost before, only the loss is reported.
        """
        try:
            if items:
                await asyncio.wait(items)
                if any(map(is_lost, items)):
                    return
            if self._stays_on_node(message):
                finished = self._finish_on_node(message)
            else:
                received = None if value is None else await self._transfers.bring(value, message.duration_us)
                finished = self._finish_with(message, received)
        except ConnectionError:
            return
        except Exception as error:  # noqa: BLE001  the value is lost: report that to the caller
            finished = self.failed(message.attempt, "fetch", error)
        self._attempts.fetching.pop(message.attempt, None)
        self._owner.report([finished])

    def _stays_on_node(self, message: wire.Done | wire.Failed) -> TypeGuard[wire.Done]:
        """Return whether a result stays on the node."""
        if not isinstance(message, wire.Done) or (name := message.value.blob or wire.LOST).startswith(wire.LOST):
            return False
        if cast("Payload", self._attempts.orders[message.attempt].task.content).keep is None:
            return False
        if not message.value.sizes or self._objects.memory.has(name):
            raise ProtocolError(f"node {self._node} keeps a result, and does not say how large and where it is")
        return True

    def _finish_on_node(self, message: wire.Done) -> Finished:
        """Return the final report of an attempt whose result stays on the node."""
        attempt, sizes, name = message.attempt, message.value.sizes, message.value.blob
        payload = cast("Payload", self._attempts.orders[attempt].task.content)
        assert payload.keep is not None, "it stays"
        assert sizes is not None, "it stays"
        assert name is not None, "it stays"
        at = Whereabouts(f"kept-{attempt}", sizes, size_of(sizes), producer=f"{payload.name} on node {self._node}")
        stored = payload.keep.keep(self._objects.keep(at, name))
        self.end(attempt)
        return Finished(AttemptId(attempt), Verdict.RETURNED, stored, message.duration_us / 1e6)

    def _finish_with(self, message: wire.Done | wire.Failed, received: Received | None) -> Finished:
        """Return the final report of an attempt whose value has arrived.

        A report of success holds only the received value, to save memory: ten thousand reports may wait.
        """
        self.end(message.attempt)
        busy_s = message.duration_us / 1e6
        if isinstance(message, wire.Done) and received is not None:
            return Finished(AttemptId(message.attempt), Verdict.RETURNED, received, busy_s)
        return Finished(AttemptId(message.attempt), Verdict.RAISED, (message, received), busy_s)

    def failed(self, attempt: int, phase: str, error: Exception) -> Finished:
        """Return the final report of an attempt that failed in this process: ``phase`` is "send", "fetch" or "lost"."""
        why = limits.story("this program") if phase == "send" and limits.is_shortage(error) else str(error)
        return self._finish_with(wire.Failed(attempt, phase, type(error).__name__, why, "", None, 0), None)

    def end(self, attempt: int) -> None:
        """Remove all state of an attempt that has ended, with its streams."""
        attempts = self._attempts
        order = attempts.orders.pop(attempt, None)
        attempts.recalled.pop(attempt, None)
        if attempts.awaited:
            attempts.end_wait(attempt)
        self._credit.pop(attempt, None)
        self._stacks.signs.pop(attempt, None)
        if self._items:
            self._items.pop(attempt, None)
        if self._objects.users:
            self._objects.end_attempt(attempt)
        if order is not None and self._prints.begun:
            self._prints.ended(self._node, order)
        if order is not None and self._streams.inputs:
            self._streams.over(order)


def verdict(ended: wire.Ended) -> Verdict:
    """Return the verdict on an attempt that ended before its function returned or raised."""
    match ended.cause:
        case wire.Cause.KILLED:
            return Verdict.KILLED
        case wire.Cause.TIMEOUT:
            return Verdict.TIMED_OUT
        case wire.Cause.SIGNAL if ended.code in _FROM_OUTSIDE:
            return Verdict.TERMINATED
        # shells and signal handlers exit with 128 + the signal's number
        case wire.Cause.EXIT if ended.code - 128 in _FROM_OUTSIDE:
            return Verdict.TERMINATED
        case _:
            return Verdict.DIED
