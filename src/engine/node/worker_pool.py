"""The worker pool of a node: it carries out the decisions of `WorkerScheduler`, and reports workers' events to it.

No method blocks, except `WorkerPool.close`. `OomKills` tells whether the kernel has killed a worker for lack of memory
(an OOM kill). The kernel's counters are documented in cgroups(7), and in the kernel's cgroup-v2.rst (``memory.events``)
and cgroup-v1/memory.rst (``memory.oom_control``).
"""

from __future__ import annotations

import asyncio
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, assert_never, cast

import msgpack

from ..wire import codec
from ..wire import messages as wire
from ..wire.codec import ProtocolError
from ..wire.messages import Joined, Kept, Stored
from . import after_call, limits, pipe
from . import pipe as pipes
from .blobs import BlobStore
from .failure import lacking
from .freeports import FreePorts
from .holdings import Allotment, Holdings, named_devices
from .inspection import UnderWay
from .notice_page import NoticePage
from .notices import sources
from .stored_blobs import VALUES, NamedBlobs
from .worker_connection import Deliveries, WorkerConnection
from .worker_scheduler import Answer, Deliver, Effect, EndWorker, Fork, GiveUp, Interrupt, Relay, Steal, WorkerScheduler

_COMPUTER = Path("/proc/vmstat")

RECENT_S = 60.0  # longest time in which a killed process frees its memory and ends


def own_counter(process: Path = Path("/proc/self"), computer: Path = _COMPUTER) -> Path:
    """Return the file with the number of OOM kills in this process's cgroup, or else in the whole computer.

    A cgroup's file does not count kills of programs in other cgroups, which could be mistaken for the cause of a
    worker's death. If no cgroup has such a file (the root group of cgroup v2 has none), return the file of the whole
    computer.
    """
    try:
        files = counters((process / "cgroup").read_text(), (process / "mountinfo").read_text())
    except OSError:
        return computer
    return next((file for file in files if "oom_kill" in _counts(file)), computer)


def counters(cgroup: str, mountinfo: str) -> list[Path]:
    """Return the files that may contain the number of OOM kills in a process's cgroup, the best file first.

    In a container, only a part of the hierarchy of cgroups may be mounted.

    Args:
        cgroup: the text of ``/proc/<pid>/cgroup``.
        mountinfo: the text of ``/proc/<pid>/mountinfo``.
    """
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in cgroup.splitlines())}
    memory = next((path for controllers, path in groups.items() if "memory" in controllers.split(",")), None)
    first, then = list[Path](), list[Path]()
    for line in mountinfo.splitlines():
        mount, _, kind = line.partition(" - ")
        root, place = mount.split()[3:5]
        if kind.startswith("cgroup ") and memory is not None and "memory" in kind.split()[-1].split(","):
            first += [Path(place, group, "memory.oom_control") for group in _below(root, memory)[:1]]
        elif kind.startswith("cgroup2 ") and "" in groups:  # in v2, a group's count includes its descendants
            then += [Path(place, group, "memory.events") for group in _below(root, groups[""])]
    return first + then


def _below(root: str, path: str) -> list[PurePosixPath]:
    """Return the cgroup ``path`` and its ancestors, relative to the mounted group ``root``; [] if it is outside."""
    group = PurePosixPath(path)
    if not group.is_relative_to(root):
        return []
    below = group.relative_to(root)
    return [below, *below.parents]


class OomKills:
    """The kernel's recent OOM kills, as counted in the file ``counter`` (see `own_counter`).

    An OOM kill counts as the cause of a worker's death if the worker died of a SIGKILL that this node did not send, and
    the number in the file has risen.
    """

    def __init__(self, counter: Path) -> None:
        self._counter = counter
        self._seen = self._later = self._count()
        self._explained = 0  # how many of the kills since `_seen` (an earlier count) already explain a death
        self._looked_at = -math.inf

    def look(self, now: float) -> None:
        """Forget kills from more than `RECENT_S` ago, which did not hit a worker. Call this method regularly."""
        if now - self._looked_at >= RECENT_S:
            self._looked_at = now
            self._explained = max(0, self._explained - (self._later - self._seen))
            self._seen, self._later = self._later, self._count()

    def news(self) -> bool:
        """Return whether a recent OOM kill explains one more death by SIGKILL; each kill explains one death."""
        if self._explained >= self._count() - self._seen:
            return False
        self._explained += 1
        return True

    def _count(self) -> int:
        try:
            return int(_counts(self._counter).get("oom_kill", 0))
        except ValueError:
            return 0


