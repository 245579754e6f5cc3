"""A node as the pool sees it: the link turns orders of the pool into frames, and frames of the node into reports.

An order is a request of the pool's actor, such as "run this attempt". A report is a fact for the actor, such as "this
attempt has ended". The connection carries the bytes. Internal tasks are Outrider's own tasks, such as plugin hosts and
file transfers: they take no task slot of the node, and the actor does not know them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeGuard, cast

from ...actors.interfaces import (
    AttemptId,
    Finished,
    JobId,
    Joined,
    Looked,
    NodeFacts,
    NodeId,
    Order,
    Peer,
    PortsFree,
    Report,
    Returned,
    Started,
    StopAt,
    StopChecks,
    Task,
    TaskId,
    Unfit,
    Verdict,
)
from ...providers.base import MachineId, PreemptionNotice
from ..node import limits
from ..objects.blob_transfers import BlobTransfers, Bulk, is_lost
from ..objects.node_objects import NodeObjects, ObjectLost, size_of
from ..serialization.client_streams import AHEAD, Source
from ..serialization.payload import Blob, Received
from ..serialization.stored_objects import Whereabouts
from ..serialization.task_payload import Payload
from ..wire import messages as parts
from ..wire import messages as wire
from ..wire import values
from ..wire.codec import ProtocolError, SharedFrame
from ..wire.log_records import ARTIFACT_BYTES
from ..wire.messages import RunFlag
from ..wire.session import ACK_EVERY, attempt_digest
from .diagnostics import NodeProfiles, NodeStacks
from .memory_checkpoints import MemoryCheckpoints, NodeReplicas
from .node_reports import verdict
from .task_streams import TaskStreams

if TYPE_CHECKING:
    from ..api.calls import PendingCall
    from ..objects.content_keys import ContentKeys
    from ..objects.peer_transfers import PeerTransfers
    from ..serialization.client_streams import Values
    from ..wire.session import Session
    from .instance_views import InstanceViews
    from .task_output import PrintedLines, TaskLogs


def internal_payload(call: PendingCall, code: bytes, *, name: str, output: Values | None = None) -> Payload:
    """Return the payload of an internal task.

    ``code``: the `serialization.program` of the task's function. ``output``: receives the values that the task yields.
    """
    args, kwargs, inputs = call.detach()
    flags = RunFlag.ALONE | RunFlag.FRESH | RunFlag.BESIDE | (RunFlag.STREAM if output is not None else 0)
    return Payload(
        name=name,
        function=hashlib.blake2b(code, digest_size=16).digest(),
        code=code,
        args=values.inline(values.dump((args, kwargs), ("args", "kwargs"))),
        flags=int(flags),
        output=output,
        inputs=tuple(Source(each) for each in inputs),
    )


class PlainOrders:
    """The base class of `NodeLink` with the requests that become exactly one message each."""

    node: NodeId
    stacks: NodeStacks
    profiles: NodeProfiles
    _views: InstanceViews
    orders: dict[int, Order]
    _held_back: dict[int, asyncio.Task[None]]
    _fetching: dict[int, None]
    # number of a ping -> the attempts that were on the node when the ping was sent
    _pinged: dict[int, tuple[int, ...]]
    _named = False  # whether the node's last view listed its peers
    _pool_reports: Callable[[Sequence[Report]], None]

    session: Session

    def send(self, message: wire.Message) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        raise NotImplementedError

    def _schedule(self) -> None:
        raise NotImplementedError

    def _runs(self, attempt: int) -> bool:
        raise NotImplementedError

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        view = self._views.view(self.node, members)
        if view is not None:
            self._named = self._views.names_peers
            self.session.send_shared(SharedFrame(*view))
            self._schedule()

    def place(self, rank: int, facts: NodeFacts, *, nodes: int, accelerators: int) -> None:
        self._named = False
        self.send(wire.View(self._views.place(rank, facts, nodes=nodes, accelerators=accelerators)))

    def notify(self, notice: PreemptionNotice, peer: Peer | None = None) -> None:
        from ..node.notices.watcher import NAME_CHARS, bounded  # imported here: few pools get a notice

        seconds = None if notice.seconds is None else bounded(notice.seconds)
        about = None if peer is None else wire.Peer(*peer)
        self.send(wire.PreemptionNotice(notice.source[:NAME_CHARS], seconds, about))

    def stop_at(self, stop: StopAt) -> None:
        self.send(wire.StopAt(*stop))

    def is_sent(self, attempt: AttemptId) -> bool:
        return attempt not in self._held_back

    def compare_ports(self, taken: int) -> None:
        unsent = (order for order in map(self.orders.get, self._held_back) if order is not None)
        ports = (order.world.port_of(order.rank) for order in unsent if order.world is not None)
        self.send(wire.PortsTaken(taken, tuple(port for port in ports if port)))

    def ping(self, number: int | None = None) -> None:
        """Send a ping. ``number``: a unique number; None: the next number of the measurement of the clock's offset."""
        number = self.profiles.ping().sent_ms if number is None else number
        self._pinged[number] = tuple(self._sent_attempts())
        self.session.send(wire.Ping(number, self.session.sent))
        self.flush()

    def ponged(self, pong: wire.Pong) -> None:
        """Compare the attempts that the node has with those that it should have. If they differ, send it the list.

        Both sides compare a digest of the attempts that were sent before the ping and have not ended. Reports of ended
        attempts arrive before the pong.
        """
        self.profiles.ponged(pong)
        sent = self._pinged.pop(pong.sent_ms, None)
        if sent is None or not pong.attempts:
            return
        for earlier in [number for number in self._pinged if number < pong.sent_ms]:
            del self._pinged[earlier]
        if attempt_digest(each for each in sent if self._runs(each)) != pong.attempts:
            self.send(wire.Compare(tuple(self._sent_attempts())))

    def _sent_attempts(self) -> Iterator[int]:
        return (attempt for attempt in self.orders if self._runs(attempt))

    def heard(self, attempt: AttemptId) -> float | None:
        return self.stacks.quiet_s(attempt)

    def look(self, question: int, quiet_s: float) -> None:
        self.stacks.ask(lambda seen: self._pool_reports([Looked(question, seen)]), quiet_s=quiet_s)


