"""The machines of a simulation: a host with its power and its line to the client, its executor, and the workers.

`Daemon` follows `node.server` and `node.worker_pool` on virtual time. It uses the real
`node.worker_scheduler.WorkerScheduler` for decisions and the real `wire.session.Session` to number messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from ...actors.interfaces import AttemptId
from ...engine.node.freeports import PortBook
from ...engine.node.output import Backlog
from ...engine.node.worker_scheduler import (
    Answer,
    Deliver,
    EndWorker,
    Fork,
    GiveUp,
    Interrupt,
    Relay,
    Steal,
    WorkerScheduler,
)
from ...engine.wire import codec
from ...engine.wire.messages import (
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
from ...engine.wire.session import FOR_NODES, Session, attempt_digest
from .kept_values import Arguments, Result, combined
from .network import IN, OUT, Circuit, Line

if TYPE_CHECKING:
    import asyncio

    from ...actors.interfaces import Order, Report
    from ...engine.transport.instance_views import InstanceViews
    from ...engine.transport.memory_checkpoints import MemoryCheckpoints
    from ...providers.base import MachineId
    from .clock import VirtualLoop
    from .scenario import Dice, Job, Scenario
    from .trace import Trace

BIRTH_S = 0.003
LEAVES_S = 0.005  # seconds from the result of a `fresh` process, which serves a single task, to the end of the process
POISON_S = 0.02
SMALL = 0.15  # share of the results to be kept that are so small that they are sent to the client instead


class Sim(Protocol):
    """The interface of `Simulation` for its parts. `Simulation` creates the parts, which call each other through it.

    `cloud`, `connector` and `referee` have the type Any here; `Simulation` decides their classes.
    """

    loop: VirtualLoop
    scenario: Scenario
    trace: Trace
    dice: Dice
    jobs: dict[int, Job]
    hosts: dict[MachineId, Host]
    unsettled: set[int]
    orders: dict[int, Order]
    views: InstanceViews
    checkpoints: MemoryCheckpoints
    cloud: Any
    connector: Any
    referee: Any

    @property
    def cut(self) -> bool: ...

    def broken(self, rule: str, story: str) -> None: ...

    def meeting(self, attempt: int) -> Meeting: ...

    def record(self, tell: Callable[[Sequence[Report]], None], reports: Sequence[Report]) -> None: ...


class Process:
    def __init__(self, daemon: Daemon, worker: int, *, fresh: bool) -> None:
        self.daemon, self.id, self.fresh = daemon, worker, fresh
        self.runs: Run | None = None
        self.has_run = False  # whether the process has ended at least one attempt
        self.created_at = self.born_at = daemon.sim.loop.now
        self._unread: deque[Run] = deque()
        # attempt whose result is to be kept -> (number of the job, its arguments)
        self._arguments: dict[int, tuple[int, list[str]]] = {}
        self._ends: asyncio.TimerHandle | None = None
        self._meeting: Meeting | None = None
        self._stopped = False
        self.born = False
        daemon.host.later(BIRTH_S, self._begin)

    def _begin(self) -> None:
        if self._stopped:
            return
        if self.daemon.host.barren:
            self.daemon.sim.referee.executors.stillborn(self.daemon)
            self.die(Cause.EXIT, 1, "its folder cannot be made")
            return
        self.born, self.born_at = True, self.daemon.sim.loop.now
        self.daemon.sim.referee.executors.born(self.daemon)
        self.daemon.born(self)
        if self._unread and not self.busy and not self._stopped:
            self._next()

    def deliver(self, run: Run, body: bytes) -> None:  # noqa: ARG002 (the real one reads the body)
        if self.daemon.sim.jobs[run.job].keep:
            self._arguments[run.attempt] = self.daemon.arguments_of(run)
        self._unread.append(run)
        if self.born and self.runs is None:
            self._next()

    @property
    def busy(self) -> bool:
        return self.runs is not None

    def take_back(self) -> list[int]:
        """Remove and return the attempts that the process has not begun, oldest first."""
        unread = [run.attempt for run in self._unread]
        self._unread.clear()
        return unread

    def stop(self) -> None:
        self._stopped = True
        run = self._over("stopped")
        if run is not None and self._meeting is not None:
            self._meeting.leave(self)

    def die(self, cause: Cause, code: int, detail: str) -> None:
        self.daemon.gone(self, cause, code, detail)

    def peers_are_here(self, takes_s: float) -> None:
        self._ends = self.daemon.host.later(takes_s, self._finish)

    def a_peer_is_gone(self, notice_s: float | None) -> None:
        """React to the loss of another rank: after ``notice_s`` seconds, raise an error as training frameworks do.

        None: hang.
        """
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
        if notice_s is not None:
            self._ends = self.daemon.host.later(notice_s, lambda: self._finish(raises="Connection closed by peer"))

    def _next(self) -> None:
        self.runs = run = self._unread.popleft()
        sim, host = self.daemon.sim, self.daemon.host
        job = sim.jobs[run.job]
        sim.referee.began(host, run.attempt)
        if job.ends == "poison":
            self._ends = host.later(POISON_S, lambda: self._poison(run.attempt))
        elif job.ends == "hangs" or sim.orders[AttemptId(run.attempt)].number <= job.hangs:
            pass
        elif job.ranks and job.collective:
            self._meeting = sim.meeting(run.attempt)
            self._meeting.enter(self, job)
        elif job.ends == "dies":
            self._ends = host.later(job.takes_s, self._exit)
        else:
            self._ends = host.later(job.takes_s, self._finish)

    def _finish(self, raises: str | None = None) -> None:
        if self._stopped or self.runs is None:
            return
        job = self.daemon.sim.jobs[self.runs.job]
        if raises is None and job.ends == "raises":
            raises = "its own"
        if raises is None and job.ends == "dies":
            self._exit()
            return
        run = self._over("returned" if raises is None else "raised")
        if run is None:
            return
        if self._meeting is not None:
            self._meeting.finished(self)
            self._meeting = None
        took_us = int(job.takes_s * 1e6)
        if raises is None:
            message: Done | Failed = Done(run.attempt, self._value(run, job), took_us)
        else:
            message = Failed(run.attempt, "call", "builtins.RuntimeError", raises, "", None, took_us)
        self.daemon.finished(self, message)
        if self.fresh:
            self.daemon.host.later(LEAVES_S, lambda: self.die(Cause.EXIT, 0, "its process exited with status 0"))
        elif self._unread and not self.busy:
            self._next()

    def _poison(self, attempt: int) -> None:
        sim, host = self.daemon.sim, self.daemon.host
        sim.referee.jobs.poisoned(host, attempt)
        sim.cloud.lose(host.machine, "its kernel panicked", reported_s=None)

    def _exit(self) -> None:
        self.die(Cause.EXIT, 3, "its process exited with status 3")

    def _value(self, run: Run, job: Job) -> Value:
        """Return the attempt's result. It contains the attempt's number, so that the referee can verify its origin."""
        if job.keep:
            return self._kept(run)
        name = f"result-{run.attempt}"
        if job.large:
            self.daemon.blobs[name] = name.encode()
            return Value(b"", None, name)
        return Value(name.encode())

    def _kept(self, run: Run) -> Value:
        """Return a result of random size: a blob that the node keeps or, if it is small, the data itself."""
        drawn = self.daemon.sim.dice.of("kept", run.attempt)
        data = Result(combined(*self._arguments.pop(run.attempt)), run.attempt, "." * drawn.randrange(64)).pickled()
        if drawn.random() < SMALL:
            return Value(data)
        name = f"kept-by-{run.attempt}"
        self.daemon.blobs[name] = data
        return Value(b"", (len(data),), name)

    def _over(self, how: str) -> Run | None:
        run, self.runs = self.runs, None
        if self._ends is not None:
            self._ends.cancel()
            self._ends = None
        if run is not None:
            self.daemon.sim.referee.ended(self.daemon.host, run.attempt, how)
            if not self.has_run:
                self.has_run = True
                self.daemon.sim.referee.executors.started(self)
        return run


class Meeting:
    """The ranks of one generation, which wait for each other as in collective operations.

    The ranks finish only after all of them have begun. If one rank dies, the other ranks cannot finish.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks: dict[Process, Job] = {}
        self._came = 0
        self._broken = False

    def enter(self, process: Process, job: Job) -> None:
        self._ranks[process] = job
        self._came += 1
        if self._broken:
            process.a_peer_is_gone(job.peers_notice_s)
        elif self._came == self._size:
            for each, theirs in list(self._ranks.items()):
                each.peers_are_here(theirs.takes_s)

    def finished(self, process: Process) -> None:
        """Remove a rank that has its result: the end of its process does not affect the other ranks."""
        self._ranks.pop(process, None)

    def leave(self, process: Process) -> None:
        """Remove a rank that ends without a result, and let all other ranks lose their peer."""
        if self._ranks.pop(process, None) is not None and not self._broken:
            self._broken = True
            for each, job in list(self._ranks.items()):
                each.a_peer_is_gone(job.peers_notice_s)


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
        # attempt of a broadcast's rank -> the node's view (list of ranks and nodes) when the attempt arrived
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

        When the timer expires, the executor ends.
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


