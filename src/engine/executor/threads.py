"""A worker process that runs several attempts at once, one per thread.

Threads cannot be killed: an attempt that is to end gets `Interrupted` raised in it, and when it does not react the home
kills the process with everything in it. What tasks print through `sys.stdout` is told apart by thread; what C code and
child processes print is not.
"""

from __future__ import annotations

import ctypes
import io
import os
import socket
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from ..wire import codec
from ..wire.messages import Adopt, Credit, Define, Drop, Input, Kill, Message, Output, Run, View
from . import context, shared
from . import pipe as pipes
from .call import Caller, Interrupted
from .info import Info
from .output import STDERR, STDOUT, Printed
from .streams import Streams


class ThreadWorker:
    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, fresh: bool) -> None:
        del fresh  # such a task gets a process worker
        self._pipe = pipe
        self._pid = os.getpid()
        self._sending = threading.Lock()
        self._printed = Printed()
        sys.stdout = cast("Any", _Routed(STDOUT, sys.stdout, self._send))
        sys.stderr = cast("Any", _Routed(STDERR, sys.stderr, self._send))
        self._info = Info(index, setup["address"], setup["hostname"])
        self._caller = Caller(self._info, self._send, alone=False)
        self._lanes: int = setup["lanes"]
        self._runs: SimpleQueue[tuple[Run, list[int], Streams]] = SimpleQueue()
        self._streams: dict[int, Streams] = {}
        self._threads: dict[int, int] = {}  # attempt -> its thread
        self._killed: set[int] = set()  # before they had started

    def serve(self) -> NoReturn:
        for lane in range(self._lanes):
            threading.Thread(target=self._lane, args=(lane,), daemon=True, name=f"outrider-{lane}").start()
        while True:
            body, fds = pipes.receive(self._pipe)
            if not body:
                os._exit(0)
            message = codec.decode(body)
            match message:
                case Run():
                    self._streams[message.attempt] = streams = Streams(message.attempt, self._send)
                    self._runs.put((message, fds, streams))
                case Define(function, code):
                    self._caller.define(function, code, fds)
                case View(view):
                    self._info.view(view)
                case Adopt(blob):
                    shared.adopt(blob, fds)
                case Drop(blobs):
                    shared.drop(blobs)
                case Kill(attempt):
                    self._interrupt(attempt)
                case Credit() | Input():
                    if (found := self._streams.get(message.attempt)) is not None:
                        found.put(message, fds)
                case _:
                    pass

    def _lane(self, lane: int) -> None:
        while True:
            try:
                self._one(*self._runs.get(), lane)
            except Interrupted:  # came late: the answer is on its way, or the home's patience ends
                continue

    def _one(self, run: Run, fds: list[int], streams: Streams, lane: int) -> None:
        self._threads[run.attempt] = threading.get_ident()
        try:
            if run.attempt in self._killed:
                self._killed.discard(run.attempt)
                raise_in(threading.get_ident())
            answer, blob = self._caller.run(run, fds, streams, lane)
        finally:
            self._threads.pop(run.attempt, None)
            self._streams.pop(run.attempt, None)
        streams.discard()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _Routed):
                stream.finish(run.attempt)
        self._send(answer, blob)

    def _interrupt(self, attempt: int) -> None:
        if (thread := self._threads.get(attempt)) is not None:
            raise_in(thread)
        elif attempt in self._streams:
            self._killed.add(attempt)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        with self._sending:
            pipes.send(self._pipe, codec.body(message), fds)
        for fd in fds:
            os.close(fd)


def raise_in(thread: int) -> None:
    """`Interrupted`, at that thread's next bytecode: code that waits in C is not disturbed."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


class _Routed(io.TextIOBase):
    """A standard stream that sends whole lines on as the attempt's whose thread writes."""

    def __init__(self, stream: int, beyond: Any, send: Any) -> None:
        self._stream = stream
        self._beyond = beyond  # for threads that belong to no attempt
        self._send = send
        self._lines: dict[int, str] = {}  # attempt -> its unfinished line

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def buffer(self) -> Any:
        return self._beyond.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream

    def write(self, text: str, /) -> int:
        task = context.current()
        if task is None:
            return int(self._beyond.write(text))
        whole, newline, rest = (self._lines.get(task.attempt, "") + text).rpartition("\n")
        self._lines[task.attempt] = rest
        self._say(task.attempt, whole + newline)
        return len(text)

    def flush(self) -> None:
        self._beyond.flush()

    def finish(self, attempt: int) -> None:
        self._say(attempt, self._lines.pop(attempt, ""))

    def _say(self, attempt: int, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), 65536):
            self._send(Output(attempt, self._stream, data[start : start + 65536], 0))
