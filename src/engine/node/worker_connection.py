"""The executor server's connection to a worker: the pipe for messages, and the pipes with the output of its tasks.

`Deliveries` delivers attempts over the connections: first everything that the attempt needs and its worker lacks (the
function, shared objects, the view of the pool), then its `Run` message.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..wire import codec
from ..wire import messages as wire
from ..wire.messages import Logged, Output
from . import pipe as pipes
from .blobs import BlobStore
from .inspection import StackMemory
from .log_socket import LogSocket
from .output import UNFINISHED_S, Lines

_READ_BYTES = 65536  # with a larger buffer, a read takes 16 us instead of 2 us, for an mmap
# of output before the worker is ready (which belongs to no attempt), so many bytes are kept
_WORDS_BYTES = 4096
_TAKE_READS = 4  # maximum reads per call, because the writers may never stop; a pipe has 64 KiB


class WorkerConnection:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        worker: int,
        *,
        on_readable: Callable[[WorkerConnection], None],
        on_output: Callable[[list[Output]], None],
        on_logged: Callable[[Logged, list[int]], None],
        running: Callable[[int], int],
        threads: int = 1,
    ) -> None:
        """Open the pipe. The worker's process is forked later, with the descriptors of `open_outputs`.

        Args:
            loop: the event loop that reads the pipes.
            worker: the worker's number.
            on_readable: called when messages have arrived; call `receive` then.
            on_output: called with output of the running attempt.
            on_logged: called with log records of processes of the running attempt, and their descriptors.
            running: returns the attempt that the worker with this number runs; 0: none.
            threads: number of threads in which the worker runs tasks.

        Raises:
            OSError: no descriptors are left.
        """
        self.worker = worker
        self.known: set[bytes] = set()  # digests of the functions that the worker has
        self.shared: dict[str, str] = {}  # name of a shared object that the worker has -> its blob
        self.view = b""
        self.ready = False  # whether the worker is ready; earlier output belongs to no attempt
        self.owes = 0  # number of attempts that were delivered and not answered
        self.last = 0  # the attempt delivered last
        self._loop = loop
        self._on_readable = on_readable
        self._on_output = on_output
        self._on_logged = on_logged
        self._running = running
        self._log: LogSocket | None = None
        self._pipe, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe.setblocking(False)
        self.stacks = StackMemory(threads)
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._outputs: dict[int, int] = {}  # 1 (stdout) or 2 (stderr) -> reading end of its pipe
        self._lines = {stream: Lines(stream) for stream in (1, 2)}
        self._unclaimed = dict.fromkeys(self._lines, b"")  # stream -> output that belongs to no attempt yet
        self._unfinished: asyncio.TimerHandle | None = None  # timer that sends the beginning of a line
        self._reading = False
        self._credit_requested = False
        loop.add_reader(self._pipe, on_readable, self)

    def open_outputs(self, folder: Path, *, reading: bool) -> list[int]:
        """Return the descriptors for the worker's process: pipe, stdout, stderr, stack file, log socket.

        The log socket is created in ``folder``; it is left out if that fails. The caller must close stdout and stderr.

        Args:
            folder: the node's private folder.
            reading: whether to read the output at once (see `read_outputs`).
        """
        fds = [self._far.fileno()]
        for stream in self._lines:
            self._outputs[stream], writing = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(self._outputs[stream], False)
            fds.append(writing)
        self.read_outputs(reading)
        fds.append(self.stacks.fd)
        with suppress(OSError):
            self._log = LogSocket(folder / f"log-{self.worker}")
            self._loop.add_reader(self._log.sock, self._log_readable)
            fds.append(self._log.sock.fileno())
        return fds

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message to the worker: at once, or when the worker has read earlier messages from the full pipe."""
        if not self._outgoing:
            try:
                pipes.send(self._pipe, body, fds)
            except BlockingIOError:
                self._loop.add_writer(self._pipe, self._drain)
            except ConnectionError:  # the worker has ended, which the fork server reports
                return
            else:
                return
        self._outgoing.append((body, tuple(os.dup(fd) for fd in fds)))

    def receive(self) -> Iterator[pipes.Datagram]:
        """Yield the messages that the worker has sent. Stop early once all delivered attempts are answered."""
        while True:
            try:
                datagram = pipes.receive(self._pipe)
            except (BlockingIOError, ConnectionError):
                return
            if not datagram[0]:
                return
            yield datagram
            if not self.owes:  # no more messages expected, and reading an empty pipe takes 3 us
                return

    def take_back(self) -> Iterator[bytes]:
        """Take back the messages that the worker has not read; yield their bodies, the oldest first."""
        with pipes.taking_back(self._far) as may:
            while may:
                try:
                    body, fds = pipes.receive(self._far, pipes.DO_NOT_WAIT)
                except (BlockingIOError, ConnectionError):
                    break
                _close(fds or ())  # not needed, because the store has the blobs
                yield body
        unsent, self._outgoing = self._outgoing, deque()
        if unsent:
            self._loop.remove_writer(self._pipe)
        for body, dups in unsent:
            _close(dups)
            yield body

    def read_outputs(self, reading: bool) -> None:
        """Stop or resume reading the output of tasks. While it is not read, pipes fill up, and printing tasks wait."""
        if reading == self._reading:
            return
        self._reading = reading
        for stream, fd in self._outputs.items():
            if reading:
                self._loop.add_reader(fd, self._readable, stream)
            else:
                self._loop.remove_reader(fd)
        self._grant_output_credit()

    def request_output_credit(self) -> None:
        """Handle the request of a thread worker to print more: permit it, now or when output is read again."""
        self._credit_requested = True
        self._grant_output_credit()

    def _grant_output_credit(self) -> None:
        if self._credit_requested and self._reading:
            self._credit_requested = False
            self.send(pipes.OUTPUT_CREDIT)

    def finish_outputs(self) -> list[Output]:
        """Return all unread output of the running attempt, including a last line without an end."""
        outputs: list[Output] = []
        for stream, lines in self._lines.items():
            for _ in range(_TAKE_READS):
                data = self._read(stream)
                if not data:
                    break
                self._unclaimed[stream] += data
            outputs += self._claim(stream)
            outputs += lines.unfinished()
        return outputs

    def receive_logged(self, *, rest: bool = True) -> None:
        """Receive the log records of processes that the running attempt has started.

        ``rest``: receive all records; if False, only a limited number, so that the event loop is not blocked.
        """
        if self._log is not None:
            attempt = self._running(self.worker) or self.last
            for records, fds in self._log.receive(rest=rest):
                self._on_logged(Logged(attempt, records, 0, "" if fds else None), fds)

    def _log_readable(self) -> None:
        self.receive_logged(rest=False)
        self._on_output([])  # makes the worker pool send the received records

    def last_words(self) -> str:
        """Return the output of a worker that was never ready, which usually shows why it could not start."""
        return b"".join(self._unclaimed.values()).decode(errors="replace").strip()

    def close(self) -> None:
        self._loop.remove_reader(self._pipe)
        self.read_outputs(reading=False)
        if self._unfinished is not None:
            self._unfinished.cancel()
        for _ in self.take_back():
            pass
        for fd in self._outputs.values():
            os.close(fd)
        self._outputs.clear()
        self._pipe.close()
        self._far.close()
        if self._log is not None:
            self._loop.remove_reader(self._log.sock)
            self._log.close()
        self.stacks.close()

    def _readable(self, stream: int) -> None:
        """Read output, and then the worker's messages, before the output is assigned to the running attempt.

        So an attempt whose result was still unread does not get the next attempt's output. (An attempt that has printed
        waits before it sends its result: see `Worker._wait_until_output_is_read`.)
        """
        self._unclaimed[stream] += self._read(stream)
        self._on_readable(self)
        if outputs := self._claim(stream):
            self._on_output(outputs)
        if self._unfinished is None and self._lines[stream].holds:
            self._unfinished = self._loop.call_later(UNFINISHED_S, self._send_unfinished)

    def _send_unfinished(self) -> None:
        self._unfinished = None
        if outputs := [output for lines in self._lines.values() for output in lines.unfinished()]:
            self._on_output(outputs)

    def _read(self, stream: int) -> bytes:
        fd = self._outputs.get(stream)
        if fd is None:
            return b""
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return b""
        if not data:  # end of file: all processes that had the pipe have ended
            self._loop.remove_reader(fd)
            os.close(self._outputs.pop(stream))
        return data

    def _claim(self, stream: int) -> list[Output]:
        """Return the output in `_unclaimed` as output of the running attempt; [] before the worker is ready."""
        if not self.ready:
            self._unclaimed[stream] = self._unclaimed[stream][-_WORDS_BYTES:]
            return []
        data, self._unclaimed[stream] = self._unclaimed[stream], b""
        return self._lines[stream].feed(self._running(self.worker) or self.last, data) if data else []

    def _drain(self) -> None:
        while self._outgoing:
            body, fds = self._outgoing[0]
            try:
                pipes.send(self._pipe, body, fds)
            except BlockingIOError:
                return
            except ConnectionError:
                pass
            self._outgoing.popleft()
            _close(fds)
        self._loop.remove_writer(self._pipe)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)