class Host:
    """One machine: its power, its line to the client, and its executor."""

    def __init__(self, sim: Sim, number: int, machine: MachineId) -> None:
        self.sim, self.number, self.machine = sim, number, machine
        self.address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        self.cpus = sim.scenario.cpus[number % len(sim.scenario.cpus)]
        self.on = False
        self.dead = False  # whether the machine was switched off for good
        self.frozen = 0
        self.daemon: Daemon | None = None
        self.connected = False  # whether the client is connected to this machine
        self.barren = 0  # number of active `faults.Barren`: while it is not 0, no worker can be started
        # how the machine fails every connection (``how`` of `faults.BadMachines`); None: it works
        self.refuses: str | None = None
        self.line = Line(
            sim.loop, sim.dice.of("line", number), sim.dice.within(sim.scenario.cloud.latency_s, "lat", number)
        )
        self.line.changed = self.changed
        # called when the machine or its line to the client fails or works again
        self.watch: Callable[[], None] = lambda: None
        self._deferred: list[Callable[[], None]] = []
        self._ports = count(20_000)

    def boot(self) -> None:
        if not self.dead:
            self.on = True
            self.daemon = Daemon(self)

    @property
    def answers(self) -> bool:
        """Return whether the machine replies to a connection attempt, be it with an acceptance or a refusal."""
        return self.on and not self.frozen and self.line.open and self.refuses != "deaf"

    @property
    def healthy(self) -> bool:
        """Return whether the machine would answer a heartbeat."""
        return self.answers and self.daemon is not None

    def changed(self) -> None:
        if self.daemon is not None:
            self.daemon.check_hearing()
        self.watch()

    def do(self, work: Callable[[], None]) -> None:
        """Run ``work`` on this machine: now, or after the end of a freeze; not at all if the machine is off."""
        if self.frozen:
            self._deferred.append(work)
        elif self.on:
            work()

    def later(self, delay_s: float, work: Callable[[], None]) -> asyncio.TimerHandle:
        return self.sim.loop.call_later(delay_s, self.do, work)

    def freeze(self) -> None:
        self.frozen += 1
        self.changed()

    def thaw(self) -> None:
        self.frozen -= 1
        if not self.frozen:
            deferred, self._deferred = self._deferred, []
            for work in deferred:
                self.do(work)
        self.changed()

    def power_off(self, *, silent: bool) -> None:
        """End the machine and everything on it.

        If ``silent``, the client's connections are not closed: the client must notice the silence.
        """
        self.dead = True
        if not self.on:
            return
        self.on = False
        self.sim.referee.machine_lost(self)
        self._deferred.clear()
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.vanish()
        circuit = self.line.circuit
        if circuit is not None:
            circuit.vanish() if silent else circuit.close(by=OUT)
        self.changed()

    def lose_daemon(self, *, restarts: bool) -> None:
        daemon, self.daemon = self.daemon, None
        if daemon is not None:
            daemon.vanish()
            if self.line.circuit is not None:
                self.line.circuit.close(by=OUT)
            if restarts:
                self.daemon = Daemon(self)
        self.changed()

    def free_port(self) -> int:
        return next(self._ports)
