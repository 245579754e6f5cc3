"""The executor server: the asyncio program of a node that talks to one client and to the node's workers.

`WorkerScheduler` makes the decisions, `Session` counts frames (so that none is lost when a connection breaks), and this
module receives and sends the bytes. All messages of one event are sent by one write.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..wire import codec
from ..wire import messages as wire
from ..wire.codec import ProtocolError
from ..wire.messages import Hello, Message, Replicate, Safe
from ..wire.session import FOR_NODES, FramesLost, Session, attempt_digest
from . import limits, rank_signals
from .blobs import BlobStore
from .client_channels import Arrivals, ByteStream, NewChannel
from .facts import facts, objection
from .freeports import FreePorts
from .inspection import ProfileRelay, StackAnswers
from .notice_page import NoticePage
from .notices import sources
from .notices.watcher import PreemptionWatcher
from .output import Backlog
from .peers import Peers
from .sampler import Gpus, Machine, Sampler
from .stored_blobs import DiskBlobs, Replicas
from .worker_pool import WorkerPool

RENEW_S = 1.0  # shortest interval between two renewals of the machine's lease
NODE_START_S = 0.015  # processor time that the start of a node needs (decision 79)
CLOSE_S = 6.0  # time limit for the workers' end; the fork server itself allows 5 s
VISIBLE = "CUDA_VISIBLE_DEVICES"
_KEPT_BYTES = 8 << 20  # with more bytes unacknowledged by the client, tasks that print must wait


class ExecutorServer:
    """The executor server of a node.

    The executor ends by itself, and sets ``ended``, in three cases: the client sends `Bye`, the lease expires (the
    client was silent for too long), or the fork server dies.

    Args:
        forks: the control socket of a fork server that serves only this executor.
        directory: the node's folder.
        address: the address at which other nodes reach this node.
        same_host: whether the client runs on this machine as the same user; then it opens large results by their path.
        accelerators: (name, memory in GB) of each GPU.
        sharing: the number of nodes on this computer.
        lease_s: seconds without a client after which the executor ends, until a client sets its own; None: never.
        lease_file: the file of the machine's lease (see `MachineLease`); "" if it has none.
    """

    def __init__(
        self,
        forks: socket.socket,
        *,
        directory: Path,
        address: str,
        same_host: bool,
        accelerators: Sequence[tuple[str, float]] = (),
        sharing: int = 1,
        lease_s: float | None = None,
        lease_file: str = "",
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._work = directory / "work"
        self._work.mkdir(exist_ok=True)
        self._address = address
        self.ended = asyncio.Event()
        self._accelerators, self._sharing = accelerators, sharing
        self._lease_s = lease_s
        self._machine_lease = MachineLease(lease_file)
        self._store = BlobStore(same_host=same_host)
        self._ports = FreePorts()
        self._notice_page = NoticePage()
        self._session = Session(FOR_NODES)
        self._session_name: str | None = None
        self._control: ControlChannel | None = None
        self._choked = False
        self._backlog = Backlog()
        self._flushing = False
        self._shortage_logged = False
        self._client_seen_at = self._loop.time()
        self._lease: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None
        self._workers = WorkerPool(
            forks,
            store=self._store,
            free_ports=self._ports,
            notice_page=self._notice_page,
            send=self._send_at_once,
            failed=self._end,
            devices=len(accelerators),
            folder=directory,
        )
        self._arrivals = Arrivals(self._store)
        self._peers = Peers(self._arrivals, address, self._send)
        self._disk_blobs = DiskBlobs(self._store, directory, moved=self._workers.moved, send=self._send)
        self._replicas = Replicas(self._store, self._send)
        self._sampler: Sampler | None = None
        self._stacks = StackAnswers(self._workers.under_way, self._send)
        self._profiles = ProfileRelay(self._workers.under_way, self._send, directory)
        self._watcher = PreemptionWatcher(self._notice_page, self._send, noticed=lambda: rank_signals.notify(directory))
        self._watcher.start([sources.PreemptFile(directory / "preempt")])
        self._check_lease()

    async def close(self) -> None:
        """Kill all processes of all tasks, and close all resources except the client's connections.

        May be called again. Takes up to `CLOSE_S` if a process hangs in the kernel. The connections stay open until
        this process ends: when they close, the client knows that no process of the node is left.
        """
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def listen(self, listener: socket.socket) -> asyncio.Server:
        self._loop.set_exception_handler(self._on_loop_error)
        return await self._loop.create_unix_server(self.channel, sock=listener)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log only once that no descriptor is left for a new connection: asyncio would log it 100 times a second."""
        if not limits.is_shortage(context.get("exception")):
            loop.default_exception_handler(context)
        elif not self._shortage_logged:
            self._shortage_logged = True
            print(limits.story("the executor server"), file=sys.stderr, flush=True)

    def channel(self) -> NewChannel:
        return NewChannel(self.greeted, self._arrivals)

    # --- the control channel -----------------------------------------------------------------------------------------

    def greeted(self, transport: asyncio.Transport, hello: Hello, rest: bytes) -> None:
        reason = self._objection(hello)
        if reason is not None:
            transport.write(codec.encode(wire.Refused(reason, self._facts())))
            transport.close()
            return
        resumed = self._session_name is not None
        if self._control is not None:
            before = self._control
            self.lost(before)
            before.transport.abort()
        self._session.resume(hello.received if resumed else 0)  # 0: an earlier executor's frames do not count
        self._control = control = ControlChannel(self, transport)
        transport.set_protocol(control)
        self._session_name = hello.session
        self._lease_s = hello.lease_s
        self._machine_lease.renew(self._loop.time())
        for entry in self._backlog.take():
            self._send(entry)
        welcome = wire.Welcome(
            wire.PROTOCOL_VERSION,
            resumed,
            self._session.received,
            self._facts(),
            self._store.names(),
            self._ports.open(),
        )
        transport.write(codec.encode(welcome) + self._session.flush())
        if not resumed:  # after the reply, since other starting nodes need the cores for their replies
            self._workers.open(
                hello.setup, cwd=str(self._work), address=self._address, after_s=others_start_s(self._sharing)
            )
            self._watcher.start(sources.named(hello.setup.get("notices", ())))
            self._start_sampler(hello.setup)
        self._watcher.greeted()
        self._throttle()
        self._check_lease()
        self.received(control, rest)

    def received(self, control: ControlChannel, data: bytes) -> None:
        if control is not self._control:
            return
        self._client_seen_at = self._loop.time()
        try:
            for message, body in self._session.feed_framed(data):
                self._obey(message, body)
        except FramesLost as error:
            self._end(str(error))
        except ProtocolError:  # the frame is malformed: close the connection; the session continues over the next one
            self.lost(control)
            control.transport.close()
        except Exception as error:  # noqa: BLE001 - a bug; later messages are lost, as they count as received
            traceback.print_exc()
            self._end(f"its executor failed ({type(error).__name__}: {error})")
        finally:
            self._workers.act()
            if self._session.pending:
                self._flush()
        self._throttle()

    def choked(self, control: ControlChannel, full: bool) -> None:
        if control is self._control:
            self._choked = full
            self._throttle()

    def lost(self, control: ControlChannel) -> None:
        if control is self._control:
            self._control = None
            self._choked = False
            self._session.lost()
            self._throttle()

    def _objection(self, hello: Hello) -> str | None:
        if self._closing is not None:
            return "this executor is ending"
        if self._session_name not in (None, hello.session):
            return "another session is in charge of this executor"
        return objection(hello)

    def _obey(self, message: Message, body: bytes) -> None:  # noqa: PLR0912 (a table)
        if self._workers.obey(message, body) or self._peers.obey(message):
            return
        match message:
            case wire.Drop(blobs):
                self._store.drop(blobs)
                self._peers.drop(blobs)
                self._workers.drop(blobs)
            case wire.Adopt(blob, path, size_bytes):
                self._store.adopt(blob, path, size_bytes)
            case Safe(blobs):
                self._store.mark_safe(blobs)
            case Replicate():
                self._replicas.handle(message)
            case wire.MoveToDisk(blobs):
                self._disk_blobs.move(blobs)
            case wire.PreemptionNotice() | wire.StopAt():
                self._watcher.received(message)
            case wire.ShowStacks():
                self._stacks.handle(message)
            case wire.Profile():
                self._profiles.handle(message)
            case wire.PortsTaken():
                self._ports.compare(message)
            case wire.Ping(sent_ms):
                self._workers.act()  # send the reports of ended attempts before the `Pong`
                attempts = attempt_digest(self._workers.scheduler.attempts())
                self._session.send(wire.Pong(sent_ms, time.time_ns() // 1000, self._session.sent, attempts))
                self._workers.look_at_kills()
                self._machine_lease.renew(self._client_seen_at)
            case wire.Bye():
                self._end()
            case _:
                pass

    def _facts(self) -> dict[str, Any]:
        return facts(self._address, self._accelerators, self._sharing)

    def _start_sampler(self, setup: dict[str, Any]) -> None:
        every_s = setup.get("sample_every")
        if every_s is None:
            return
        visible = setup.get("env", {}).get(VISIBLE, os.environ.get(VISIBLE))
        gpus = Gpus(visible) if self._accelerators else None
        self._sampler = Sampler(lambda: Machine(self._work, gpus), self._send_sample, every_s)
        self._sampler.start()

    # --- to the client -----------------------------------------------------------------------------------------------

    def _send(self, entry: Message | bytes) -> None:
        self._queue(entry)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _send_at_once(self, entries: Sequence[Message | bytes]) -> None:
        """Send these messages, which the worker pool creates for one event, in one write."""
        for entry in entries:
            if isinstance(entry, wire.Profiled):
                self._profiles.answered(entry)
            self._queue(entry)
        self._flush()

    def _send_sample(self, sampled: wire.Sampled) -> bool:
        """Send a sample of the machine's use; return False, without sending it, if the client is away or slow."""
        if self._control is None or self._choked:
            return False
        self._send(sampled)
        return True

    def _queue(self, entry: Message | bytes) -> None:
        if self._control is None or (isinstance(entry, wire.Logged) and not self._is_keeping_up()):
            self._backlog.add(entry)
            return
        if self._backlog:  # first the waiting log records: an attempt's answer must not overtake its records
            for each in self._backlog.take():
                self._to_session(each)
        self._to_session(entry)

    def _to_session(self, entry: Message | bytes) -> None:
        if isinstance(entry, bytes):
            self._session.send_body(entry)
        else:
            self._session.send(entry)

    def _flush(self) -> None:
        self._flushing = False
        if self._control is not None and (data := self._session.flush()):
            self._control.transport.write(data)
            self._throttle()

    def _throttle(self) -> None:
        """Pause or resume the reading of tasks' output and the sending of log records.

        While the client is away, output is read and queued, and the oldest output may be dropped. While the client is
        slow, output is not read, so tasks that print must wait. Tasks that log never wait: in both cases the oldest log
        records may be dropped.
        """
        keeping_up = self._is_keeping_up()
        self._workers.listen(keeping_up or self._control is None)
        if keeping_up and self._control is not None and self._backlog:
            for entry in self._backlog.take():
                self._send(entry)

    def _is_keeping_up(self) -> bool:
        return not self._choked and self._session.kept_bytes < _KEPT_BYTES

    # --- ending ------------------------------------------------------------------------------------------------------

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
            self._lease = None
        if self._lease_s is None or self._closing is not None:
            return
        left = self._client_seen_at + self._lease_s - self._loop.time()
        if left <= 0:
            self._end()
        else:
            self._lease = self._loop.call_later(left, self._check_lease)

    def _end(self, reason: str = "") -> None:
        """End the executor. ``reason``: why the node is unusable, for the client; "" if the end is a normal one."""
        if self._closing is None:
            if reason:
                self._send(wire.Unfit(reason, self._workers.has_run))
                self._flush()
            self._closing = self._loop.create_task(self._close())
            self._closing.add_done_callback(lambda _: self.ended.set())

    async def _close(self) -> None:
        if self._lease is not None:
            self._lease.cancel()
        if self._sampler is not None:
            self._sampler.close()
        await self._watcher.close()
        await self._stacks.close()
        await self._profiles.close()
        await self._peers.close()
        await self._workers.close(CLOSE_S)
        self._ports.close()
        self._store.close()
        self._notice_page.close()


class ControlChannel(ByteStream):
    """A client's connection for messages, after its first frame (`Hello`). Only the newest connection is used."""

    def __init__(self, server: ExecutorServer, transport: asyncio.Transport) -> None:
        super().__init__()
        self._server, self.transport = server, transport

    def data_received(self, data: bytes) -> None:
        self._server.received(self, data)

    def pause_writing(self) -> None:
        self._server.choked(self, True)

    def resume_writing(self) -> None:
        self._server.choked(self, False)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._server.lost(self)


def others_start_s(sharing: int) -> float:
    """Return for how many seconds this node delays the start of its workers, to leave the cores to other nodes.

    The delay is 0 unless this computer has more nodes (``sharing``) than cores: then each worker that is forked before
    it has a task slows down the start of the other nodes.
    """
    cores = len(os.sched_getaffinity(0))
    return NODE_START_S * sharing / cores if sharing > cores else 0.0


class MachineLease:
    """The machine's lease: a file that this process touches; the machine ends itself if the file gets too old.

    ``file``: the path of the file; "" if the machine has no lease.
    """

    def __init__(self, file: str) -> None:
        self._file = file
        self._due_at = -math.inf
        self._logged = False

    def renew(self, now: float) -> None:
        """Touch the file, because data has arrived from the client. Only the first failure is logged."""
        if not self._file or now < self._due_at:
            return
        self._due_at = now + RENEW_S
        try:
            os.utime(self._file)  # the current time; only the file's owner may set another time
        except OSError as error:
            if not self._logged:
                self._logged = True
                print(f"the machine's lease {self._file} is not renewed: {error.strerror}", file=sys.stderr, flush=True)


def serve(listener: socket.socket, forks: socket.socket, **options: Any) -> None:
    """Run the executor of a local node until it ends: see `providers.base.EntryPoints.executor`."""

    async def run() -> None:
        server = ExecutorServer(forks, address="127.0.0.1", **options)
        await server.listen(listener)
        await server.ended.wait()
        await server.close()

    limits.raise_descriptors()
    # no user code runs here, so garbage is rare, and frequent collections would only cost time
    gc.set_threshold(50_000, 50, 100)
    asyncio.run(run())
