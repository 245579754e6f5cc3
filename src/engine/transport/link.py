"""A node as the pool sees it: the link turns orders of the pool into frames, and frames of the node into reports.

An order is a request of the pool's actor, such as "run this attempt" (one try to run a task). A report is a fact for
the actor, such as "this attempt has ended"; `node_reports` makes it. The connection carries the bytes. Internal tasks
are Outrider's own tasks, such as plugin hosts and file transfers: they take no task slot of the node, and the actor
does not know them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ...actors.interfaces import (
    AttemptId,
    Finished,
    JobId,
    Looked,
    NodeFacts,
    NodeId,
    Order,
    Peer,
    Report,
    StopAt,
    Task,
    TaskId,
    Verdict,
)
from ...providers.base import MachineId, PreemptionNotice
from ..objects.blob_transfers import BlobTransfers, Bulk
from ..objects.node_objects import NodeObjects, ObjectLost
from ..serialization.client_streams import AHEAD, Source
from ..serialization.payload import Blob
from ..serialization.task_payload import Payload
from ..wire import messages as wire
from ..wire import values
from ..wire.codec import SharedFrame
from ..wire.messages import RunFlag
from ..wire.session import ACK_EVERY, attempt_digest
from .diagnostics import NodeProfiles, NodeStacks
from .memory_checkpoints import MemoryCheckpoints, NodeReplicas
from .node_reports import Attempts, NodeReports
from .task_streams import TaskStreams

if TYPE_CHECKING:
    from ...actors.events import Event
    from ..api.calls import PendingCall
    from ..objects.content_keys import ContentKeys
    from ..objects.peer_transfers import PeerTransfers
    from ..serialization.client_streams import Values
    from ..wire.session import Session
    from .instance_views import InstanceViews
    from .task_output import PrintedLines, TaskLogs

# Plain integers: operators of an enumeration cost 1 us.
_LISTENS, _ANNOUNCE, _STREAM = int(RunFlag.LISTENS), int(RunFlag.ANNOUNCE), int(RunFlag.STREAM)
# first id of attempts of internal tasks; ids of the actor begin at 1
FIRST_BESIDE = 1 << 62


def _ignore(_: object) -> None: ...


class NodeLink:
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
        observe: Callable[[Event], object] = _ignore,
        sampled: Callable[[wire.Sampled], object] = _ignore,
        answered: Callable[[], object] = lambda: None,
    ) -> None:
        """Create the link of a node that is not connected.

        Args:
            node: The node.
            session: This end of the session with the node's executor, Outrider's process there.
            machine: The node's machine.
            views: Packs what the node is told about the pool.
            checkpoints: The checkpoints that the pool's nodes keep in memory.
            same_host: Whether the node is on this computer.
            bulk: Moves blobs over the current connection.
            reports: Receives the reports of the node.
            prints: Receives the output of tasks.
            logs: Receives the log records of tasks.
            keys: The keys of the pool's objects; None: new keys, for this node alone.
            peers: Sends objects from node to node; None: the client sends all objects.
            observe: Receives the events of profiles.
            sampled: Called with each sample of the machine's load.
            answered: Called for each answer to a ping.
        """
        self.node, self.session = node, session
        self._views, self._checkpoints = views, checkpoints
        self._pool_reports, self._answered = reports, answered
        self._named = False  # whether the node's last view (description of the pool) listed its peers
        self._write: Callable[[bytes], object] | None = None
        self._loop = asyncio.get_running_loop()
        self._scheduled = self._closed = False
        self.sent_bytes = self.received_bytes = 0  # bytes in frames and blobs, since the node was first reached
        self._unacknowledged = 0  # number of received messages that are not acknowledged: each write acknowledges all
        self.in_use = 0
        self._attempts = attempts = Attempts()
        self.orders = attempts.orders
        self._internal: InternalTasks | None = None  # None: the node has run no internal task yet
        self.executor_error = ""  # the internal error for which the executor ends itself; empty: no error
        # functions that the node has; a dict is used as a set, because an empty dict takes less memory
        self._defined: dict[bytes, None] = {}
        self._codes: dict[bytes, Blob] = {}  # blobs of functions that are too large for a frame
        # number of a ping -> the attempts that were on the node when the ping was sent
        self._pinged = dict[int, tuple[int, ...]]()
        send = self.send  # one bound method, shared by all users
        self.stacks = NodeStacks(attempts.orders, send)
        self._transfers = BlobTransfers(bulk, same_host=same_host, send=send)
        self.objects = NodeObjects(node, self._transfers, same_host=same_host, send=send, keys=keys, peers=peers)
        self.replicas = NodeReplicas(node, checkpoints, self._transfers, self.objects, send=send)
        checkpoints.joined(self.replicas)
        self._streams = TaskStreams(node, attempts.orders, self._transfers)
        self.profiles = NodeProfiles(node, attempts.orders, self._streams.fetches, send, observe)
        self._reports = self._new_reports(machine, prints, logs, same_host=same_host, sampled=sampled)

    def _new_reports(
        self,
        machine: MachineId,
        prints: PrintedLines,
        logs: TaskLogs,
        *,
        same_host: bool,
        sampled: Callable[[wire.Sampled], object],
    ) -> NodeReports:
        return NodeReports(
            self.node,
            machine,
            self._attempts,
            same_host=same_host,
            transfers=self._transfers,
            streams=self._streams,
            objects=self.objects,
            replicas=self.replicas,
            stacks=self.stacks,
            profiles=self.profiles,
            prints=prints,
            logs=logs,
            sampled=sampled,
            owner=self,
        )

    # --- attempts -------------------------------------------------------------------------------------------------

    def run(self, order: Order) -> None:
        payload = cast("Payload", order.task.content)
        idle = not self.orders
        self.orders[order.attempt] = order
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
        if at_once and (not payload.objects or self.objects.use_if_present(order.attempt, payload.objects)):
            self._send_run(run)
            if idle:
                # send at once, so that the node starts early; messages to a busy node are sent together at the end of
                # the turn
                self.flush()
            else:
                self._schedule_flush()
        else:
            sending = self._transfers.spawn(self._send_data_and_run(run, payload))
            self._attempts.held_back[order.attempt] = sending

    def run_beside(self, payload: Payload, ended: Callable[[Finished | None], None]) -> AttemptId:
        """Run an internal task, which takes no slot and which the pool's actor does not know.

        ``ended`` is called once, with the task's end, or with None if the node is lost.
        """
        if self._internal is None:
            self._internal = InternalTasks()
        order = self._internal.next_order(payload)
        if self._closed:
            self._loop.call_soon(ended, None)
        else:
            self._internal.callbacks[order.attempt] = ended
            self.run(order)
        return order.attempt

    def _send_run(self, run: wire.Run) -> None:
        self.session.send(run)
        if run.flags & _STREAM:
            self._streams.grant(run.attempt, AHEAD)

    def kill(self, attempt: AttemptId) -> None:
        held_back = self._attempts.held_back.pop(attempt, None)
        if held_back is None:
            self.send(wire.Kill(attempt))
        else:  # the attempt was never sent
            held_back.cancel()
            if attempt in self.orders:
                self._reports.end(attempt)
                ended = wire.Ended(attempt, wire.Cause.KILLED, 0, "before it was sent")
                self._loop.call_soon(self.report, [Finished(attempt, Verdict.KILLED, ended, 0.0)])

    async def kill_all(self, below: int, within_s: float) -> None:
        """End all attempts with ids below ``below`` on this node, and wait until they have ended."""
        attempts = (attempt for attempt in self.orders if attempt < below)
        await self._attempts.wait_until_over(attempts, lambda attempt: self.kill(AttemptId(attempt)), within_s)

    def recall(self, attempts: Sequence[AttemptId]) -> None:
        self._attempts.recall(attempts)
        self.send(wire.Recall(tuple(attempts)))

    def is_sent(self, attempt: AttemptId) -> bool:
        return attempt not in self._attempts.held_back

    def heard(self, attempt: AttemptId) -> float | None:
        return self.stacks.quiet_s(attempt)

    def look(self, question: int, quiet_s: float) -> None:
        self.stacks.ask(lambda seen: self._pool_reports([Looked(question, seen)]), quiet_s=quiet_s)

    # --- what the node is told about the pool ---------------------------------------------------------------------

    def view(self, members: Sequence[tuple[NodeId, NodeFacts]]) -> None:
        view = self._views.view(self.node, members)
        if view is not None:
            self._named = self._views.names_peers
            self.session.send_shared(SharedFrame(*view))
            self._schedule_flush()

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

    def compare_ports(self, taken: int) -> None:
        unsent = (order for order in map(self.orders.get, self._attempts.held_back) if order is not None)
        ports = (order.world.port_of(order.rank) for order in unsent if order.world is not None)
        self.send(wire.PortsTaken(taken, tuple(port for port in ports if port)))

    def drop(self, blob: Blob) -> None:
        self._transfers.drop(blob)

    def forget(self, function: bytes) -> None:
        """Forget a function that no attempt on this node uses; a later attempt would define it again."""
        code = self._codes.pop(function, None)
        if code is not None:
            self._defined.pop(function, None)
            self.drop(code)
            code.close()

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def ping(self, number: int | None = None) -> None:
        """Send a ping. ``number``: a unique number; None: the next number of the measurement of the clock's offset."""
        number = self.profiles.ping().sent_ms if number is None else number
        self._pinged[number] = tuple(self._attempts.running())
        self.session.send(wire.Ping(number, self.session.sent))
        self.flush()

    def ponged(self, pong: wire.Pong) -> None:
        """Handle the answer to a ping: it proves that the node receives data, and shows which attempts the node has."""
        self.profiles.ponged(pong)
        self._compare_attempts(pong)
        self._answered()

    def _compare_attempts(self, pong: wire.Pong) -> None:
        """Compare the attempts that the node has with those that it should have. If they differ, send it the list.

        Both sides compare a digest of the attempts that were sent before the ping and have not ended. Reports of ended
        attempts arrive before the pong.
        """
        sent = self._pinged.pop(pong.sent_ms, None)
        if sent is None or not pong.attempts:
            return
        for earlier in [number for number in self._pinged if number < pong.sent_ms]:
            del self._pinged[earlier]
        if attempt_digest(filter(self._attempts.is_running, sent)) != pong.attempts:
            self.send(wire.Compare(tuple(self._attempts.running())))

    # --- the connection -------------------------------------------------------------------------------------------

    def learn_facts(self, facts: NodeFacts, object_bytes: tuple[int | None, int | None]) -> None:
        """Set where other nodes reach this node, and how many bytes of objects it may hold: in memory, on disk."""
        self.objects.address = facts.address
        self.objects.limit(facts.memory_bytes, *object_bytes)

    def attach(self, write: Callable[[bytes], object]) -> None:
        """Handle a new connection on which the session has been resumed."""
        self._write = write
        self._transfers.attach()
        self._schedule_flush()

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
        self._attempts.held_back.clear()
        self.objects.close()
        self.replicas.close()
        self.stacks.close()
        self.profiles.close()
        for attempt in [*self.orders]:
            self._reports.end(attempt)
        if self._internal is not None:
            self._internal.close()
        for blob in self._codes.values():
            blob.close()

    def count_bytes(self, *, sent: int = 0, received: int = 0) -> None:
        """Count bytes of blobs that a connection has moved."""
        self.sent_bytes += sent
        self.received_bytes += received

    def send(self, message: wire.Message) -> None:
        self.session.send(message)
        self._schedule_flush()

    def _schedule_flush(self) -> None:
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
                report = self._reports.report_of(message)
                if report is not None:
                    reports.append(report)
        finally:
            self._unacknowledged += len(messages)
            if self._unacknowledged >= ACK_EVERY:
                self._schedule_flush()
            if reports:
                self.report(reports)

    def report(self, reports: Sequence[Report]) -> None:
        """Send the pool reports of this node; ends of internal tasks go to their callbacks instead."""
        if self._internal is not None and self._internal.callbacks:
            reports = self._internal.take_ends(reports)
        if reports:
            self._pool_reports(reports)

    def executor_failed(self, reason: str) -> None:
        self.executor_error = reason

    # --- large data -----------------------------------------------------------------------------------------------

    async def _send_data_and_run(self, run: wire.Run, payload: Payload) -> None:
        """Send an attempt that waits for its large data, once all this data is on the node."""
        try:
            run = await self._send_data(run, payload)
        except Exception as error:  # noqa: BLE001  for example, no memory: only this task fails
            del self._attempts.held_back[run.attempt]
            if isinstance(error, ObjectLost):
                unsent = self._reports.failed(run.attempt, "lost", error)
                self.report([unsent._replace(verdict=Verdict.UNSENT)])
            else:
                self.report([self._reports.failed(run.attempt, "send", error)])
        else:
            del self._attempts.held_back[run.attempt]
            order = self.orders[run.attempt]
            # pack the description of the broadcast again: meanwhile, the node may have got another list of peers
            if order.world is not None:
                run = run._replace(world=self._views.world(order.world, order.rank, named=self._named))
            if payload.needs is not None:
                self.send(wire.Hold(run.attempt, *payload.needs))
            self._send_run(run)
            self._schedule_flush()

    async def _send_data(self, run: wire.Run, payload: Payload) -> wire.Run:
        """Send the data that an attempt needs. Return the order to run it, which refers to the data on the node."""
        if payload.function not in self._defined:
            await self._define_by_blob(payload)
        if payload.shared:
            for shared in payload.shared:
                await self._transfers.ensure_placed(shared.blob)
            self.send(wire.Lend(run.attempt, tuple(shared.blob.name for shared in payload.shared)))
        if payload.objects:
            await self.objects.use(run.attempt, payload.objects)
        if self._checkpoints.may_offer(self.orders[run.attempt]):
            names, blobs = await self._checkpoints.offer(self.orders[run.attempt])
            self.send(wire.Refer(run.attempt, names, tuple(wire.Value(b"", None, blob) for blob in blobs)))
        if payload.blob is not None:
            run = run._replace(args=await self.objects.place_arguments(run.attempt, run.args, payload.blob))
        return run

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


