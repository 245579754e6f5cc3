"""A worker process: runs attempts one after another, as they come out of its pipe, until it is killed.

A task finds what earlier ones left behind: processes that go on, the working directory, the environment but for what
is set for each task, signal handlers. The pools of loky and inductor and Python's resource tracker rely on that.
"""

from __future__ import annotations

import atexit
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
from . import limits, shared
from . import pipe as pipes
from .call import Caller
from .failure import lacking
from .info import Info
from .output import Printed
from .streams import Streams

_STREAMED = int(RunFlag.STREAM | RunFlag.ALONE)


class Worker:
    """A worker that runs one task at a time, in the only thread of the process that is Outrider's."""

    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, fresh: bool) -> None:
        self._pipe = pipe
        self._pid = os.getpid()
        self._fresh = fresh
        self._printed = Printed()
        self._info = Info(index, setup["address"], setup["hostname"])
        self._caller = Caller(self._info, self._send, alone=True)
        self._limits = limits.watched()
        self._behind: deque[tuple[bytes, list[int] | None]] = deque()  # came while we waited for something else

    def serve(self) -> NoReturn:
        pipes.send(self._pipe, pipes.BORN)
        while True:
            body, fds = self._behind.popleft() if self._behind else self._receive()
            if not body:
                os._exit(0)
            if fds is None:
                self._lack(body)
            message = codec.decode_again(body)  # the executor server has checked it
            match message:
                case Run():
                    self._run(message, fds)
                case Define(function, code):
                    self._caller.define(function, code, fds)
                case View(view):
                    self._info.view(view)
                case Adopt(blob):
                    shared.adopt(blob, fds)
                case Drop(blobs):
                    shared.drop(blobs)
                case _:  # for a stream whose task is over
                    for fd in fds:
                        os.close(fd)

    def _run(self, run: Run, fds: list[int]) -> None:
        if run.flags & _STREAMED:
            with _Reader(self._pipe, Streams(run.attempt, self._send)) as streams:
                answer, blob = self._caller.run(run, fds, streams)
        else:
            answer, blob = self._caller.run(run, fds, None)
        self._answer(answer, blob)
        if limits.spoiled(self._limits, getattr(answer, "duration_us", 0)):
            os._exit(0)  # the next task would be the one to suffer: it gets another worker
        if self._fresh:
            try:
                atexit._run_exitfuncs()
            finally:
                os._exit(0)

    def _answer(self, message: Message, blob: list[int]) -> None:
        try:
            if self._printed.settle():
                self._pause()
            self._send(message, blob)
        except OSError as error:
            if not limits.is_shortage(error):
                raise
            self._send(lacking(message.attempt, limits.story()))  # type: ignore[union-attr]  # an answer has one

    def _receive(self) -> tuple[bytes, list[int] | None]:
        """Return the next message and its descriptors; None in place of descriptors that are lost."""
        try:
            return pipes.receive(self._pipe)
        except limits.Truncated as error:
            return error.body, None

    def _lack(self, body: bytes) -> NoReturn:
        """Handle the loss of a message's descriptors: tell the attempt that it was for, and exit.

        A fresh worker, which holds fewer descriptors, takes over.
        """
        message = codec.decode_again(body) if body != pipes.SPILLED else None
        if isinstance(message, Run):
            self._send(lacking(message.attempt, limits.story()))
        else:
            os.write(2, f"{limits.story()}\n".encode())
        os._exit(0)

    def _pause(self) -> None:
        """Wait until the task's output is read: its answer must not overtake that, nor the next task's mix with it."""
        self._own()
        pipes.send(self._pipe, pipes.PAUSE)
        while (datagram := self._receive())[0] != pipes.PAUSE:
            if not datagram[0]:
                os._exit(0)
            self._behind.append(datagram)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self._own()
        pipes.send(self._pipe, codec.body(message), fds)
        for fd in fds:
            os.close(fd)

    def _own(self) -> None:
        if os.getpid() != self._pid:  # a child that the task forked, and that came back from it: it speaks for nobody
            os._exit(0)


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
            try:
                body, fds = pipes.receive(self._pipe)
            except limits.Truncated as error:
                body, fds = error.body, []
                if isinstance(message := codec.decode_again(body), Input):
                    body = codec.body(message._replace(item=None, error=pickle.dumps(error.as_plain())))
            if not body:
                os._exit(0)
            message = codec.decode_again(body)
            if isinstance(message, Credit | Input):
                self._streams.put(message, fds)
            elif isinstance(message, Drop):
                shared.drop(message.blobs)
