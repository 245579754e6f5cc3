"""The worker pool of a node: does what the scheduler decides, and tells it what the workers do. It never awaits."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any, assert_never, cast

import msgpack

from ..wire import codec
from ..wire.codec import ProtocolError
from ..wire.messages import (
    LOST,
    Adopt,
    Cause,
    Credit,
    Define,
    Done,
    Drop,
    Ended,
    Failed,
    Input,
    Kill,
    Message,
    Output,
    Ports,
    Returned,
    Run,
    RunFlag,
    Started,
    Value,
    View,
    Yield,
)
from . import forkserver, limits
from . import pipe as pipes
from .effects import Answer, Deliver, Effect, EndWorker, Fork, GiveUp, Interrupt, Relay, Steal
from .failure import lacking
from .freeports import FreePorts
from .memory import OomKills
from .notice_page import NoticePage
from .notices import settings
from .scheduler import Scheduler
from .store import Store
from .worker_connection import WorkerConnection

_LISTENS = int(RunFlag.LISTENS)

Say = Callable[[Message | bytes], None]  # to the client: a message, or the body of one
Turn = Callable[
    [Callable[[WorkerConnection], None], WorkerConnection], None
]  # runs it; what it says is written when it returns


class WorkerPool:
    def __init__(
        self,
        forks: socket.socket,
        *,
        store: Store,
        ports: FreePorts,
        board: NoticePage,
        say: Say,
        turn: Turn,
        failed: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._forks = forks
        self._store = store
        self._free_ports = ports
        self._board = board
        self._say = say
        self._turn = turn
        self._failed = failed  # the fork server has ended, or we cannot go on: told why
        self.ended = asyncio.Event()  # set when the fork server has ended and nothing of any worker is left
        self._core = Scheduler()
        self._ports: dict[int, WorkerConnection] = {}
        self._functions: dict[bytes, tuple[bytes, str | None]] = {}  # digest -> the body of its `Define`, its blob
        self._view = b""
        self._setup: dict[str, Any] = {}
        self._streaming: dict[int, int] = {}  # attempt -> worker: where its `Credit` and `Input` go
        self._lent: dict[int, tuple[str, ...]] = {}  # attempt -> the blobs it refers to
        self._views: dict[int, bytes] = {}  # attempt of a rank -> the view that its world goes with
        self._early: dict[int, list[tuple[Input | Credit, bytes]]] = {}  # for attempts that wait for a worker
        self._oom = OomKills()
        self._timer: asyncio.TimerHandle | None = None
        self._listening = True
        self._closing = False
        self._loop.add_reader(forks, self._forks_readable)

    # --- from the client ---------------------------------------------------------------------------------------------

    def open(self, setup: dict[str, Any], *, cwd: str, address: str) -> None:
        """Start the workers: the first task finds one that is ready."""
        slots, threads = setup["slots"], setup["kind"] == "thread"
        order = {
            "env": setup.get("env", {}),
            "cwd": cwd,
            "address": address,
            "hostname": socket.gethostname(),
            "lanes": slots if threads else 1,
            "signals": settings.signals(setup.get("notices", ())),
            "preload": setup.get("preload", ()),
        }
        self._order(forkserver.SETUP, order, fds=[self._board.fd])
        self._core.open(slots, threads=threads, now=self._loop.time())
        self.act()

    def view(self, message: View) -> None:
        self._view = codec.body(message)

    def define(self, message: Define, body: bytes) -> None:
        self._functions[message.function] = body, message.blob

    def lend(self, attempt: int, blobs: tuple[str, ...]) -> None:
        self._lent[attempt] = blobs

    def drop(self, blobs: tuple[str, ...]) -> None:
        """Tell workers that were given these blobs to drop them, as the store has."""
        for port in self._ports.values():
            if port.shared and (held := port.shared.intersection(blobs)):
                port.shared -= held
                port.send(codec.body(Drop(tuple(held))))

    def run(self, run: Run, body: bytes) -> None:
        code = self._functions.get(run.function, (b"", None))[1]
        if self._store.lacks((run.args.blob, code, *self._lent.get(run.attempt, ()))):
            self._lent.pop(run.attempt, None)
            self._early.pop(run.attempt, None)
            self._say(lacking(run.attempt, limits.story()))
            return
        if run.world is not None:  # the next view may come before a worker is given this
            self._views[run.attempt] = self._view
        self._core.submitted(run, body)

    def kill(self, attempt: int) -> None:
        self._core.killed(attempt, self._loop.time())

    def recall(self, attempts: tuple[int, ...]) -> None:
        self._core.recalled(attempts)

    def pass_on(self, message: Input | Credit, body: bytes) -> None:
        """Pass a stream's message on to its task, as soon as that has a worker; to nobody if the task has ended."""
        port = self._ports.get(self._streaming.get(message.attempt, 0))
        if port is not None:
            port.send(body, self._blob(message.item if isinstance(message, Input) else None))
        elif self._core.knows(message.attempt):
            self._early.setdefault(message.attempt, []).append((message, body))

    @property
    def has_run(self) -> bool:
        """Return whether some worker has taken an attempt."""
        return self._core.has_run

    def listen(self, listening: bool) -> None:
        """Set whether task output is read; while it is not, a task that prints too much waits."""
        if listening != self._listening:
            self._listening = listening
            for port in self._ports.values():
                port.read_outputs(listening)

    def act(self) -> None:
        """Carry out what the scheduler decides now that it knows the news.

        An error is a defect of ours, or the host lacks descriptors or ports. With half of it done somebody would wait
        for ever: the node ends, and what it had runs elsewhere.
        """
        try:
            self._carry_out()
        except Exception as error:  # noqa: BLE001 - the edge
            traceback.print_exc()
            story = limits.story() if limits.is_shortage(error) else f"{type(error).__name__}: {error}"
            self._failed(f"its executor failed ({story})")

    def _carry_out(self) -> None:  # noqa: PLR0912 (a table)
        core, loop = self._core, self._loop
        more = True
        while more:
            more = False
            effects = core.decide(loop.time())
            for effect in effects:
                match effect:
                    case Deliver(worker, run, body):
                        if (port := self._ports.get(worker)) is not None:
                            self._deliver(port, run, body)
                    case Relay(body):
                        self._say(body)
                    case Answer(message):
                        self._forget(message)
                        self._say(message)
                    case Steal(worker):
                        self._take_back(self._ports[worker])
                        more = True  # it may go elsewhere
                    case Fork(worker, slot, fresh):
                        try:
                            self._fork(worker, slot, fresh=fresh)
                        except OSError as error:
                            self._not_forked(worker, error, effects)
                            more = True
                    case EndWorker(worker):
                        self._order(forkserver.KILL, worker)
                    case Interrupt(worker, attempt):
                        self._ports[worker].send(codec.body(Kill(attempt)))
                    case GiveUp(reason):
                        self._failed(reason)
                    case _:
                        assert_never(effect)
        due = core.due()
        if due is not None and (self._timer is None or due < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._tick)

    async def close(self, within_s: float) -> None:
        """End every worker's process tree, and the fork server."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._forks.shutdown(socket.SHUT_WR)
        except OSError:  # it has ended itself
            self.ended.set()
        try:
            async with asyncio.timeout(within_s):
                await self.ended.wait()
        except TimeoutError:  # it hangs in the kernel; its workers die with it, whenever that is
            pass
        self._loop.remove_reader(self._forks)
        for port in self._ports.values():
            port.close()
        self._ports.clear()
        self._forks.close()

    # --- to workers --------------------------------------------------------------------------------------------------

    def _fork(self, worker: int, slot: int, *, fresh: bool) -> None:
        """Have a worker forked.

        Raises:
            OSError: this process has no descriptors left.
        """
        port = WorkerConnection(self._loop, worker, self._heard_of, self._printed, self._core.running)
        try:
            fds = port.open_outputs(reading=self._listening)
        except OSError:
            port.close()
            raise
        self._ports[worker] = port
        try:
            self._order(forkserver.FORK, worker, slot, fresh, fds=fds)
        finally:
            for fd in fds[1:]:
                os.close(fd)

    def _not_forked(self, worker: int, error: OSError, effects: list[Effect]) -> None:
        """Handle a worker that could not be forked: take back the attempts that the same turn was to deliver to it."""
        if (port := self._ports.pop(worker, None)) is not None:
            port.close()
        unread = [each.run.attempt for each in effects if isinstance(each, Deliver) and each.worker == worker]
        now = self._loop.time()
        self._core.stolen(worker, unread, now)
        why = limits.story() if limits.is_shortage(error) else str(error)
        self._core.gone(worker, Cause.EXIT, 1, why, now)

    def _deliver(self, port: WorkerConnection, run: Run, body: bytes) -> None:
        if run.world is not None and run.flags & _LISTENS and (more := self._free_ports.release_for(run.world)):
            self._say(Ports(more))
        view = self._views.get(run.attempt, self._view)
        if port.view is not view:
            port.view = view
            port.send(view)
        if run.function not in port.known and run.function in self._functions:
            port.known.add(run.function)
            definition, blob = self._functions[run.function]
            fd = self._store.fd(blob)
            port.send(definition, [] if fd is None else [fd])
        for name in self._lent.get(run.attempt, ()):
            if name not in port.shared and (fd := self._store.fd(name)) is not None:
                port.shared.add(name)
                port.send(codec.body(Adopt(name, "", 0)), [fd])
        port.last = run.attempt
        port.owes += 1
        self._streaming[run.attempt] = port.worker
        port.send(body, self._blob(run.args))
        for message, early in self._early.pop(run.attempt, ()):
            self.pass_on(message, early)

    def _forget(self, answer: Started | Ended | Returned) -> None:
        """Forget what is kept for attempts that are over and never ran."""
        match answer:
            case Ended(attempt):
                self._early.pop(attempt, None)
                self._lent.pop(attempt, None)
                self._views.pop(attempt, None)
            case Returned(attempts):
                for attempt in attempts:
                    self._early.pop(attempt, None)
                    self._lent.pop(attempt, None)
                    self._views.pop(attempt, None)
            case _:
                pass

    def _blob(self, value: Value | None) -> list[int]:
        fd = self._store.fd(value.blob) if value is not None else None
        return [] if fd is None else [fd]

    def _take_back(self, port: WorkerConnection) -> None:
        """STEAL: first the worker's mail is taken, then its results: what remains running has begun, and not ended."""
        unread = list(port.take_back())
        self._hear(port)
        attempts: list[int] = []
        for body in unread:
            message = codec.decode(body) if len(body) > 1 else None  # a mark
            if isinstance(message, Run):
                attempts.append(message.attempt)
                port.owes -= 1
                self._streaming.pop(message.attempt, None)
            elif isinstance(message, Input | Credit):  # of a task that its worker did not live to read
                self._early.setdefault(message.attempt, []).append((message, body))
            elif isinstance(message, Define):
                port.known.discard(message.function)
            elif isinstance(message, View):
                port.view = b""
            elif isinstance(message, Adopt):
                port.shared.discard(message.blob)
            elif isinstance(message, Drop) or message is None:
                port.send(body)
        self._core.stolen(port.worker, attempts, self._loop.time())

    def _order(self, *order: object, fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._forks, [cast("bytes", msgpack.packb(order))], fds or [])
        except ConnectionError:  # it has ended, as we shall hear
            pass
        except OSError:
            if not self._closing:
                raise

    # --- from workers ------------------------------------------------------------------------------------------------

    def _heard_of(self, port: WorkerConnection) -> None:
        self._turn(self._hear_out, port)

    def _hear_out(self, port: WorkerConnection) -> None:
        self._hear(port)
        self.act()

    def _hear(self, port: WorkerConnection) -> None:
        now = self._loop.time()
        for datagram in port.receive():
            heard = self._understood(port, *datagram)
            if heard is None:
                continue
            message, body = heard
            match message:
                case Done() | Failed():
                    port.owes -= 1
                    self._streaming.pop(message.attempt, None)
                    if self._lent:
                        self._lent.pop(message.attempt, None)
                    if self._views:
                        self._views.pop(message.attempt, None)
                    if not self._core.finished(port.worker, message.attempt, body, now):
                        self._store.drop(_blobs(message))
                case Ended(attempt):
                    port.owes -= 1
                    self._streaming.pop(attempt, None)
                    self._core.finished(port.worker, attempt, body, now, interrupted=True)
                case Yield() | Credit():
                    self._say(body)
                case Output():  # of a thread; as a message, which counts among what is kept while the client is away
                    self._say(message)
                case _:  # user code that knows how to
                    pass

    def _understood(self, port: WorkerConnection, body: bytes, fds: list[int] | None) -> tuple[Message, bytes] | None:
        """Return the message and its body; None if it was a mark, or is of no use.

        Without their descriptors (``fds`` None) values are lost.
        """
        if fds is None and body == pipes.SPILLED:  # it does not say which attempt it was for
            self._order(forkserver.KILL, port.worker)
            return None
        if len(body) == 1:
            self._hear_mark(port, body)
            return None
        try:
            message = codec.decode(body)
        except ProtocolError:  # user code that writes into our pipe
            for fd in fds or ():
                os.close(fd)
            return None
        if fds == []:
            return message, body
        message = _without_value(message) if fds is None else self._keep_blob(message, fds)
        return message, codec.body(message)

    def _hear_mark(self, port: WorkerConnection, mark: bytes) -> None:
        match mark:
            case pipes.PAUSE:
                port.finish_outputs()
                port.send(mark)
            case pipes.ROOM:
                port.want_room()
            case pipes.BORN:
                port.born = True
                self._core.born(port.worker, self._loop.time())
            case _:  # user code that writes into our pipe
                pass

    def _keep_blob(self, message: Message, fds: list[int]) -> Message:
        """Return the message with a name for its result, which came as a descriptor."""
        name = self._store.add_result(fds[0])
        match message:
            case Done():
                return message._replace(value=message.value._replace(blob=name))
            case Yield():
                return message._replace(item=message.item._replace(blob=name))
            case Failed(error=Value() as error):
                return message._replace(error=error._replace(blob=name))
        self._store.drop([name])
        return message

    def _printed(self, outputs: list[Output]) -> None:
        for output in outputs:
            self._say(output)

    # --- from the fork server ----------------------------------------------------------------------------------------

    def _forks_readable(self) -> None:
        while True:
            try:
                data = self._forks.recv(65536, socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except ConnectionError:
                data = b""
            if not data:
                self._loop.remove_reader(self._forks)
                self.ended.set()
                self._failed("its fork server has ended")
                return
            kind, worker, *rest = msgpack.unpackb(data)
            if kind == forkserver.GONE:
                self._gone(worker, *rest)
        self.act()

    def _gone(self, worker: int, status: int, detail: str) -> None:
        port = self._ports.pop(worker, None)
        if port is None:
            return
        self._take_back(port)
        port.finish_outputs()
        cause, code = self._verdict(status)
        if not port.born and (words := port.last_words()):
            print(f"a worker could not be started: {words}", file=sys.stderr, flush=True)
            detail = detail or words.splitlines()[-1]
        self._core.gone(worker, cause, code, detail, self._loop.time())
        self._streaming = {attempt: where for attempt, where in self._streaming.items() if where != worker}
        port.close()

    def _verdict(self, status: int) -> tuple[Cause, int]:
        killed_for_memory = self._oom.news()
        if status < 0:
            return Cause.EXIT, 1
        if os.WIFEXITED(status):
            return Cause.EXIT, os.WEXITSTATUS(status)
        number = os.WTERMSIG(status)
        return Cause.MEMORY if number == signal.SIGKILL and killed_for_memory else Cause.SIGNAL, number

    def _tick(self) -> None:
        self._timer = None
        self._core.ticked(self._loop.time())
        self.act()


def _blobs(answer: Done | Failed) -> list[str]:
    """Return the names of the blobs that an answer refers to."""
    value = answer.value if isinstance(answer, Done) else answer.error
    return [value.blob] if value is not None and value.blob is not None else []


def _without_value(message: Message) -> Message:
    """Replace the value whose descriptor is lost: whoever awaits the value is told why it cannot be had."""
    lost = Value(b"", None, f"{LOST}{limits.story()}")
    match message:
        case Done():
            return message._replace(value=lost)
        case Yield():
            return message._replace(item=lost)
        case Failed():
            return message._replace(error=None)
    return message
