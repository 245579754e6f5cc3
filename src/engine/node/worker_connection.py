"""The executor server's end of one worker: the pipe with its unread messages, and the output of its tasks."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..wire.messages import Logged, Output
from . import pipe as pipes
from .log_socket import LogSocket
from .output import UNFINISHED_S, Lines
from .stack_reader import StackMemory

_READ_BYTES = 65536  # a larger buffer is mapped and unmapped for each read: 16 us instead of 2
# size limit of the output that is kept from before the worker is ready, which belongs to no attempt
_WORDS_BYTES = 4096
_TAKE_READS = 4  # reads per call, as a pipe's writers may never stop; the pipe's capacity is 64 KiB


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
        """Open the pipe. ``threads``: the number of threads in which the worker runs tasks."""
        self.worker = worker
        self.known: set[bytes] = set()  # digests of the functions that the worker has
        self.shared: dict[str, str] = {}  # name -> blob, of the shared objects that the worker has
        self.view = b""
        self.ready = False  # output from before this belongs to no attempt
        self.owes = 0  # missing answers: attempts delivered and not ended
        self.last = 0  # the attempt delivered last
        self._loop = loop
        self._on_readable = on_readable
        self._on_output = on_output
        self._on_logged = on_logged
        self._running = running
        self._log: LogSocket | None = None
        # raises OSError if no descriptors are left
        self._pipe, self._far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pipe.setblocking(False)
        self.stacks = StackMemory(threads)
        self._outgoing: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._outputs: dict[int, int] = {}  # stream -> reading end of its pipe
        self._lines = {stream: Lines(stream) for stream in (1, 2)}
        self._unclaimed = dict.fromkeys(self._lines, b"")  # output that is read, but not yet assigned to an attempt
        self._unfinished: asyncio.TimerHandle | None = None  # timer that sends lines without an end
        self._reading = False
        self._credit_requested = False
        loop.add_reader(self._pipe, on_readable, self)

    def open_outputs(self, folder: Path, *, reading: bool) -> list[int]:
        """Return a new process's descriptors: its pipe, stdout, stderr, its stack file, and its log socket.

        The log socket is in ``folder``; it is missing if it cannot be created. The caller must close stdout and stderr.
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
        """Send a message at once or, if the pipe is full, when the worker has read earlier messages."""
        if not self._outgoing:
            try:
                pipes.send(self._pipe, body, fds)
            except BlockingIOError:
                self._loop.add_writer(self._pipe, self._drain)
            except ConnectionError:  # the worker is gone; the fork server reports that
                return
            else:
                return
        self._outgoing.append((body, tuple(os.dup(fd) for fd in fds)))

    def receive(self) -> Iterator[pipes.Datagram]:
        """Yield all messages of the worker; once no answer is missing, stop after the next message."""
        while True:
            try:
                datagram = pipes.receive(self._pipe)
            except (BlockingIOError, ConnectionError):
                return
            if not datagram[0]:
                return
            yield datagram
            if not self.owes:  # reading an empty pipe would take 3 us
                return

    def take_back(self) -> Iterator[bytes]:
        """Yield the bodies that the worker has not read and will not read, oldest first."""
        with pipes.taking_back(self._far) as may:
            while may:
                try:
                    body, fds = pipes.receive(self._far, pipes.DO_NOT_WAIT)
                except (BlockingIOError, ConnectionError):
                    break
                _close(fds or ())  # None: the descriptors are lost, but the store has the blobs, and sends them again
                yield body
        unsent, self._outgoing = self._outgoing, deque()
        if unsent:
            self._loop.remove_writer(self._pipe)
        for body, dups in unsent:
            _close(dups)
            yield body

    def read_outputs(self, reading: bool) -> None:
        """Stop or resume reading the output of tasks. After a stop the pipes fill up, and tasks that print wait."""
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
        """Permit a worker whose threads print through its pipe to continue, as soon as output is read.

        Until then they wait.
        """
        self._credit_requested = True
        self._grant_output_credit()

    def _grant_output_credit(self) -> None:
        if self._credit_requested and self._reading:
            self._credit_requested = False
            self.send(pipes.OUTPUT_CREDIT)

    def finish_outputs(self) -> list[Output]:
        """Return everything that the running attempt has printed so far, including an unfinished last line."""
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
        """Receive what processes of the running attempt have logged; without ``rest``, only one turn's share."""
        if self._log is not None:
            attempt = self._running(self.worker) or self.last
            for records, fds in self._log.receive(rest=rest):
                self._on_logged(Logged(attempt, records, 0, "" if fds else None), fds)

    def _log_readable(self) -> None:
        self.receive_logged(rest=False)
        self._on_output([])  # sends the received records

    def last_words(self) -> str:
        """Return the worker's output from before it was ready, which usually shows why it could not start."""
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
        """Read output before messages, so that no output is attributed to an attempt whose result is still unread.

        (An attempt that has printed waits before it sends its result: see `Worker._wait_until_output_is_read`.)
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
        if not data:  # all processes that could print have ended
            self._loop.remove_reader(fd)
            os.close(self._outputs.pop(stream))
        return data

    def _claim(self, stream: int) -> list[Output]:
        """Return the unclaimed output of a stream as output of the running attempt."""
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
