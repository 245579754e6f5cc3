"""The client's end of a simulated connection to a node: real link and session, on simulated circuits instead of SSH.

The module follows `engine.transport.connection`, with the same timeouts on virtual time, except that it sends
heartbeats only after a fault: without faults they would change nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ...actors.interfaces import (
    AttemptId,
    ConnectFailed,
    Finished,
    Lost,
    NodeFacts,
    NodeId,
    Order,
    Report,
    Returned,
    Started,
    Verdict,
)
from ...engine.objects.blob_transfers import TransferProgress
from ...engine.serialization.payload import Blob, Part, Received
from ...engine.serialization.task_payload import Payload
from ...engine.transport.link import NodeLink
from ...engine.transport.task_output import PrintedLines, TaskLogs
from ...engine.wire import codec
from ...engine.wire import messages as wire
from ...engine.wire.codec import ProtocolError
from ...engine.wire.session import Session
from ...providers.base import Machine, PreemptionNotice
from .machines import FORGED
from .network import IN, OUT, Circuit

if TYPE_CHECKING:
    from .machines import Daemon, Host, Sim

# the next four constants (seconds) repeat constants of `engine.transport`; a test checks that they are equal
HEARTBEAT_S = 2.0
SILENCE_S = 6.0
GREETING_S = 10.0
FAREWELL_S = 4.0
TRIES_S = (1.0, 3.0, 7.0)  # seconds after the start of a connect at which TCP sends its SYN again
ANSWERED_S, UNANSWERED_S = 0.1, 2.5  # seconds that a reachability probe takes with an answer, and without
BULK_S = 0.05  # seconds that the transfer of a blob (a large value) takes, besides the network delay


class Connector:
    """Connects a simulated pool to its nodes: an implementation of `actors.interfaces.Connect`."""

    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.links: dict[NodeId, PlayedLink] = {}
        self._opening: dict[NodeId, PlayedConnection] = {}
        self._sessions = 0
        # name of a blob -> the nodes that got attempts with this blob as input
        self._sent: dict[str, dict[NodeId, None]] = {}

    async def __call__(
        self,
        node: NodeId,
        machine: Machine,
        reports: Callable[[Sequence[Report]], None],
        answered: Callable[[], None],
    ) -> PlayedConnection:
        connection = self._opening.get(node)
        if connection is None:
            connection = self._opening[node] = PlayedConnection(self._sim, node, machine, reports)
        await connection.open(answered)
        del self._opening[node]
        self.links[node] = connection.link
        return connection

    async def probe(self, machines: Sequence[Machine]) -> bool:
        """Return whether any of the machines answers the client. Implements `actors.interfaces.ReachabilityProbe`."""
        sim = self._sim
        hosts = [sim.hosts[machine.id] for machine in machines]
        others = sim.scenario.probe == "others" and not sim.cut
        if others or any(host.answers for host in hosts):
            await asyncio.sleep(ANSWERED_S)
            return True
        await asyncio.sleep(UNANSWERED_S)
        return False

    def forge(self, host: Host, attempts: Sequence[AttemptId]) -> None:
        """Forge reports, as from ``host``, that attempts of other nodes ended.

        The link does not check these reports.
        """
        seat = self._sim.referee.nodes.seat_of(host.machine)
        if seat is not None and (link := self.links.get(seat.node)) is not None:
            link.forge(attempts)

    def new_session(self) -> str:
        self._sessions += 1
        return f"session {self._sessions}"

    def sends(self, node: NodeId, blob: Blob) -> None:
        """Remember that ``node`` got an attempt that needs this blob."""
        self._sent.setdefault(blob.name, {})[node] = None

    def drop(self, blob: Blob) -> None:
        for node in self._sent.pop(blob.name, ()):
            if (link := self.links.get(node)) is not None:
                link.drop(blob)


class PlayedLink(NodeLink):
    """The real `NodeLink`, which also reports each task it sends to the referee, the checker of the rules."""

    sim: Sim
    host: Host

    def run(self, order: Order) -> None:
        # copies are kept without the field `near`, because it refers to live objects
        self.sim.orders[order.attempt] = order._replace(task=order.task._replace(near=None))
        self.sim.referee.ordered(self.node, self.host, order)
        if (blob := cast("Payload", order.task.content).blob) is not None:
            self.sim.connector.sends(self.node, blob)
        super().run(order)

    def forge(self, attempts: Sequence[AttemptId]) -> None:
        for attempt in attempts:
            returned = Finished(attempt, Verdict.RETURNED, Received(FORGED, None), 0.0)
            killed = Finished(attempt, Verdict.KILLED, wire.Ended(attempt, wire.Cause.KILLED, 0, ""), 0.0)
            self.report([Started(attempt), Returned((attempt,)), returned, killed])


class PlayedConnection:
    """A simulated `actors.interfaces.Connection` to a node, which also transfers blobs for the link (its `Bulk`)."""

    beats = False  # if True, nodes with running attempts are pinged even without faults

    def __init__(self, sim: Sim, node: NodeId, machine: Machine, reports: Callable[[Sequence[Report]], None]) -> None:
        self._sim, self._node, self._machine = sim, node, machine
        self._host = sim.hosts[machine.id]
        self._reports = reports
        self._session = Session()
        self._session_id = sim.connector.new_session()
        self.link = PlayedLink(
            node,
            self._session,
            machine=machine.id,
            views=sim.views,
            checkpoints=sim.checkpoints,
            same_host=False,
            bulk=self,
            reports=self._tell,
            prints=PrintedLines(lambda _: None),
            logs=TaskLogs(lambda: None),
        )
        self.link.sim, self.link.host = sim, self._host
        self._phase_s = HEARTBEAT_S * sim.dice.of("heartbeat", int(node)).random()
        self._circuit: Circuit | None = None
        self._attached = False
        self._lost: asyncio.Future[Lost] = sim.loop.create_future()
        self._stirring = asyncio.Event()
        self._received_at = self._pinged_at = 0.0
        self._pings, self._beat_timer = 0, False
        self._defect = ""  # an error in the node's messages; `resume` then fails for good
        self._silence: asyncio.TimerHandle | None = None
        self._facts: NodeFacts | None = None

    @property
    def facts(self) -> NodeFacts:
        assert self._facts is not None, "a connection is handed out only after the node's welcome"
        return self._facts

    async def open(self, answered: Callable[[], None]) -> None:
        welcome = await self._greet(answered)
        facts = welcome.facts
        hostname, address, millicpus = facts["hostname"], facts["addresses"][0], 1000 * facts["cpus"]
        self._facts = NodeFacts(hostname, address, tuple(welcome.ports), millicpus=millicpus)

    async def resume(self) -> bool:
        if self._defect:
            raise ConnectFailed(self._defect, fatal=True)
        return (await self._greet()).resumed

    def watch(self, lost: Callable[[Lost], object]) -> None:
        self._lost.add_done_callback(lambda gone: lost(gone.result()))

    async def close(self) -> None:
        if self._circuit is not None and not self._lost.done():
            self.link.send(wire.Bye())
            self.link.flush()
            await asyncio.wait([self._lost], timeout=FAREWELL_S)
        self.link.close()
        self._sim.connector.links.pop(self._node, None)
        self._drop("closed")

    # --- the control channel --------------------------------------------------------------------------------------

    async def _greet(self, answered: Callable[[], None] = lambda: None) -> wire.Welcome:
        self._drop("reconnecting")
        self._lost = self._sim.loop.create_future()
        self._host.watch = self._stir
        try:
            async with asyncio.timeout(GREETING_S):
                circuit, welcome, rest = await self._dial(answered)
        except BaseException as error:
            self._drop("not reached")
            if isinstance(error, TimeoutError):
                raise ConnectFailed(f"machine {self._machine.id} did not answer within {GREETING_S:g} s") from None
            raise
        if self._facts is not None and not welcome.resumed:
            self._drop("its executor started anew")
            return welcome
        circuit.on_data[IN] = self._received
        circuit.on_end[IN] = lambda: self._drop("connection closed") if self._circuit is circuit else None
        self._session.resume(welcome.received)
        self._received_at = self._pinged_at = self._sim.loop.now
        self._attached = self._host.connected = True
        self.link.attach(self._write)
        if rest:
            self._received(rest)
        if circuit.closed:
            self._sim.loop.call_soon(circuit.on_end[IN])
        self._stir()
        return welcome

    async def _dial(self, answered: Callable[[], None]) -> tuple[Circuit, wire.Welcome, bytes]:
        """Connect to the host and its executor.

        Raises:
            ConnectFailed: the host did not answer, or refused.
        """
        host, loop = self._host, self._sim.loop
        began = loop.now
        connect_s = self._sim.dice.within(self._sim.scenario.cloud.connect_s, "connect", host.number)
        while True:
            while not host.answers:  # wait while the host sends no reply at all, not even a refusal
                await self._stirring.wait()
            waited_s = loop.now - began
            if waited_s:  # wait until TCP sends its next SYN
                await asyncio.sleep(next((at for at in TRIES_S if at >= waited_s), GREETING_S) - waited_s)
            await asyncio.sleep(connect_s)
            if host.answers:
                break
        if host.refuses is not None or host.daemon is None:
            raise ConnectFailed(f"machine {self._machine.id} refuses", fatal=host.refuses == "fatal")
        self._sim.referee.answered(self._machine.id)
        answered()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._circuit = circuit = Circuit(host.line)
        circuit.on_data[IN] = lambda data: None if answer.done() else answer.set_result(data)
        circuit.on_end[IN] = lambda: None if answer.done() else answer.set_exception(ConnectFailed("closed again"))
        host.daemon.accept(circuit)
        setup = {"slots": self._sim.scenario.slots, "kind": "process", "env": {}}
        hello = wire.Hello(
            wire.PROTOCOL_VERSION,
            self._session_id,
            self._session.received,
            "3.11",
            "3",
            self._sim.scenario.lease_s,
            setup,
        )
        circuit.send(OUT, codec.encode(hello))
        splitter = codec.Splitter()
        body = splitter.first(await answer)
        assert body is not None, "a greeting is one write, and arrives as one"
        welcome = codec.decode(body)
        if not isinstance(welcome, wire.Welcome):
            raise ConnectFailed(f"machine {self._machine.id} refused this client", fatal=True)
        return circuit, welcome, splitter.tail

    def _write(self, data: bytes) -> None:
        if self._circuit is not None:
            self._circuit.send(OUT, data)
            # the ping's answer acknowledges messages, which can then be deleted
            if self._sim.loop.now - self._pinged_at >= HEARTBEAT_S:
                self._pinged_at = self._sim.loop.now
                self._ping()
            if self.beats and not self._beat_timer:
                self._beat_timer = True
                self._sim.loop.call_later(HEARTBEAT_S, self._beat)

    def _ping(self) -> None:
        self._pings += 1
        self.link.ping(self._pings)

    def _beat(self) -> None:
        self._beat_timer = False
        if self._circuit is not None and self.link.orders:
            self._ping()

    def _received(self, data: bytes) -> None:
        self._received_at = self._sim.loop.now
        try:
            self.link.received(data)
        except ProtocolError as error:
            self._defect = str(error)
            self._drop(self._defect)

    def _tell(self, reports: Sequence[Report]) -> None:
        self._sim.record(self._reports, reports)
        for report in reports:
            if isinstance(report, PreemptionNotice):
                self._sim.referee.notice_sent(report)
        self._reports(reports)

    # --- loss of the connection -------------------------------------------------------------------------------------

    def _stir(self) -> None:
        """Handle a change of the machine or the network: wake all waiters, and watch a broken circuit for silence."""
        self._stirring.set()
        self._stirring = asyncio.Event()
        if self._attached and self._silence is None and not self._alive:
            self._received_at = max(self._received_at, self._sim.loop.now - self._phase_s)
            self._arm()

    @property
    def _alive(self) -> bool:
        return self._circuit is not None and not self._circuit.closed and self._host.healthy

    def _arm(self) -> None:
        self._silence = self._sim.loop.call_at(self._received_at + SILENCE_S, self._check_silence)

    def _check_silence(self) -> None:
        self._silence = None
        if self._alive:
            return
        if self._received_at + SILENCE_S > self._sim.loop.now:
            self._arm()
        else:
            self._drop(f"silent for {SILENCE_S:g} s", silent=True)

    def _drop(self, cause: str, *, silent: bool = False) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None
        if self._attached:
            self._attached = self._host.connected = False
            self.link.detach()
        circuit, self._circuit = self._circuit, None
        if circuit is not None:
            circuit.close(by=IN)
            self._stir()
        if not self._lost.done():
            self._lost.set_result(Lost(cause, silent))

    # --- bulk channels ----------------------------------------------------------------------------------------------

    async def put(self, blob: Blob, progress: TransferProgress, at: int) -> None:  # noqa: ARG002
        daemon = await self._transfer()
        daemon.blobs[blob.name] = b"".join(blob.parts)

    async def get(self, name: str, progress: TransferProgress) -> Part:  # noqa: ARG002
        daemon = await self._transfer()
        if name not in daemon.blobs:
            attempt = name.removeprefix("kept-by-")  # the blob holds an attempt's kept result
            if attempt != name and self._sim.referee.kept.is_free(self._sim.orders[int(attempt)].task.job):
                raise LookupError(name)
            self._sim.broken("SIM-2", f"node {self._node} has dropped {name} before it was fetched")
        return daemon.blobs[name]

    async def _transfer(self) -> Daemon:
        """Sleep as long as a blob's transfer takes, and return the executor at the other end.

        Raises:
            ConnectionResetError: No connection exists, or it was lost during the transfer.
        """
        circuit = self._circuit
        if circuit is None:
            raise ConnectionResetError("the connection was lost")
        await asyncio.sleep(BULK_S + 2 * self._host.line.delay_s())
        while not self._alive and self._circuit is circuit:
            await self._stirring.wait()
        daemon = self._host.daemon
        if self._circuit is not circuit or daemon is None:
            raise ConnectionResetError("the connection was lost")
        return daemon
