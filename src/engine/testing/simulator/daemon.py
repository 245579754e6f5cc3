"""The executor (the node's daemon) of a simulated machine: the real scheduler and session, with simulated workers.

The module follows `node.server` and `node.worker_pool` on virtual time. It uses the real
`node.worker_scheduler.WorkerScheduler` for decisions and the real `wire.session.Session` to number messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, assert_never

from ....actors.interfaces import AttemptId
from ...node.effects import Answer, Deliver, EndWorker, Fork, GiveUp, Interrupt, Relay, Steal
from ...node.output import Backlog
from ...node.port_book import PortBook
from ...node.worker_scheduler import WorkerScheduler
from ...wire import codec
from ...wire.messages import (
    PROTOCOL_VERSION,
    Bye,
    Cause,
    Compare,
    Define,
    Done,
    Drop,
    Ended,
    Failed,
    Hello,
    Kill,
    Message,
    Ping,
    Pong,
    Ports,
    PortsTaken,
    PreemptionNotice,
    Recall,
    Refer,
    Refused,
    Returned,
    Run,
    RunFlag,
    ShowStacks,
    Stacks,
    Started,
    Unfit,
    Value,
    View,
    Welcome,
)
from ...wire.session import FOR_NODES, Session, attempt_digest
from .kept_values import Arguments, Result
from .network import IN, OUT, Circuit
from .processes import Process

if TYPE_CHECKING:
    import asyncio

    from .host import Host

FORGED = b"forged"  # the result in forged reports about attempts of other nodes
PORTS_KEPT = 32
PORTS_FEW = 16
NO_PORT = 0
_LISTENS = int(RunFlag.LISTENS)


class Daemon:
    """The simulated executor: its workers, and the session with one client.

    Successive connections continue the session.
    """

    def __init__(self, host: Host) -> None:
        self.host, self.sim = host, host.sim
        self.core = WorkerScheduler()
        self.workers: dict[int, Process] = {}
        self.blobs: dict[str, bytes] = {}
        # attempt -> (name of a reference among its arguments -> the kept result that it refers to)
        self._lent: dict[int, dict[str, Value]] = {}
        self.ports = PortBook(host.free_port, lambda port: None, most=PORTS_KEPT, few=PORTS_FEW)  # noqa: ARG005
        self.ports.fill()
        self._wants_ports = False
        self.let_go: dict[int, int] = {}  # port -> the first attempt for whose rank the executor has released the port
        self.view = b""
        # attempt of a broadcast's rank -> the view (the list of ranks and nodes) sent for its world
        self.views: dict[int, bytes] = {}
        self.noticed: float | None = None
        self._session = Session(FOR_NODES)
        self._session_name: str | None = None
        self._control: Circuit | None = None
        self._backlog = Backlog()
        self._functions: dict[bytes, str | None] = {}
        self._lease_s = 0.0
        self._lease: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ended = False

    # --- the control channel --------------------------------------------------------------------------------------

    def accept(self, circuit: Circuit) -> None:
        """Accept a connection from the client. The first frame that arrives must be a `Hello`."""
        circuit.on_data[OUT] = lambda data: self.host.do(lambda: self._received(circuit, data))
        circuit.on_end[OUT] = lambda: self.host.do(lambda: self._lost(circuit))

    def _received(self, circuit: Circuit, data: bytes) -> None:
        if self._ended:
            return
        if circuit is not self._control:
            self._greeted(circuit, data)
            return
        for message, body in self._session.feed_framed(data):
            self._handle(message, body)
        self.act()

    def _greeted(self, circuit: Circuit, data: bytes) -> None:
        splitter = codec.Splitter()
        body = splitter.first(data)
        hello = None if body is None else codec.decode(body)
        if not isinstance(hello, Hello):
            return  # late data of an earlier circuit
        if self._session_name not in (None, hello.session):
            circuit.send(IN, codec.encode(Refused("another session is in charge of this executor", {})))
            return
        resumed = self._session_name is not None
        if self._control is not None:
            self._control.close(by=OUT)
            self._session.lost()
        self._session.resume(hello.received if resumed else 0)
        self._control = circuit
        self._session_name, self._lease_s = hello.session, hello.lease_s
        for entry in self._backlog.take():
            self._send(entry)
        if not resumed:
            self.core.open(hello.setup["slots"], threads=False, now=self.sim.loop.now)
            self._carry_out()
        facts = {
            "hostname": f"host{self.host.number}",
            "addresses": [self.host.address],
            "accelerators": [],
            "cpus": self.host.cpus,
        }
        welcome = Welcome(
            PROTOCOL_VERSION, resumed, self._session.received, facts, tuple(sorted(self.blobs)), (*self.ports.offered,)
        )
        circuit.send(IN, codec.encode(welcome) + self._session.flush())
        self.check_hearing()
        if splitter.tail:
            self._received(circuit, splitter.tail)

    def _lost(self, circuit: Circuit) -> None:
        if circuit is self._control:
            self._control = None
            self._session.lost()
        self.check_hearing()

    def _handle(self, message: Message, body: bytes) -> None:  # noqa: PLR0912 (a table)
        match message:
            case Run():
                if message.world is not None:
                    self.views[message.attempt] = self.view
                    if message.flags & _LISTENS:
                        self.ports.named(message.attempt, self._port_of(message))
                self.core.submitted(message, body)
            case Define(function, _, blob):
                self._functions[function] = blob
            case Kill(attempt):
                self.core.killed(attempt, self.sim.loop.now)
            case Recall(attempts):
                self.core.recalled(attempts)
            case Drop(blobs):
                for name in blobs:
                    self.blobs.pop(name, None)
            case Refer(attempt, names, values):
                self._lent[attempt] = dict(zip(names, values, strict=True))
            case View(view):
                self.view = view
            case ShowStacks(number, quiet_us):
                self._show_stacks(number, quiet_us)
            case PortsTaken(taken, unsent):
                self.ports.compare(taken, unsent)
                self._wants_ports = True
            case Ping(sent_ms):
                self.act()
                self._session.send(Pong(sent_ms, 0, self._session.sent, attempt_digest(self.core.attempts())))
                self._flush()
            case Compare(attempts):
                self.compare_attempts(attempts)
                self.core.compared(attempts, self.sim.loop.now)
            case Bye():
                self.end()
            case _:
                pass

    def compare_attempts(self, attempts: tuple[int, ...]) -> None:
        here = sorted(self.core.attempts())
        self.sim.broken("SIM-41", f"the client counts attempts {attempts} on host {self.host.number}, which has {here}")

    def _show_stacks(self, number: int, quiet_us: int) -> None:
        """Send the stacks of all running attempts. A simulated task is silent since its start."""
        for attempt, _, began in self.core.heads():
            silent_us = max(0, int((self.sim.loop.now - began) * 1e6))
            self._send(Stacks(number, attempt, "stack" if silent_us >= quiet_us else "", silent_us))
        self._send(Stacks(number, None, "", 0))
        self._flush()

    # --- messages to the client -------------------------------------------------------------------------------------

    def notice(self, source: str, seconds: float | None) -> None:
        """Send a preemption notice of the machine's cloud on to the client."""
        self.noticed = seconds
        self._send(PreemptionNotice(source, seconds))
        self._flush()

    def forge(self, attempts: Sequence[int]) -> None:
        """Send the client forged reports that attempts ended, although this node does not run them."""
        for attempt in attempts:
            for message in (
                Started(attempt),
                Returned((attempt,)),
                Done(attempt, Value(FORGED), 0),
                Ended(attempt, Cause.KILLED, 0, ""),
            ):
                self._send(message)
        self._flush()

    def _send(self, entry: Message | bytes) -> None:
        if self._control is None:
            self._backlog.add(entry)
        elif isinstance(entry, bytes):
            self._session.send_body(entry)
        else:
            self._session.send(entry)

    def _flush(self) -> None:
        if self._control is not None and (data := self._session.flush()):
            self._control.send(IN, data)

    # --- workers ----------------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Carry out the scheduler's decisions, and send the messages to the client."""
        self._carry_out()
        self._flush()

    def _carry_out(self) -> None:  # noqa: PLR0912 (a table)
        core, loop = self.core, self.sim.loop
        while not self._ended and (effects := core.decide(loop.now)):
            for effect in effects:
                match effect:
                    case Deliver(worker, run, body):
                        self._deliver(self.workers[worker], run, body)
                    case Relay(body):
                        self._send(body)
                    case Answer(message):
                        self._over(*(message.attempts if isinstance(message, Returned) else (message.attempt,)))
                        self._send(message)
                    case Steal(worker):
                        core.stolen(worker, self.workers[worker].take_back(), loop.now)
                    case Fork(worker, _, fresh, _):
                        self.workers[worker] = Process(self, worker, fresh=fresh)
                    case EndWorker(worker):
                        self._end_worker(self.workers[worker])
                    case GiveUp(reason):
                        self.sim.trace("unfit", host=self.host.number, reason=reason)
                        self.sim.referee.executors.gave_up(self, reason)
                        self._send(Unfit(reason, core.has_run))
                        kill_s = self.sim.dice.within(self.sim.scenario.cloud.kill_s, "kill", self.host.number)
                        self.host.later(kill_s, self._leave)
                    case Interrupt():
                        raise AssertionError("no threads are played")
                    case _:
                        assert_never(effect)
        if not self._ended and (self._wants_ports or self.ports.is_short):
            self._wants_ports = False
            self.ports.fill()
            self._send(Ports(self.ports.taken, tuple(self.ports.offered)))
        due = core.due()
        if due is not None and (self._timer is None or due < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(max(due, loop.now), self.host.do, self._tick)

    def born(self, process: Process) -> None:
        if process.id in self.workers and not self._ended:
            self.core.ready(process.id, self.sim.loop.now)
            self.act()

    def finished(self, process: Process, message: Done | Failed) -> None:
        self.core.finished(process.id, message.attempt, codec.body(message), self.sim.loop.now)
        self.act()

    def gone(self, process: Process, cause: Cause, code: int, detail: str) -> None:
        if self.workers.pop(process.id, None) is not None and not self._ended:
            process.stop()
            if process.born:
                self.sim.referee.executors.gone(process)
            self.core.stolen(process.id, process.take_back(), self.sim.loop.now)
            self.core.gone(process.id, cause, code, detail, self.sim.loop.now)
            self.act()

    def _deliver(self, process: Process, run: Run, body: bytes) -> None:
        self.sim.referee.delivered(self, run, known=self._functions)
        if run.world is not None and run.flags & _LISTENS:
            self.let_go.setdefault(self._port_of(run), run.attempt)
            self.ports.close_for(run.attempt)
        process.deliver(run, body)

    def _port_of(self, run: Run) -> int:
        order = self.sim.orders[AttemptId(run.attempt)]
        return NO_PORT if order.world is None else order.world.port_of(order.rank)

    def _over(self, *attempts: int) -> None:
        for attempt in attempts:
            self.ports.close_for(attempt)

    def arguments_of(self, run: Run) -> tuple[int, list[str]]:
        """Return the number of the submitted job, and the attempt's arguments with references replaced by values."""
        lent: dict[str, str] = {}
        for name, value in self._lent.get(run.attempt, {}).items():
            data = self.blobs.get(value.blob or "", b"")
            lent[name] = Result.of(data).value if data else "lost"
            if value.sizes != (len(data),):
                self.sim.referee.kept.cut_wrongly(run.attempt, name)
        args = run.args.data if run.args.blob is None else self.blobs[run.args.blob]
        arguments = Arguments.of(args)
        return arguments.job, arguments.resolved(lent)

    def _end_worker(self, process: Process) -> None:
        kill_s = self.sim.dice.within(self.sim.scenario.cloud.kill_s, "kill", self.host.number)
        self.host.later(kill_s, lambda: self.gone(process, Cause.SIGNAL, 9, "its process was killed by SIGKILL"))

    def _leave(self) -> None:
        if not self._ended:
            self.end()

    def _tick(self) -> None:
        self._timer = None
        if not self._ended:
            self.core.ticked(self.sim.loop.now)
            self.act()

    # --- end of the executor ----------------------------------------------------------------------------------------

    def check_hearing(self) -> None:
        """Start the lease timer once heartbeats cannot arrive; stop the timer once they can.

        At its end the executor ends.
        """
        control = self._control
        hears = control is not None and not control.closed and not self.host.line.blocked(OUT)
        if hears and self._lease is not None:
            self._lease.cancel()
            self._lease = None
        elif not hears and self._lease is None and self._session_name is not None and not self._ended:
            self._lease = self.host.later(self._lease_s, self._lease_over)

    def _lease_over(self) -> None:
        if not self._ended:
            self.sim.trace("lease_over", host=self.host.number)
            self.end()
            self.sim.cloud.lose(self.host.machine, "its lease ran out")

    def end(self) -> None:
        """End the executor: kill every worker, and close the connection."""
        self.vanish()
        if self.host.daemon is self:
            self.host.daemon = None
        if self._control is not None:
            self._control.close(by=OUT)
        self.host.changed()

    def vanish(self) -> None:
        """Stop the executor and its workers at once, without closing the connection."""
        self._ended = True
        for timer in (self._lease, self._timer):
            if timer is not None:
                timer.cancel()
        for process in list(self.workers.values()):
            process.stop()
        self.workers.clear()