# --- internal tasks ---------------------------------------------------------------------------------------------------


class InternalTasks:
    """The internal tasks of one node, and the callbacks for their ends."""

    __slots__ = ("_next", "callbacks")

    def __init__(self) -> None:
        self._next = FIRST_BESIDE
        self.callbacks: dict[int, Callable[[Finished | None], None]] = {}  # attempt -> called once with its end

    def next_order(self, payload: Payload) -> Order:
        """Return the order to run a new internal task."""
        attempt, self._next = AttemptId(self._next), self._next + 1
        task = Task(TaskId(0), JobId(0), payload.function, payload, retries=0, at_most_once=True)
        return Order(attempt, task, 1)

    def take_ends(self, reports: Sequence[Report]) -> list[Report]:
        """Call the callbacks of internal tasks that have ended. Return all other reports."""
        others: list[Report] = []
        for report in reports:
            ended = self.callbacks.pop(report.attempt, None) if isinstance(report, Finished) else None
            if ended is None:
                others.append(report)
            else:
                ended(cast("Finished", report))
        return others

    def close(self) -> None:
        """Handle the node's end: call all callbacks with None."""
        while self.callbacks:
            self.callbacks.popitem()[1](None)


def internal_payload(call: PendingCall, code: bytes, *, name: str, output: Values | None = None) -> Payload:
    """Return the payload of an internal task.

    ``code``: the task's function, packed by `serialization.program.build`. ``output``: receives the values that the
    task yields.
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
