"""A worker process: runs attempts one after another, as they come out of its pipe, until it is killed.

A task finds what earlier ones left behind: processes that go on, the working directory, the environment but for what
is set for each task, signal handlers. The pools of loky and inductor and Python's resource tracker rely on that.
"""

from __future__ import annotations

import atexit
import errno
import os
import pickle
import select
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, NoReturn

from ..wire import codec
from ..wire.messages import Adopt, Credit, Define, Drop, Input, Message, Run, RunFlag, View
from . import limits
from . import pipe as pipes
from .blobs import adopt_shared, drop_shared
from .call import Caller
from .failure import lacking
from .info import Info
from .output import Printed
from .streams import Streams

_STREAMED = int(RunFlag.STREAM | RunFlag.ALONE)


class WorkerProcess:
    """The half of a worker that does not depend on how many tasks it runs at a time: its pipe, and what it knows."""

    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, alone: bool) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._limits = limits.watched()
        self._printed = Printed()
        self._info = Info(index, setup["address"], setup["hostname"])
        self._caller = Caller(self._info, self._send, alone=alone)

    def serve(self) -> NoReturn:
        """Run what comes out of the pipe until the other end is closed."""
        self._send_body(pipes.READY)
        while True:
            body, fds = self._receive()
            if not body:
                os._exit(0)
            if fds is None:
                self._on_lost_descriptors(body)
            else:
                self._handle(body, fds)

    def _receive(self) -> pipes.Datagram:
        return pipes.receive_next(self._pipe)

    def _handle(self, body: bytes, fds: list[int]) -> None:
        message = codec.decode_again(body)  # the executor server has checked it
        match message:
            case Run():
                self._run(message, fds)
            case Define(function, code):
                self._caller.define(function, code, fds)
            case View(view):
                self._info.view(view)
            case Adopt(blob):
                adopt_shared(blob, fds)
            case Drop(blobs):
                drop_shared(blobs)
            case _:
                self._handle_other(message, fds)

    def _handle_other(self, _message: Message, fds: list[int]) -> None:
        for fd in fds:  # of a stream whose task is over
            os.close(fd)

    def _run(self, run: Run, fds: list[int]) -> None:
        raise NotImplementedError

    def _on_lost_descriptors(self, body: bytes) -> None:
        """Answer the attempt whose message came without its descriptors; exit if the message was of another kind."""
        message = codec.decode_again(body) if body != pipes.SPILLED else None
        if not isinstance(message, Run):
            os.write(2, f"{limits.story()}\n".encode())
            os._exit(0)
        self._send(lacking(message.attempt, limits.story()))

    def _answer(self, attempt: int, message: Message, blob: list[int]) -> None:
        try:
            self._send(message, blob)
        except OSError as error:
            if not limits.is_shortage(error):
                raise
            self._send(lacking(attempt, limits.story()))

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self._send_body(codec.body(message), fds)
        for fd in fds:
            os.close(fd)

    def _send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        if os.getpid() != self._pid:  # a child that a task forked has come back from the task: it speaks for nobody
            os._exit(0)
        pipes.send(self._pipe, body, fds)


class Worker(WorkerProcess):
    """A worker that runs one task at a time, in the only thread of the process that is Outrider's."""

    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, fresh: bool) -> None:
        super().__init__(pipe, index, setup, alone=True)
        self._fresh = fresh
        self._received: deque[pipes.Datagram] = deque()  # while it waited for something else

    def _receive(self) -> pipes.Datagram:
        return self._received.popleft() if self._received else super()._receive()

    def _run(self, run: Run, fds: list[int]) -> None:
        if run.flags & _STREAMED:
            with _Reader(self._pipe, Streams(run.attempt, self._send)) as streams:
                answer, blob = self._caller.run(run, fds, streams)
        else:
            answer, blob = self._caller.run(run, fds, None)
        if self._printed.settle():
            self._wait_until_output_is_read()
        self._answer(run.attempt, answer, blob)
        if limits.spoiled(self._limits, getattr(answer, "duration_us", 0)):
            os._exit(0)  # the next task would be the one to suffer: it gets another worker
        if self._fresh:
            try:
                atexit._run_exitfuncs()
            finally:
                os._exit(0)

    def _on_lost_descriptors(self, body: bytes) -> None:
        super()._on_lost_descriptors(body)
        os._exit(0)  # the worker that takes over holds fewer descriptors

    def _wait_until_output_is_read(self) -> None:
        """Keep a task's answer from overtaking its output, and the next task's output from mixing with it."""
        self._send_body(pipes.PAUSE)
        while (datagram := pipes.receive_next(self._pipe))[0] != pipes.PAUSE:
            if not datagram[0]:
                os._exit(0)
            self._received.append(datagram)


def without_item(message: Input) -> Input:
    """Return a stream's message with an error in place of the item, whose descriptor is lost."""
    return message._replace(item=None, error=pickle.dumps(OSError(errno.EMFILE, limits.story())))


class _Reader:
    """Reads what comes for a task with streams out of the pipe, in a thread, while the task runs."""

    def __init__(self, pipe: socket.socket, streams: Streams) -> None:
        self._pipe = pipe
        self._streams = streams
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._read, daemon=True, name="outrider-streams")

    def __enter__(self) -> Streams:
        self._thread.start()
        return self._streams

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._streams.discard()

    def _read(self) -> None:
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        ready.register(self._stop, select.POLLIN)
        while all(fd != self._stop for fd, _ in ready.poll()):
            body, fds = pipes.receive(self._pipe)
            if not body:
                os._exit(0)
            message = codec.decode_again(body)
            if isinstance(message, Input) and fds is None:
                message = without_item(message)
            if isinstance(message, Credit | Input):
                self._streams.put(message, fds or [])
            elif isinstance(message, Drop):
                drop_shared(message.blobs)
