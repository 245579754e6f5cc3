"""A worker process that runs several attempts at once, one per thread.

Threads cannot be killed: an attempt that is to end gets `Interrupted` raised in it, also where it waits for its client,
and when it does not react (it may wait in C code) the executor server kills the process with everything in it. What
tasks print through `sys.stdout` is told apart by thread; what C code and child processes print is not.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from ..wire import codec
from ..wire.messages import Adopt, Cause, Credit, Define, Drop, Ended, Input, Kill, Message, Output, Run, View
from . import context, limits, shared
from . import pipe as pipes
from .call import Answer, Caller, Interrupted
from .failure import lacking
from .info import Info
from .lines import PIECE_BYTES
from .output import STDERR, STDOUT, Printed
from .streams import Streams

_NONE_YET = 0  # no thread has this number
_AHEAD_BYTES = 64 * 1024  # as much as a process's pipe takes


class ThreadWorker:
    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, fresh: bool) -> None:
        del fresh  # such a task gets a process worker
        self._pipe = pipe
        self._pid = os.getpid()
        self._limits = limits.watched()
        self._sending = threading.Lock()
        self._lock = threading.RLock()  # a thread that holds it is not interrupted
        self._room = threading.Condition(self._lock)
        self._ahead_bytes = 0  # printed, and not yet confirmed as read
        self._asked = False  # whether we have asked for that confirmation
        self._printed = Printed()
        self._routed = _Routed(STDOUT, sys.stdout, self._print), _Routed(STDERR, sys.stderr, self._print)
        sys.stdout, sys.stderr = cast("Any", self._routed)
        self._info = Info(index, setup["address"], setup["hostname"])
        self._caller = Caller(self._info, self._send, alone=False)
        self._lanes: int = setup["lanes"]
        self._runs: SimpleQueue[tuple[Run, list[int], Streams]] = SimpleQueue()
        self._streams: dict[int, Streams] = {}
        self._threads: dict[int, int] = {}  # attempt -> its thread, `_NONE_YET` before it begins; not once interrupted

    def serve(self) -> NoReturn:
        for lane in range(self._lanes):
            threading.Thread(target=self._lane, args=(lane,), daemon=True, name=f"outrider-{lane}").start()
        self._send_body(pipes.BORN)
        while True:
            try:
                body, fds = pipes.receive(self._pipe)
            except limits.Truncated as error:
                self._lack(error)
                continue
            if not body:
                os._exit(0)
            if body == pipes.ROOM:
                self._has_room()
            else:
                self._obey(codec.decode(body), fds)

    def _lack(self, error: limits.Truncated) -> None:
        """Handle the loss of a message's descriptors: the attempt that it was for is told."""
        message = codec.decode(error.body) if error.body != pipes.SPILLED else None
        if isinstance(message, Input):
            self._obey(message._replace(item=None, error=pickle.dumps(error.as_plain())), [])
            return
        if not isinstance(message, Run):
            os.write(2, f"{error.strerror}\n".encode())
            os._exit(0)
        self._send(lacking(message.attempt, str(error.strerror)))

    def _obey(self, message: Message, fds: list[int]) -> None:
        match message:
            case Run():
                self._streams[message.attempt] = streams = Streams(message.attempt, self._send)
                self._threads[message.attempt] = _NONE_YET
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
            case Credit() | Input() if (found := self._streams.get(message.attempt)) is not None:
                found.put(message, fds)
            case _:  # for a stream whose task is over
                for fd in fds:
                    os.close(fd)

    def _lane(self, lane: int) -> None:
        while True:
            self._one(*self._runs.get(), lane)

    def _one(self, run: Run, fds: list[int], streams: Streams, lane: int) -> None:
        """Run one attempt and answer it, whenever it is interrupted: that happens once, and not after `_over`."""
        answer: Answer = Ended(run.attempt, Cause.KILLED, 0, ""), []
        try:
            if self._begins(run.attempt):
                answer = self._caller.run(run, fds, streams, lane)
                self._finish_lines(run.attempt)
            self._over(run.attempt)
        except Interrupted:  # before the task began, or after it had ended
            self._over(run.attempt)
        self._finish_lines(run.attempt)
        while fds:  # never loaded
            os.close(fds.pop())
        streams.discard()
        try:
            self._send(*answer)
        except OSError as error:
            if not limits.is_shortage(error):
                raise
            self._send(lacking(run.attempt, limits.story()))
        limits.spoiled(self._limits, getattr(answer[0], "duration_us", 0))  # what is stays: others run in this process

    def _begins(self, attempt: int) -> bool:
        with self._lock:
            if attempt not in self._threads:
                return False
            self._threads[attempt] = threading.get_ident()
            return True

    def _over(self, attempt: int) -> None:
        with self._lock:
            self._threads.pop(attempt, None)
            self._streams.pop(attempt, None)

    def _interrupt(self, attempt: int) -> None:
        with self._lock:
            streams = self._streams.get(attempt)
            if thread := self._threads.pop(attempt, _NONE_YET):
                raise_in(thread)
                self._room.notify_all()  # it may wait for it, or for its client
        if streams is not None:
            streams.wake()

    # --- what tasks print --------------------------------------------------------------------------------------------

    def _print(self, output: Output) -> None:
        """Send output; wait while the executor server is too far behind, unless the attempt is over."""
        with self._lock:
            while self._ahead_bytes >= _AHEAD_BYTES and output.attempt in self._threads:
                if not self._asked:
                    self._send_body(pipes.ROOM)
                    self._asked = True
                self._room.wait()
            self._ahead_bytes += len(output.text)
            self._send(output)

    def _has_room(self) -> None:
        with self._lock:
            self._ahead_bytes, self._asked = 0, False
            self._room.notify_all()

    def _finish_lines(self, attempt: int) -> None:
        for stream in self._routed:
            stream.finish(attempt)

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self._send_body(codec.body(message), fds)
        for fd in fds:
            os.close(fd)

    def _send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        if os.getpid() != self._pid:
            os._exit(0)
        with self._sending:
            pipes.send(self._pipe, body, fds)


def raise_in(thread: int) -> None:
    """Raise `Interrupted` at that thread's next bytecode: code that waits in C is not disturbed."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


class _Routed(io.TextIOBase):
    """A standard stream that sends whole lines on as the attempt's whose thread writes."""

    def __init__(self, stream: int, beyond: Any, say: Callable[[Output], None]) -> None:
        self._stream = stream
        self._beyond = beyond  # for threads that belong to no attempt
        self._say = say
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
        self._cut(task.attempt, whole + newline)
        return len(text)

    def flush(self) -> None:
        self._beyond.flush()

    def finish(self, attempt: int) -> None:
        self._cut(attempt, self._lines.pop(attempt, ""))

    def _cut(self, attempt: int, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")
        for start in range(0, len(data), PIECE_BYTES):
            self._say(Output(attempt, self._stream, data[start : start + PIECE_BYTES], 0))