def _counts(file: Path) -> dict[str, str]:
    try:
        return dict(line.split(" ", 1) for line in file.read_text().splitlines())
    except (OSError, ValueError):
        return {}


ToClient = wire.Message | bytes  # a message to the client, or its encoded body


class WorkerPool:
    """The workers of a node, started through the control socket of their fork server.

    Args:
        forks: the control socket of the fork server.
        store: the node's blobs.
        free_ports: the ports reserved for ranks.
        notice_page: the shared memory for preemption notices.
        send: called once per event, with all its messages to the client.
        failed: called with the reason when no task can run on this node any more.
        folder: the node's private folder.
        devices: number of GPUs of the node.
    """

    def __init__(
        self,
        forks: socket.socket,
        *,
        store: BlobStore,
        free_ports: FreePorts,
        notice_page: NoticePage,
        send: Callable[[Sequence[ToClient]], None],
        failed: Callable[[str], None],
        folder: Path,
        devices: int = 0,
    ) -> None:
        """Begin to receive reports of the fork server. `open` starts the workers."""
        self._loop = asyncio.get_running_loop()
        self._forks = forks
        self._store = store
        self._free_ports = free_ports
        self._notice_page = notice_page
        self._send = send
        self._failed = failed
        self.ended = asyncio.Event()  # set when the fork server, and so all workers' processes, have ended
        self.scheduler = self._scheduler = WorkerScheduler()
        self._connections: dict[int, WorkerConnection] = {}
        self._deliveries = Deliveries(store)
        self._outbox: list[ToClient] = []
        self._oom = OomKills(own_counter())
        self._devices, self._holdings = devices, Holdings()
        self._folder, self._blobs = folder, NamedBlobs(store)
        self._timer: asyncio.TimerHandle | None = None
        self._listening, self._threads = True, False
        self._worker_threads = 1
        # attempt -> time of the last log record of its processes, if the client wants no log records
        self._logged_at: dict[int, float] = {}
        self._starts_at: asyncio.TimerHandle | None = None  # timer that starts the workers
        self._closing = False
        self._loop.add_reader(forks, self._on_fork_server_readable)

    # --- from the client ---------------------------------------------------------------------------------------------

    def open(self, setup: dict[str, Any], *, cwd: str, address: str, after_s: float = 0.0) -> None:
        """Start the workers after ``after_s`` seconds, or earlier if a task arrives.

        Args:
            setup: the client's settings from `Hello`.
            cwd: the tasks' working directory.
            address: the node's address.
            after_s: delay of the start, in seconds.
        """
        slots, threads = setup["slots"], setup["kind"] == "thread"
        self._threads = threads
        order = {
            "env": setup.get("env", {}),
            "cwd": cwd,
            "address": address,
            "hostname": socket.gethostname(),
            "threads": slots if threads else 1,
            "signals": sources.signals(setup.get("notices", ())),
            "preload": setup.get("preload", ()),
            "logs": setup.get("logs", True),
            "folder": str(self._folder),
        }
        self._logs = order["logs"]
        self._worker_threads = order["threads"]
        self._holdings.devices = named_devices(self._devices, {**os.environ, **order["env"]})
        self._tell_fork_server(pipe.ORDER_SETUP, order, fds=[self._notice_page.fd])
        self._slots = slots
        self._starts_at = self._loop.call_later(after_s, self._start_workers)

    def _start_workers(self) -> None:
        """Start the workers, unless an early task has already started them."""
        self._open_slots()
        self.act()

    def _open_slots(self) -> None:
        if self._starts_at is not None:
            self._starts_at.cancel()
            self._starts_at = None
            self._scheduler.open(self._slots, threads=self._threads, now=self._loop.time())

    def obey(self, message: wire.Message, body: bytes) -> bool:  # noqa: PLR0912 (a table)
        """Handle a client's message; `act` carries it out. Return False if the message does not concern workers."""
        match message:
            case wire.Run(attempt):
                self._open_slots()
                if message.world is not None:
                    self._free_ports.named(message)
                if not self._deliveries.expect(message):
                    self._forget(attempt)
                    self._outbox.append(lacking(attempt, limits.story()))
                    return True
                self._scheduler.submitted(message, body)
            case wire.Define():
                self._deliveries.functions[message.function] = body, message.blob
            case wire.Credit() | wire.Input():
                self._pass_on(message, body)
            case wire.Kill(attempt):
                self._scheduler.killed(attempt, self._loop.time())
            case wire.Recall(attempts):
                self._scheduler.recalled(attempts)
            case wire.Compare(attempts):
                self._scheduler.compared(attempts, self._loop.time())
            case wire.Lend(attempt, blobs):
                self._deliveries.lend(attempt, blobs, (wire.Value(b"", None, blob) for blob in blobs))
            case wire.Refer(attempt, names, values):
                self._deliveries.lend(attempt, names, values)
            case wire.Hold():
                self._holdings.add(message)
            case wire.View():
                self._deliveries.view = body
            case _:
                return False
        return True

    def _pass_on(self, message: wire.Input | wire.Credit, body: bytes) -> None:
        """Send a stream's message to its task, once the task has a worker. Drop the message if the task has ended."""
        worker = self._scheduler.worker_of(message.attempt)
        if worker is not None:
            self._deliveries.pass_on(self._connections.get(worker), message, body)

    def drop(self, blobs: tuple[str, ...]) -> None:
        """Let the workers close these blobs, which the store has already dropped."""
        for connection in self._connections.values():
            if connection.shared:
                held = tuple(name for name, blob in connection.shared.items() if blob in blobs)
                for name in held:
                    del connection.shared[name]
                if held:
                    connection.send(codec.body(wire.Drop(held)))

    def moved(self, blob: str) -> None:
        """Send the new descriptor of a blob (moved to disk) to the workers that have it, which frees its memory."""
        for connection in self._connections.values():
            self._deliveries.renew(connection, blob)

    @property
    def has_run(self) -> bool:
        return self._scheduler.has_run

    def under_way(self) -> list[UnderWay]:
        """Return the running attempts, each with the memory file of its worker, in which stacks are read."""
        heads, workers = self._scheduler.heads(), self._connections
        return [
            UnderWay(attempt, workers[each].stacks, max(at, self._logged_at.get(attempt, at)))
            for attempt, each, at in heads
            if each in workers
        ]

    def listen(self, listening: bool) -> None:
        """Set whether the output of tasks is read. While it is not read, a task that prints much must wait."""
        if listening != self._listening:
            self._listening = listening
            for connection in self._connections.values():
                connection.read_outputs(listening)

    def act(self) -> None:
        """Carry out the scheduler's decisions after an event, and send the resulting messages to the client.

        An exception means a bug in Outrider, or that the host lacks descriptors or ports. Since some decisions are then
        not carried out, the client would wait for ever. Therefore the node ends, and its attempts run elsewhere.
        """
        try:
            self._carry_out()
        except Exception as error:  # noqa: BLE001 - no caller handles it
            traceback.print_exc()
            story = limits.story() if limits.is_shortage(error) else f"{type(error).__name__}: {error}"
            self._fail(f"its executor failed ({story})")
        self._flush()

    def _flush(self) -> None:
        if self._outbox:
            entries, self._outbox = self._outbox, []
            self._send(entries)

    def _fail(self, reason: str) -> None:
        self._flush()
        self._failed(reason)

    def _carry_out(self) -> None:  # noqa: PLR0912 (a table)
        scheduler, loop = self._scheduler, self._loop
        more = True
        while more:
            more = False
            effects = scheduler.decide(loop.time())
            for effect in effects:
                match effect:
                    case Deliver(worker, run, body):
                        if (connection := self._connections.get(worker)) is not None:
                            self._deliver(connection, run, body)
                    case Relay(body):
                        self._outbox.append(body)
                    case Answer(message):
                        if isinstance(message, wire.Returned):
                            self._forget(*message.attempts)
                        elif isinstance(message, wire.Ended):
                            self._forget(message.attempt)
                        self._outbox.append(message)
                    case Steal(worker):
                        self._take_back(self._connections[worker])
                        more = True  # decide again: an attempt taken back may go to another worker
                    case Fork(worker, slot, fresh, attempt):
                        try:
                            self._fork(worker, slot, self._holdings.allotment(worker, attempt), fresh=fresh)
                        except OSError as error:
                            self._not_forked(worker, error, effects)
                            more = True
                    case EndWorker(worker):
                        self._tell_fork_server(pipe.ORDER_KILL, worker)
                    case Interrupt(worker, attempt):
                        self._connections[worker].send(codec.body(wire.Kill(attempt)))
                    case GiveUp(reason):
                        self._fail(reason)
                    case _:
                        assert_never(effect)
        if (offer := self._free_ports.offer()) is not None:
            self._outbox.append(offer)
        due = scheduler.due()
        if due is not None and (self._timer is None or due < self._timer.when()):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(due, self._on_time)

    async def close(self, within_s: float) -> None:
        self._closing = True
        if self._starts_at is not None:
            self._starts_at.cancel()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._forks.shutdown(socket.SHUT_WR)
        except OSError:  # the fork server has already ended
            self.ended.set()
        with suppress(TimeoutError):  # the fork server hangs in the kernel; its workers will end with it
            async with asyncio.timeout(within_s):
                await self.ended.wait()
        self._loop.remove_reader(self._forks)
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._forks.close()

    # --- to workers --------------------------------------------------------------------------------------------------

    def _fork(self, worker: int, slot: int, allotment: Allotment, *, fresh: bool) -> None:
        """Let the fork server fork a worker. Raises OSError if this process has no descriptors left."""
        connection = WorkerConnection(
            self._loop,
            worker,
            on_readable=self._on_worker_readable,
            on_output=self._on_output,
            on_logged=self._on_logged if self._logs else self._on_dropped,
            running=self._scheduler.running,
            threads=1 if fresh else self._worker_threads,
        )
        try:
            fds = connection.open_outputs(self._folder, reading=self._listening)
        except OSError:
            connection.close()
            raise
        self._connections[worker] = connection
        try:
            self._tell_fork_server(pipe.ORDER_FORK, worker, slot, fresh, allotment, fds=fds)
        finally:
            for fd in fds[1:3]:
                os.close(fd)

    def _not_forked(self, worker: int, error: OSError, effects: list[Effect]) -> None:
        """Handle a worker that could not be forked: take back the attempts that ``effects`` deliver to this worker."""
        if (connection := self._connections.pop(worker, None)) is not None:
            connection.close()
        self._holdings.gone(worker)
        unread = [each.run.attempt for each in effects if isinstance(each, Deliver) and each.worker == worker]
        now = self._loop.time()
        self._scheduler.stolen(worker, unread, now)
        why = limits.story() if limits.is_shortage(error) else str(error)
        self._scheduler.gone(worker, wire.Cause.EXIT, 1, why, now)

    def _deliver(self, connection: WorkerConnection, run: wire.Run, body: bytes) -> None:
        self._free_ports.book.close_for(run.attempt)
        self._deliveries.deliver(connection, run, body)

    def _forget(self, *attempts: int) -> None:
        """Drop all data kept for attempts that have ended without running."""
        for attempt in attempts:
            self._deliveries.forget(attempt)
            self._holdings.ended(attempt)
            self._free_ports.book.close_for(attempt)

    def _take_back(self, connection: WorkerConnection) -> None:
        """Take back a worker's unread messages, then receive its results.

        If an attempt is then left without a result, the worker is running it.
        """
        unread = list(connection.take_back())
        self._receive(connection)
        attempts: list[int] = []
        for body in unread:
            message = codec.decode(body) if len(body) > 1 else None  # one byte: a mark, not a message
            if isinstance(message, wire.Run):
                attempts.append(message.attempt)
                connection.owes -= 1
            else:
                self._deliveries.take_back(connection, message, body)
        self._scheduler.stolen(connection.worker, attempts, self._loop.time())

    def _tell_fork_server(self, *order: object, fds: list[int] | None = None) -> None:
        try:
            socket.send_fds(self._forks, [cast("bytes", msgpack.packb(order))], fds or [])
        except ConnectionError:  # the fork server has ended, which the next read detects
            pass
        except OSError:
            if not self._closing:
                raise

    # --- from workers ------------------------------------------------------------------------------------------------

    def _on_worker_readable(self, connection: WorkerConnection) -> None:
        self._receive(connection)
        self.act()

    def _receive(self, connection: WorkerConnection) -> None:
        now = self._loop.time()
        for datagram in connection.receive():
            decoded = self._decode(connection, *datagram)
            if decoded is None:
                continue
            message, body = decoded
            match message:
                case wire.Done() | wire.Failed():
                    self._answered(connection, message, body, now)
                case wire.Ended(attempt):
                    connection.owes -= 1
                    self._scheduler.finished(connection.worker, attempt, body, now, interrupted=True)
                case wire.Yield() | wire.Credit():
                    self._outbox.append(body)
                case wire.Output() | wire.Logged() | wire.Profiled() | Kept() | Stored() | Joined():
                    # not the encoded body: if the client is away, `Backlog` needs the message to apply its limits
                    self._outbox.append(message)
                case _:  # user code has written to the worker's pipe
                    pass

    def _answered(
        self, connection: WorkerConnection, message: wire.Done | wire.Failed, body: bytes, now: float
    ) -> None:
        if self._threads:  # a worker with threads does not wait until its log records are read
            connection.receive_logged()
        connection.owes -= 1
        self._deliveries.answered(message.attempt)
        if self._holdings.holds:
            self._holdings.ended(message.attempt)
        if not self._scheduler.finished(connection.worker, message.attempt, body, now):
            value: wire.Value | None = getattr(message, VALUES[type(message)])
            if value is not None and value.blob is not None:
                self._store.drop([value.blob])

    def _decode(
        self, connection: WorkerConnection, body: bytes, fds: list[int] | None
    ) -> tuple[wire.Message, bytes] | None:
        """Return a worker's message and its body; None for a mark (a single byte) or an unusable message.

        ``fds``: the message's descriptors; None if they are lost, and with them the values in blobs.
        """
        if fds is None and body == pipes.SPILLED:  # the message itself is lost, with its attempt's number
            self._tell_fork_server(pipe.ORDER_KILL, connection.worker)
            return None
        if len(body) == 1:
            self._on_mark(connection, body)
            return None
        try:
            message = codec.decode(body)
        except ProtocolError:  # user code has written to the worker's pipe
            for fd in fds or ():
                os.close(fd)
            return None
        if fds == []:
            return message, body
        message = self._blobs.named(message, fds)
        return message, codec.body(message)

    def _on_mark(self, connection: WorkerConnection, mark: bytes) -> None:
        match mark:
            case pipes.PAUSE:
                connection.receive_logged()
                self._outbox += connection.finish_outputs()
                connection.send(mark)
            case pipes.OUTPUT_CREDIT:
                connection.request_output_credit()
            case pipes.READY:
                connection.ready = True
                self._scheduler.ready(connection.worker, self._loop.time())
            case _:  # user code has written to the worker's pipe
                pass

    def _on_output(self, outputs: list[wire.Output]) -> None:
        self._outbox += outputs
        self._flush()

    def _on_logged(self, message: wire.Logged, fds: list[int]) -> None:
        self._outbox.append(self._blobs.named(message, fds) if fds else message)

    def _on_dropped(self, message: wire.Logged, fds: list[int]) -> None:
        """Drop log records that the client does not want, but note their time: it shows that the attempt is alive."""
        for fd in fds:
            os.close(fd)
        logged_at = self._logged_at | {message.attempt: self._loop.time()}
        running = {attempt for attempt, _, _ in self._scheduler.heads()}
        self._logged_at = {attempt: at for attempt, at in logged_at.items() if attempt in running}

    # --- from the fork server ----------------------------------------------------------------------------------------

    def _on_fork_server_readable(self) -> None:
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
                self._fail("its fork server has ended")
                return
            self._on_gone(*msgpack.unpackb(data))
        self.act()

    def _on_gone(self, worker: int, status: int, detail: str, died: float, held_bytes: int) -> None:
        self._holdings.gone(worker)
        connection = self._connections.pop(worker, None)
        if connection is None:
            return
        if held_bytes:
            self._receive(connection)  # its unread attempts end too: they would need as much memory elsewhere
        else:
            self._take_back(connection)
        connection.receive_logged()
        self._outbox += connection.finish_outputs()
        cause, code = (wire.Cause.LIMIT, held_bytes) if held_bytes else self._cause_of_death(status)
        if hung := after_call.story(status, idle=not self._scheduler.running(worker)):
            self._outbox.append(wire.Output(connection.last, 2, hung, 0))
        if not connection.ready and (words := connection.last_words()):
            print(f"a worker could not be started: {words}", file=sys.stderr, flush=True)
            detail = detail or words.splitlines()[-1]
        if cause is wire.Cause.MEMORY:
            detail = detail or limits.job_memory(os.environ)
        now = self._loop.time()
        self._scheduler.gone(worker, cause, code, detail, now, ago_us=max(0, int((now - died) * 1e6)))
        connection.close()

    def look_at_kills(self) -> None:
        """Read how many processes the kernel has killed for lack of memory so far. Call this method regularly."""
        self._oom.look(self._loop.time())

    def _cause_of_death(self, status: int) -> tuple[wire.Cause, int]:
        if status < 0:
            return wire.Cause.EXIT, 1
        if os.WIFEXITED(status):
            return wire.Cause.EXIT, os.WEXITSTATUS(status)
        number = os.WTERMSIG(status)
        return wire.Cause.MEMORY if number == signal.SIGKILL and self._oom.news() else wire.Cause.SIGNAL, number

    def _on_time(self) -> None:
        self._timer = None
        self._scheduler.ticked(self._loop.time())
        self.act()
