"""A worker process that runs several attempts at once, one per thread.

Threads cannot be killed: an attempt that is to end gets `Interrupted` raised in it, also where it waits for its client,
and when it does not react (it may wait in C code) the executor server kills the process with everything in it. What
tasks print through `sys.stdout` is told apart by thread; what C code and child processes print is not.
"""

from __future__ import annotations

import ctypes
import io
import os
import socket
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, NoReturn, cast

from ..wire import codec
from ..wire.messages import Cause, Credit, Ended, Input, Kill, Message, Output, Run
from . import context, limits
from . import pipe as pipes
from .call import Answer, Interrupted
from .output import STDERR, STDOUT, Lines
from .streams import Streams
from .worker import WorkerProcess, without_item

_NONE_YET = 0  # no thread has this number
_WINDOW_BYTES = 64 * 1024  # as much as a process's pipe takes


class ThreadWorker(WorkerProcess):
    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], *, fresh: bool) -> None:
        del fresh  # such a task gets a process worker
        super().__init__(pipe, index, setup, alone=False)
        self._lock = threading.RLock()  # a thread that holds it is not interrupted
        self._output_credit = threading.Condition(self._lock)
        self._unread_bytes = 0  # printed, and not yet confirmed as read
        self._credit_requested = False
        self._routed = _Routed(STDOUT, sys.stdout, self._print), _Routed(STDERR, sys.stderr, self._print)
        sys.stdout, sys.stderr = cast("Any", self._routed)
        self._size: int = setup["threads"]
        self._runs: SimpleQueue[tuple[Run, list[int], Streams]] = SimpleQueue()
        self._streams: dict[int, Streams] = {}
        self._threads: dict[int, int] = {}  # attempt -> its thread, `_NONE_YET` before it begins; not once interrupted

    def serve(self) -> NoReturn:
        for thread in range(self._size):
            threading.Thread(target=self._run_next, args=(thread,), daemon=True, name=f"outrider-{thread}").start()
        super().serve()

    def _handle(self, body: bytes, fds: list[int]) -> None:
        if body == pipes.OUTPUT_CREDIT:
            self._on_output_credit()
        else:
            super()._handle(body, fds)

    def _handle_other(self, message: Message, fds: list[int]) -> None:
        match message:
            case Kill(attempt):
                self._interrupt(attempt)
            case Credit() | Input() if (streams := self._streams.get(message.attempt)) is not None:
                streams.put(message, fds)
            case _:
                super()._handle_other(message, fds)

    def _on_lost_descriptors(self, body: bytes) -> None:
        message = codec.decode_again(body) if body != pipes.SPILLED else None
        if isinstance(message, Input):
            self._handle_other(without_item(message), [])
        else:
            super()._on_lost_descriptors(body)

    def _run(self, run: Run, fds: list[int]) -> None:
        self._streams[run.attempt] = streams = Streams(run.attempt, self._send)
        self._threads[run.attempt] = _NONE_YET
        self._runs.put((run, fds, streams))

    def _run_next(self, thread: int) -> None:
        while True:
            self._run_in(thread, *self._runs.get())

    def _run_in(self, thread: int, run: Run, fds: list[int], streams: Streams) -> None:
        """Run one attempt and answer it, whenever it is interrupted: that happens once, and not after `_end`."""
        answer: Answer = Ended(run.attempt, Cause.KILLED, 0, ""), []
        try:
            if self._begin(run.attempt):
                answer = self._caller.run(run, fds, streams, thread)
                self._finish_lines(run.attempt)
            self._end(run.attempt)
        except Interrupted:  # before the task began, or after it had ended
            self._end(run.attempt)
        self._finish_lines(run.attempt)
        while fds:  # never loaded
            os.close(fds.pop())
        streams.discard()
        self._answer(run.attempt, *answer)
        limits.spoiled(self._limits, getattr(answer[0], "duration_us", 0))  # a changed limit stays: others run here

    def _begin(self, attempt: int) -> bool:
        with self._lock:
            if attempt not in self._threads:
                return False
            self._threads[attempt] = threading.get_ident()
            return True

    def _end(self, attempt: int) -> None:
        with self._lock:
            self._threads.pop(attempt, None)
            self._streams.pop(attempt, None)

    def _interrupt(self, attempt: int) -> None:
        with self._lock:
            streams = self._streams.get(attempt)
            if thread := self._threads.pop(attempt, _NONE_YET):
                raise_in(thread)
                self._output_credit.notify_all()  # it may wait for that, or for its client
        if streams is not None:
            streams.wake()

    def _print(self, output: Output) -> None:
        """Send output; wait while too much of it is unread, unless the attempt is over."""
        with self._lock:
            while self._unread_bytes >= _WINDOW_BYTES and output.attempt in self._threads:
                if not self._credit_requested:
                    self._send_body(pipes.OUTPUT_CREDIT)
                    self._credit_requested = True
                self._output_credit.wait()
            self._unread_bytes += len(output.text)
            self._send(output)

    def _on_output_credit(self) -> None:
        with self._lock:
            self._unread_bytes, self._credit_requested = 0, False
            self._output_credit.notify_all()

    def _finish_lines(self, attempt: int) -> None:
        for stream in self._routed:
            stream.finish(attempt)


def raise_in(thread: int) -> None:
    """Raise `Interrupted` at that thread's next bytecode: code that waits in C is not disturbed."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))


class _Routed(io.TextIOBase):
    """A standard stream that sends whole lines on as the attempt's whose thread writes."""

    def __init__(self, stream: int, of_process: Any, send: Callable[[Output], None]) -> None:
        self._stream = stream
        self._of_process = of_process  # for threads that belong to no attempt
        self._send = send
        self._lines: dict[int, Lines] = {}  # by attempt

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"

    @property
    def buffer(self) -> Any:
        return self._of_process.buffer

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream

    def write(self, text: str, /) -> int:
        task = context.current()
        if task is None:
            return int(self._of_process.write(text))
        lines = self._lines.get(task.attempt)
        if lines is None:
            lines = self._lines[task.attempt] = Lines(self._stream)
        for output in lines.feed(task.attempt, text.encode("utf-8", "backslashreplace")):
            self._send(output)
        return len(text)

    def flush(self) -> None:
        self._of_process.flush()

    def finish(self, attempt: int) -> None:
        """Send the attempt's unfinished line."""
        if (lines := self._lines.pop(attempt, None)) is not None:
            for output in lines.finish():
                self._send(output)