# Plain integers: operators of an enumeration cost 1 us.
_LISTENS, _ANNOUNCE, _STREAM = int(wire.RunFlag.LISTENS), int(wire.RunFlag.ANNOUNCE), int(wire.RunFlag.STREAM)
# first id of Outrider's own attempts, which the pool actor does not know; ids of the actor begin at 1
FIRST_BESIDE = 1 << 62


class NodeLink(PlainOrders):
    """The `actors.interfaces.Link` of one node. It survives reconnects: unacknowledged messages are sent again."""

    def __init__(
        self,
        node: NodeId,
        session: Session,
        *,
        machine: MachineId,
        views: InstanceViews,
        checkpoints: MemoryCheckpoints,
        same_host: bool,
        bulk: Bulk,
        reports: Callable[[Sequence[Report]], None],
        prints: PrintedLines,
        logs: TaskLogs,
        keys: ContentKeys | None = None,
        peers: PeerTransfers | None = None,
    ) -> None:
        self.node, self.session, self._machine = node, session, machine
        self._views, self._same_host, self._prints, self._logs = views, same_host, prints, logs
        self._reports = self._pool_reports = reports
        self._write: Callable[[bytes], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduled = self._closed = False
        self.sent_bytes = self.received_bytes = 0  # bytes in frames and blobs, since the node was first reached
        self._unacknowledged = 0  # number of received messages that are not acknowledged: each write acknowledges all
        self.sampled: Callable[[wire.Sampled], object] = lambda _: None
        self.answered: Callable[[], object] = lambda: None  # called for each answer to a ping
        self.unfit = ""  # the internal error for which the executor ends itself, as reported by it; empty: no error
        # These dicts are used as sets. An empty dict takes a third of the memory of an empty set, and Python's garbage
        # collector does not visit it. Most of these dicts stay empty, and a pool may have a thousand nodes.
        self._defined: dict[bytes, None] = {}
        self.orders = self._orders = dict[int, Order]()
        send = self.send  # one bound method, shared by all users
        self.stacks = NodeStacks(self._orders, send)
        # attempts that the pool has recalled: if they have not started, the node sends them back
        self._recalled: dict[int, None] = {}
        self._awaited: dict[int, None] = {}  # attempts whose end `kill_all` waits for
        # callbacks of attempts that the pool's actor does not know
        self._beside: dict[int, Callable[[Finished | None], None]] = {}
        self._next_beside = FIRST_BESIDE
        self._pinged = dict[int, tuple[int, ...]]()
        self.in_use = 0
        # attempts that are not sent yet, as their blob is still being sent
        self._held_back: dict[int, asyncio.Task[None]] = {}
        self._codes: dict[bytes, Blob] = {}  # blobs of functions that are too large for a frame
        self._fetching: dict[int, None] = {}  # attempts that have ended, but whose values are still being fetched
        self._transfers = BlobTransfers(bulk, same_host=same_host, send=send)
        self.objects = NodeObjects(node, self._transfers, same_host=same_host, send=send, keys=keys, peers=peers)
        self._checkpoints = checkpoints
        self.replicas = NodeReplicas(node, checkpoints, self._transfers, self.objects, send=send)
        checkpoints.joined(self.replicas)
        self._streams = TaskStreams(node, self._orders, self._transfers)
        # local aliases, as each end of an attempt reads both
        self._items, self._credit = self._streams.fetches, self._streams.credit
        self.profiles = NodeProfiles(node, self._orders, self._items, send)

    # --- calls by the pool --------------------------------------------------------------------------------------

    def run(self, order: Order) -> None:
        payload = cast("Payload", order.task.content)
        idle = not self._orders
        self._orders[order.attempt] = order
        known = payload.function in self._defined
        if not known and len(payload.code) <= values.INLINE_BYTES:
            known = True
            self._defined[payload.function] = None
            self.session.send(wire.Define(payload.function, payload.code))
        flags = payload.flags | _ANNOUNCE if order.announce else payload.flags
        world = None
        if order.world is not None:
            world = self._views.world(order.world, order.rank, named=self._named)
            flags |= _LISTENS if order.rank == 0 or order.world.ports else 0
        run = wire.Run(
            order.attempt, payload.function, payload.args, order.task.job, order.number, payload.timeout_s, flags, world
        )
        at_once = known and payload.blob is None and not payload.shared and payload.needs is None
        at_once = at_once and not (order.world is not None and self._checkpoints.may_offer(order))
        if at_once and (not payload.objects or self.objects.refer_at_once(order.attempt, payload.objects)):
            self._send_run(run)
            if idle:
                # send at once, so that the node starts early; messages to a busy node are sent together at the end of
                # the turn
                self.flush()
            else:
                self._schedule()
        else:
            self._held_back[order.attempt] = self._transfers.spawn(self._run_with_blobs(run, payload))

    def run_beside(self, payload: Payload, ended: Callable[[Finished | None], None]) -> AttemptId:
        """Run an internal task, which takes no slot and which the pool's actor does not know.

        ``ended`` is called once, with the task's end, or with None if the node is lost.
        """
        attempt = AttemptId(self._next_beside)
        self._next_beside += 1
        if self._closed:
            self._loop.call_soon(ended, None)
            return attempt
        self._beside[attempt] = ended
        self._reports = self._separate
        task = Task(TaskId(0), JobId(0), payload.function, payload, retries=0, at_most_once=True)
        self.run(Order(attempt, task, 1))
        return attempt

    def _separate(self, reports: Sequence[Report]) -> None:
        """Pass the ends of internal tasks to their callbacks, and all other reports to the pool."""
        others: list[Report] = []
        for report in reports:
            ended = self._beside.pop(report.attempt, None) if isinstance(report, Finished) else None
            if ended is None:
                others.append(report)
            else:
                ended(cast("Finished", report))
        if not self._beside:
            self._reports = self._pool_reports
        if others:
            self._pool_reports(others)

    def _send_run(self, run: wire.Run) -> None:
        self.session.send(run)
        if run.flags & _STREAM:
            self._streams.grant(run.attempt, AHEAD)

    def kill(self, attempt: AttemptId) -> None:
        held_back = self._held_back.pop(attempt, None)
        if held_back is None:
            self.send(wire.Kill(attempt))
        else:  # the attempt was never sent
            held_back.cancel()
            if attempt in self._orders:
                self._over(attempt)
                ended = wire.Ended(attempt, wire.Cause.KILLED, 0, "before it was sent")
                self._loop.call_soon(self._reports, [Finished(attempt, Verdict.KILLED, ended, 0.0)])

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        # attempts that have already ended are not in `_orders`
        self._recalled |= dict.fromkeys(self._orders.keys() & attempts)
        self.send(wire.Recall(tuple(attempts)))

    async def kill_all(self, below: int, within_s: float) -> None:
        """End all attempts with ids below ``below`` on this node, and wait until they have ended."""
        self._awaited = dict.fromkeys(attempt for attempt in self._orders if attempt < below)
        if not self._awaited:
            return
        self._none_left = self._loop.create_future()
        for attempt in tuple(self._awaited):
            self.kill(AttemptId(attempt))
        await asyncio.wait([self._none_left], timeout=within_s)

    def drop(self, blob: Blob) -> None:
        self._transfers.drop(blob)

    def forget(self, function: bytes) -> None:
        """Forget a function that no attempt on this node uses; a later attempt would define it again."""
        code = self._codes.pop(function, None)
        if code is not None:
            self._defined.pop(function, None)
            self.drop(code)
            code.close()

    # --- calls by the connection --------------------------------------------------------------------------------

    def attach(self, write: Callable[[bytes], object]) -> None:
        """Handle a new connection on which the session has been resumed."""
        self._write = write
        self._transfers.attach()
        self._schedule()

    def detach(self) -> None:
        """Handle the loss of the connection: frames wait in the session, and transfers start over on the next
        connection.
        """
        self._write = None
        self._pinged.clear()
        self.session.lost()
        self._transfers.detach()

    def close(self) -> None:
        self._write, self._closed = None, True
        self._transfers.close()
        # the tasks are cancelled already, but would keep their objects alive as long as this link exists
        self._held_back.clear()
        self.objects.close()
        self.replicas.close()
        self.stacks.close()
        self.profiles.close()
        for attempt in [*self._orders]:
            self._over(attempt)
        while self._beside:
            self._beside.popitem()[1](None)
        for blob in self._codes.values():
            blob.close()

    def send(self, message: wire.Message) -> None:
        self.session.send(message)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        if self._write is not None:
            self._unacknowledged = 0
            data = self.session.flush()
            if data:
                self.sent_bytes += len(data)
                try:
                    self._write(data)
                except ConnectionError:  # the channel was closed a moment ago: the next channel sends the data again
                    pass

    def received(self, data: bytes) -> None:
        """Handle one read of the control channel, whose messages form one batch of reports.

        Raises:
            ProtocolError: the bytes violate the protocol, or contain a message that this node may not send.
        """
        self.received_bytes += len(data)
        reports: list[Report] = []
        messages = self.session.feed_framed(data)
        try:
            for message, _ in messages:
                report = self._report(message)
                if report is not None:
                    reports.append(report)
        finally:
            self._unacknowledged += len(messages)
            if self._unacknowledged >= ACK_EVERY:
                self._schedule()
            if reports:
                self._reports(reports)

    def _runs(self, attempt: int) -> bool:
        """Return whether the attempt runs on the node. Messages about all other attempts are ignored."""
        return attempt in self._orders and attempt not in self._held_back and attempt not in self._fetching

    def _report(self, message: wire.Message) -> Report | None:  # noqa: PLR0911, PLR0912 (a table)
        match message:
            case wire.Done(attempt, value, duration_us) if (  # the most frequent case
                value.blob is None and not self._items and self._runs(attempt)
            ):
                self._over(attempt)
                busy_s = duration_us / 1e6
                received = Received(value.data, value.sizes, busy_s)
                return Finished(AttemptId(attempt), Verdict.RETURNED, received, busy_s)
            case wire.Done() | wire.Failed() | wire.Ended():
                return self._ended(message)
            case wire.Pong():  # the answer to each heartbeat
                self.ponged(message)
                self.answered()
            case wire.Started(attempt):
                return Started(AttemptId(attempt)) if self._runs(attempt) else None
            case wire.Returned(attempts):
                back = [AttemptId(a) for a in dict.fromkeys(attempts) if a in self._recalled and self._runs(a)]
                for attempt in back:
                    self._over(attempt)
                return Returned(tuple(back))
            case wire.PreemptionNotice(source, seconds, None):
                return PreemptionNotice(self._machine, source, seconds)
            case wire.PreemptionNotice():
                raise ProtocolError(f"node {self.node} speaks of another's machine")
            case wire.StopChecks(job, generation, number, checks):
                return StopChecks(JobId(job), generation, number, checks)
            case wire.Stacks():
                self.stacks.received(message)
            case wire.NotMoved(blob):
                self.objects.not_moved(blob)
            case wire.Serving() | wire.Arrived():
                self.objects.end.received(message)
            case wire.Ports(first, ports):
                return PortsFree(first, ports)
            case wire.Unfit(reason, has_run):
                self.unfit = reason
                return Unfit(reason, has_run)
            case wire.Yield(attempt, item):
                self._streams.yielded(attempt, item)
            case wire.Credit(attempt, stream, count):
                self._streams.wanted(attempt, stream, count)
            case wire.Sampled():
                self.sampled(message)
            case wire.Output(attempt=attempt):
                self.stacks.heard(attempt)
                self._prints.wrote(self.node, self._orders.get(attempt), message)
            case wire.Logged():
                self.stacks.heard(message.attempt)
                self._logged(message)
            case parts.Kept(attempt) | parts.Stored(attempt):
                self.replicas.received(message, self._orders.get(attempt) if self._runs(attempt) else None)
            case parts.Joined(attempt):
                return Joined(AttemptId(attempt)) if self._runs(attempt) else None
            case parts.Replicated():
                self.replicas.received(message, None)
            case wire.Profiled():
                self.profiles.received(message)
        return None

    def _logged(self, message: wire.Logged) -> None:
        """Handle a message about what an attempt has logged.

        The attempt's end is reported after its artifacts have arrived.
        """
        order = self._orders.get(message.attempt) if self._runs(message.attempt) else None
        if message.blob is None:
            if order is not None:
                self._logs.received(self.node, order, message)
        elif order is None or not self._logs.wanted:
            self.send(wire.Drop((message.blob,)))
        else:
            drop = partial(self.send, wire.Drop((message.blob,)))
            fetch = partial(self._streams.bring, order, wire.Value(b"", None, message.blob), ARTIFACT_BYTES)
            self._streams.fetch_before_end(order.attempt, self._logs.artifact(self.node, order, message, fetch, drop))

    def _ended(self, message: wire.Done | wire.Failed | wire.Ended) -> Finished | None:  # noqa: PLR0911 (a table)
        """Return the report of an attempt's end.

        None: its value must be fetched first, or the node runs no such attempt.
        """
        attempt = message.attempt
        if not self._runs(attempt):
            return None
        if isinstance(message, wire.Ended):
            if message.cause is wire.Cause.UNKNOWN:
                raise ProtocolError(f"node {self.node} does not have attempt {attempt} and has not answered it")
            self._over(attempt)
            return Finished(AttemptId(attempt), verdict(message), message, 0.0)
        value = message.value if isinstance(message, wire.Done) else message.error
        items = {*self._items.get(attempt, ())}
        if not items and self._stays(message):
            return self._kept(message)
        if items or (value is not None and value.blob is not None and not self._same_host):
            self._fetching[attempt] = None
            self._transfers.spawn(self._end_later(message, value, items))
            return None
        try:
            received = None if value is None else self._transfers.arrived(value, message.duration_us)
        except ConnectionError:  # the loss of the node is reported next
            return None
        except Exception as error:  # noqa: BLE001  for example, no memory: only this task fails
            return self._failed(attempt, "fetch", error)
        return self._finished(message, received)

    def _stays(self, message: wire.Done | wire.Failed) -> TypeGuard[wire.Done]:
        """Return whether a result stays on the node."""
        if not isinstance(message, wire.Done) or (name := message.value.blob or wire.LOST).startswith(wire.LOST):
            return False
        if cast("Payload", self._orders[message.attempt].task.content).keep is None:
            return False
        if not message.value.sizes or self.objects.memory.has(name):
            raise ProtocolError(f"node {self.node} keeps a result, and does not say how large and where it is")
        return True

    def _kept(self, message: wire.Done) -> Finished:
        """Return the final report of an attempt whose result stays on the node."""
        attempt, sizes, name = message.attempt, message.value.sizes, message.value.blob
        payload = cast("Payload", self._orders[attempt].task.content)
        assert payload.keep is not None, "it stays"
        assert sizes is not None, "it stays"
        assert name is not None, "it stays"
        at = Whereabouts(f"kept-{attempt}", sizes, size_of(sizes), producer=f"{payload.name} on node {self.node}")
        stored = payload.keep.keep(self.objects.kept(at, name))
        self._over(attempt)
        return Finished(AttemptId(attempt), Verdict.RETURNED, stored, message.duration_us / 1e6)

    def _finished(self, message: wire.Done | wire.Failed, received: Received | None) -> Finished:
        """Return the final report of an attempt.

        A report of success holds only the received value, to save memory: ten thousand reports may wait.
        """
        self._over(message.attempt)
        busy_s = message.duration_us / 1e6
        if isinstance(message, wire.Done) and received is not None:
            return Finished(AttemptId(message.attempt), Verdict.RETURNED, received, busy_s)
        return Finished(AttemptId(message.attempt), Verdict.RAISED, (message, received), busy_s)

    def _failed(self, attempt: int, phase: str, error: Exception) -> Finished:
        why = limits.story("this program") if phase == "send" and limits.is_shortage(error) else str(error)
        return self._finished(wire.Failed(attempt, phase, type(error).__name__, why, "", None, 0), None)

    # --- large data ---------------------------------------------------------------------------------------------

    async def _run_with_blobs(self, run: wire.Run, payload: Payload) -> None:
        try:
            if payload.function not in self._defined:
                await self._define_by_blob(payload)
            if payload.shared:
                for shared in payload.shared:
                    await self._transfers.ensure_placed(shared.blob)
                self.send(wire.Lend(run.attempt, tuple(shared.blob.name for shared in payload.shared)))
            if payload.objects:
                await self.objects.refer(run.attempt, payload.objects)
            if self._checkpoints.may_offer(self._orders[run.attempt]):
                names, blobs = await self._checkpoints.offer(self._orders[run.attempt])
                self.send(wire.Refer(run.attempt, names, tuple(wire.Value(b"", None, blob) for blob in blobs)))
            if payload.blob is not None:
                run = run._replace(args=await self.objects.place_arguments(run.attempt, run.args, payload.blob))
        except Exception as error:  # noqa: BLE001  for example, no memory: only this task fails
            del self._held_back[run.attempt]
            if isinstance(error, ObjectLost):
                unsent = self._failed(run.attempt, "lost", error)
                self._reports([unsent._replace(verdict=Verdict.UNSENT)])
            else:
                self._reports([self._failed(run.attempt, "send", error)])
        else:
            del self._held_back[run.attempt]
            order = self._orders[run.attempt]
            # pack the world again: the node may have received a view with another list of peers since
            if order.world is not None:
                run = run._replace(world=self._views.world(order.world, order.rank, named=self._named))
            if payload.needs is not None:
                self.send(wire.Hold(run.attempt, *payload.needs))
            self._send_run(run)
            self._schedule()

    async def _define_by_blob(self, payload: Payload) -> None:
        """Define a function that is too large for a frame.

        The node keeps the function's blob for later workers, until `forget`.
        """
        blob = self._codes.setdefault(
            payload.function, Blob(f"code-{payload.function.hex()}", [payload.code], len(payload.code))
        )
        await self._transfers.ensure_placed(blob)
        if payload.function not in self._defined:
            self._defined[payload.function] = None
            self.send(wire.Define(payload.function, b"", blob.name))

    async def _end_later(
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
            if self._stays(message):
                finished = self._kept(message)
            else:
                received = None if value is None else await self._transfers.bring(value, message.duration_us)
                finished = self._finished(message, received)
        except ConnectionError:
            return
        except Exception as error:  # noqa: BLE001  the value is lost: report that to the caller
            finished = self._failed(message.attempt, "fetch", error)
        self._fetching.pop(message.attempt, None)
        self._reports([finished])

    def _over(self, attempt: int) -> None:
        """Remove all state of an attempt that has ended, with its streams."""
        order = self._orders.pop(attempt, None)
        self._recalled.pop(attempt, None)
        self._credit.pop(attempt, None)
        self.stacks.signs.pop(attempt, None)
        if self._items:
            self._items.pop(attempt, None)
        if self.objects.users:
            self.objects.over(attempt)
        if self._awaited:
            self._awaited.pop(attempt, None)
            if not self._awaited:
                self._none_left.set_result(None)
        if order is not None and self._prints.begun:
            self._prints.ended(self.node, order)
        if order is not None and self._streams.inputs:
            self._streams.over(order)