class Deliveries:
    """The node's functions, its latest view (list of nodes), and the messages for attempts that have no worker yet."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self.functions: dict[bytes, tuple[bytes, str | None]] = {}  # function -> (`Define` body, name of its blob)
        self.view = b""  # body of the latest `View` message
        # attempt -> (name, value) of each stored object that the attempt's arguments refer to
        self.lent: dict[int, tuple[tuple[str, wire.Value], ...]] = {}
        self._views: dict[int, bytes] = {}  # attempt of a rank -> body of the `View` for its broadcast
        # attempt that has no worker yet -> the stream messages for the attempt
        self._early: dict[int, list[tuple[wire.Input | wire.Credit, bytes]]] = {}

    def expect(self, run: wire.Run) -> bool:
        """Prepare for an attempt; return False if the node has no descriptor left for a blob that the attempt needs."""
        code = self.functions.get(run.function, (b"", None))[1]
        lent = self.lent.get(run.attempt)
        if self._store.lacks((run.args.blob, code, *([value.blob for _, value in lent] if lent else ()))):
            return False
        if run.world is not None:  # a newer view may arrive before the attempt has a worker
            self._views[run.attempt] = self.view
        return True

    def deliver(self, connection: WorkerConnection, run: wire.Run, body: bytes) -> None:
        view = self._views.get(run.attempt, self.view)
        if connection.view is not view:
            connection.view = view
            connection.send(view)
        if run.function not in connection.known and run.function in self.functions:
            connection.known.add(run.function)
            definition, blob = self.functions[run.function]
            fd = self._store.fd(blob)
            connection.send(definition, [] if fd is None else [fd])
        for name, value in self.lent.get(run.attempt, ()):
            blob = value.blob
            if blob and connection.shared.get(name) != blob and (fd := self._store.fd(blob)) is not None:
                connection.shared[name] = blob
                connection.send(codec.body(wire.Refer(run.attempt, (name,), (value,))), [fd])
        connection.last = run.attempt
        connection.owes += 1
        connection.send(body, self._blob(run.args))
        for message, early in self._early.pop(run.attempt, ()):
            self.pass_on(connection, message, early)

    def pass_on(self, connection: WorkerConnection | None, message: wire.Input | wire.Credit, body: bytes) -> None:
        """Send a stream's message to its attempt's worker; without a ``connection``, keep it until a worker exists."""
        if connection is not None:
            connection.send(body, self._blob(message.item if isinstance(message, wire.Input) else None))
        else:
            self._early.setdefault(message.attempt, []).append((message, body))

    def take_back(self, connection: WorkerConnection, message: wire.Message | None, body: bytes) -> None:
        """Arrange that a message that a worker left unread (not a `Run`) is sent again when a task needs it.

        If ``message`` is None, ``body`` is not a message of the protocol but a marker; it is sent again at once.
        """
        if isinstance(message, wire.Input | wire.Credit):  # the worker died before it read this message
            self._early.setdefault(message.attempt, []).append((message, body))
        elif isinstance(message, wire.Define):
            connection.known.discard(message.function)
        elif isinstance(message, wire.View):
            connection.view = b""
        elif isinstance(message, wire.Adopt):
            connection.shared.pop(message.blob, None)
        elif isinstance(message, wire.Refer):
            connection.shared.pop(message.names[0], None)
        elif isinstance(message, wire.Drop) or message is None:
            connection.send(body)

    def lend(self, attempt: int, names: Iterable[str], values: Iterable[wire.Value]) -> None:
        """Record the stored objects that an attempt's arguments refer to: their names, and their values in blobs."""
        self.lent[attempt] = (*self.lent.get(attempt, ()), *zip(names, values, strict=False))

    def renew(self, connection: WorkerConnection, blob: str) -> None:
        """Send the blob's current descriptor to a worker that has an older descriptor of the same blob."""
        for name, held in connection.shared.items():
            if held == blob and (fd := self._store.fd(blob)) is not None:
                connection.send(codec.body(wire.Adopt(name, "", 0)), [fd])

    def answered(self, attempt: int) -> None:
        if self.lent:
            self.lent.pop(attempt, None)
        if self._views:
            self._views.pop(attempt, None)

    def forget(self, attempt: int) -> None:
        """Drop all data kept for an attempt that has ended without running."""
        self._early.pop(attempt, None)
        self.lent.pop(attempt, None)
        self._views.pop(attempt, None)

    def _blob(self, value: wire.Value | None) -> list[int]:
        fd = self._store.fd(value.blob) if value is not None else None
        return [] if fd is None else [fd]
