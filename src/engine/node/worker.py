"""A worker process: it runs the attempts that arrive by its pipe, one after the other or one per thread.

Four effects of a task stay for the worker's later tasks: processes that it has started, the working directory,
environment variables (except those that Outrider sets for each task), and signal handlers. The process pools of loky
and inductor, and Python's resource tracker, rely on this. All other effects are undone after the task, or the process
is replaced: see `between_tasks`.

`RoutedStreams` are the standard streams of a worker with several threads: each line belongs to the task that writes it.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import io
import os
import pickle
import select
import socket
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import Context
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, NoReturn

from ..wire import codec
from ..wire.messages import (
    Adopt,
    Cause,
    Credit,
    Define,
    Drop,
    Ended,
    Failed,
    Input,
    Kill,
    Message,
    Output,
    Refer,
    Run,
    RunFlag,
    View,
)
from . import after_call, context, limits
from . import pipe as pipes
from .between_tasks import BetweenTasks, Cuda
from .blobs import adopt_shared, drop_shared
from .call import Answer, Caller, Interrupted, aged
from .environ import Info
from .failure import lacking
from .log_sender import LogSender
from .log_socket import LogEnd
from .output import STDERR, STDOUT, UNFINISHED_S, Lines, Printed
from .profiling import Profiling
from .worker_streams import Streams


class RoutedStreams:
    """The replacements of `sys.stdout` and `sys.stderr` in a thread worker."""

    def __init__(self, send: Callable[[Output], None], on_unfinished: Callable[[], None]) -> None:
        self._streams = {
            "stdout": _Routed(STDOUT, sys.stdout, send, on_unfinished),
            "stderr": _Routed(STDERR, sys.stderr, send, on_unfinished),
        }
        # "stdout" or "stderr" -> (stream that a task has set instead, attempts that ran when this was noticed)
        self._replaced: dict[str, tuple[object, frozenset[int]]] = {}
        for name, stream in self._streams.items():
            self._set(name, stream)

    def finish(self, attempt: int) -> None:
        """Send the beginnings of lines that the attempt has not ended, before its answer."""
        for stream in self._streams.values():
            stream.finish(attempt)

    def send_unfinished(self) -> None:
        """Send the beginnings of unended lines of all attempts, except an attempt that is sending output itself."""
        for stream in self._streams.values():
            stream.send_unfinished()

    def restore(self, running: Collection[int]) -> None:
        """Restore a stream that a task has replaced, once the replacement is closed or the task has surely ended."""
        for name, own in self._streams.items():
            stream = getattr(sys, name)
            if stream is own:
                continue
            if (noted := self._replaced.get(name)) is None or noted[0] is not stream:
                noted = self._replaced[name] = stream, frozenset(running)
            if getattr(stream, "closed", True) or noted[1].isdisjoint(running):
                del self._replaced[name]
                self._set(name, own)

    def _set(self, name: str, stream: _Routed) -> None:
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)  # libraries restore a redirected stream from this name


class _TaskLines(Lines):
    """The lines that one attempt in a thread worker writes to one stream.

    Acquire ``sending`` before you take lines, and release it when they are sent: this keeps their order.
    """

    def __init__(self, stream: int) -> None:
        super().__init__(stream)
        self.sending = threading.RLock()  # reentrant: a signal handler may print during a print


class _Routed(io.TextIOBase):
    """A standard stream whose lines are sent as output of the attempt that runs in the writing thread."""

    def __init__(
        self, stream: int, of_process: Any, send: Callable[[Output], None], on_unfinished: Callable[[], None]
    ) -> None:
        self._stream = stream
        self._of_process = of_process  # the original stream, used by threads that run no attempt
        self._send = send
        self._on_unfinished = on_unfinished
        self._lines: defaultdict[int, _TaskLines] = defaultdict(lambda: _TaskLines(stream))  # attempt -> its lines

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
        lines = self._lines[task.attempt]
        with lines.sending:
            for output in lines.feed(task.attempt, text.encode("utf-8", "backslashreplace")):
                self._send(output)
        if lines.holds:
            self._on_unfinished()
        return len(text)

    def flush(self) -> None:
        self._of_process.flush()

    def close(self) -> None:
        """Flush, but do not close: other tasks of this process write to the same stream."""
        self.flush()

    def finish(self, attempt: int) -> None:
        """Send the beginning of a line that the attempt has not ended."""
        if (lines := self._lines.pop(attempt, None)) is not None:
            with lines.sending:
                for output in lines.unfinished():
                    self._send(output)

    def send_unfinished(self) -> None:
        """Send the beginnings of unended lines of all attempts, except an attempt that is sending output itself."""
        for lines in [*self._lines.values()]:
            if lines.sending.acquire(blocking=False):
                try:
                    for output in lines.unfinished():
                        self._send(output)
                finally:
                    lines.sending.release()


_STREAMED = int(RunFlag.STREAM | RunFlag.ALONE)
_NONE_YET = 0  # stands for "no thread": the number of no real thread
_WINDOW_BYTES = 64 * 1024  # limit of unread output, as large as the capacity of a pipe
_USES_GPU_US = 1000  # a task that succeeds in a shorter time is assumed not to use the GPU


class WorkerProcess:
    """The base class of both kinds of workers: it reads the pipe, and holds the functions and objects received."""

    def __init__(
        self, pipe: socket.socket, index: int, setup: dict[str, Any], outputs: Mapping[int, int], *, alone: bool
    ) -> None:
        """Prepare the process to run tasks.

        Args:
            pipe: the worker's end of the pipe to the executor server.
            index: index of the worker's slot; `instance_info` shows it.
            setup: the content of the request `pipe.ORDER_SETUP`.
            outputs: descriptor 1 or 2 -> a duplicate, to restore it when a task has closed it.
            alone: whether the process runs one task at a time.
        """
        self._pipe = pipe
        self._pid = os.getpid()
        self._limits = limits.watched()
        self._cuda = Cuda()
        self._printed = Printed(outputs)
        self._info = Info(index, setup["address"], setup["hostname"])
        self.lock = threading.RLock()  # `Interrupted` is not raised in a thread that holds this lock
        log = LogSender(self._send, self.lock, wanted=setup["logs"])
        self._caller = Caller(self._info, self._send, log, alone=alone)
        Profiling(setup["folder"], tasks=self._caller.tasks, send=self._send, log=log, lock=self.lock)

    def serve(self) -> NoReturn:
        """Handle the messages from the pipe, until the executor server closes its end."""
        self._send_body(pipes.READY)
        while True:
            self._serve_next()

    def _serve_next(self) -> None:
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
        message = codec.decode_again(body)  # without validation, which the executor server has done
        match message:
            case Run():
                self._run(message, fds)
            case Define(function, code):
                self._caller.define(function, code, fds)
            case View(view):
                self._info.view(view)
            case Refer(_, names, values):
                adopt_shared(names[0], fds, values[0][1])
            case Adopt(blob):
                adopt_shared(blob, fds)
            case Drop(blobs):
                drop_shared(blobs)
            case _:
                self._handle_other(message, fds)

    def _handle_other(self, _message: Message, fds: list[int]) -> None:
        for fd in fds:  # the message is for a stream of an ended task: close its descriptors
            os.close(fd)

    def _run(self, run: Run, fds: list[int]) -> None:
        raise NotImplementedError

    def _on_lost_descriptors(self, body: bytes) -> None:
        """Handle a message that has lost its descriptors: let its attempt fail, or exit if it belongs to no attempt."""
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

    def _lost_gpu(self, answer: Message) -> bool:
        """Return whether the task has broken CUDA in this process, so that all later tasks would fail."""
        used = isinstance(answer, Failed) or getattr(answer, "duration_us", 0) >= _USES_GPU_US
        return used and self._cuda.has_failed()

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self._send_body(codec.body(message), fds)
        for fd in fds:
            os.close(fd)

    def _send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        # this process is a fork of the worker, made by a task whose function has returned here too: it must not answer
        if os.getpid() != self._pid:
            os._exit(0)
        pipes.send(self._pipe, body, fds)


class Worker(WorkerProcess):
    """A worker that runs one task at a time, in the main thread."""

    def __init__(
        self,
        pipe: socket.socket,
        index: int,
        setup: dict[str, Any],
        outputs: Mapping[int, int],
        *,
        fresh: bool,
        logged: LogEnd | None,
    ) -> None:
        """Prepare the process to run tasks.

        Args:
            fresh: whether the process ends after its first task.
            logged: the log socket for processes that tasks start; None if there is none.
        """
        super().__init__(pipe, index, setup, outputs, alone=True)
        self._fresh, self._logged = fresh, logged
        self._between = BetweenTasks(Caller.run.__code__, outputs.get(STDERR, STDERR))
        self._received: deque[pipes.Datagram] = deque()  # messages that arrived during the wait for the mark PAUSE

    def _receive(self) -> pipes.Datagram:
        return self._received.popleft() if self._received else super()._receive()

    def _run(self, run: Run, fds: list[int]) -> None:
        if run.flags & _STREAMED:
            with _Reader(self._pipe, Streams(run.attempt, self._send)) as streams:
                answer, blob = self._between.run(self._caller.run, run, fds, streams)
        else:
            answer, blob = self._between.run(self._caller.run, run, fds, None)
        if self._printed.settle() or (self._logged is not None and self._logged.pending()):
            since = perf_counter_ns()
            self._wait_until_output_is_read()
            answer = aged(answer, since)
        self._answer(run.attempt, answer, blob)
        after_call.free()
        if self._fresh:
            try:
                atexit._run_exitfuncs()
            finally:
                os._exit(0)
        spoiled = limits.spoiled(self._limits, getattr(answer, "duration_us", 0))
        if spoiled or self._between.has_threads or self._printed.is_redirected or self._lost_gpu(answer):
            os._exit(0)  # the next task might fail in this process: it gets another worker
        self._caller.modes.restore()

    def _on_lost_descriptors(self, body: bytes) -> None:
        super()._on_lost_descriptors(body)
        os._exit(0)  # a new worker has fewer open descriptors

    def _wait_until_output_is_read(self) -> None:
        """Wait until the executor server has read the task's output, and the log records of the task's processes.

        The output must reach the server before the task's answer and before the next task's output.
        """
        self._send_body(pipes.PAUSE)
        while (datagram := pipes.receive_next(self._pipe))[0] != pipes.PAUSE:
            if not datagram[0]:
                os._exit(0)
            self._received.append(datagram)


def without_item(message: Input) -> Input:
    """Return the message of a stream with an error in place of the item, because the item's descriptor is lost."""
    return message._replace(item=None, error=pickle.dumps(OSError(errno.EMFILE, limits.story())))


class _Reader:
    """A thread that reads the worker's pipe while a task with streams runs in the main thread."""

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
            elif isinstance(message, Adopt) and fds:
                adopt_shared(message.blob, fds)
            elif isinstance(message, Refer) and fds:
                adopt_shared(message.names[0], fds, message.values[0][1])


class ThreadWorker(WorkerProcess):
    """A worker that runs several attempts at once, each in a thread of its own.

    Threads cannot be killed. To end an attempt, `Interrupted` is raised in its thread. If the attempt does not react
    (it may wait in C code), the executor server kills the whole process. Output through `sys.stdout` and `sys.stderr`
    belongs to the task of the writing thread; output of C code and of child processes cannot be attributed so.
    """

    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], outputs: Mapping[int, int]) -> None:
        super().__init__(pipe, index, setup, outputs, alone=False)
        self._output_credit = threading.Condition(self.lock)
        self._unread_bytes = 0  # bytes of output that the executor server has not confirmed as read
        self._credit_requested = False
        self._unfinished = threading.Event()  # set while the beginning of a line waits to be sent
        self._routed = RoutedStreams(self._print, self._unfinished.set)
        self._size: int = setup["threads"]
        self._reading = threading.Lock()
        self._readable = select.poll()
        self._readable.register(self._pipe, select.POLLIN)
        self._runs: SimpleQueue[tuple[Run, list[int], Streams]] = SimpleQueue()
        self._streams: dict[int, Streams] = {}
        # attempt -> its thread, or `_NONE_YET` before it begins; an interrupted attempt is removed
        self._threads: dict[int, int] = {}

    def serve(self) -> NoReturn:
        for thread in range(self._size):
            threading.Thread(target=self._run_next, args=(thread,), daemon=True, name=f"outrider-{thread}").start()
        threading.Thread(target=self._send_unfinished, daemon=True, name="outrider-lines").start()
        super().serve()

    def _send_unfinished(self) -> NoReturn:
        while True:
            self._unfinished.wait()
            time.sleep(UNFINISHED_S)
            self._unfinished.clear()
            self._routed.send_unfinished()

    def _serve_next(self) -> None:
        self._readable.poll()
        with self._reading:
            super()._serve_next()

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
        base = context.of_tasks()
        while True:
            self._run_in(thread, base, *self._runs.get())
            self._caller.modes.restore()

    def _run_in(self, thread: int, base: Context, run: Run, fds: list[int], streams: Streams) -> None:
        """Run one attempt and send its answer, also if it is interrupted.

        `Interrupted` is raised at most once in this thread, and never after `_end`.
        """
        answer: Answer = Ended(run.attempt, Cause.KILLED, 0, ""), []
        try:
            if self._begin(run.attempt):
                answer = context.run_in_copy(base, self._caller.run, run, fds, streams, thread)
                self._routed.finish(run.attempt)
            self._end(run.attempt)
        except Interrupted:  # interrupted just before the task began, or just after its end
            self._end(run.attempt)
        self._routed.finish(run.attempt)
        with self.lock:
            self._printed.restore_descriptors()
            self._routed.restore(self._threads.keys())
        while fds:  # the arguments' descriptor, if they were not loaded
            os.close(fds.pop())
        streams.discard()
        if self._printed.is_redirected or self._lost_gpu(answer[0]):
            self._answer_and_leave(run.attempt, answer)
        else:
            self._answer(run.attempt, *answer)
        # restores limits; a limit that cannot be restored stays, because other tasks are running in this process
        limits.spoiled(self._limits, getattr(answer[0], "duration_us", 0))

    def _answer_and_leave(self, attempt: int, answer: Answer) -> None:
        """Send the answer, and end the process unless it runs other tasks.

        Other tasks may go on: perhaps they need no GPU, or print to other streams.
        """
        with self._reading:  # unread messages stay in the pipe, for the next process
            self._answer(attempt, *answer)
            if not self._streams:
                os._exit(0)

    def _begin(self, attempt: int) -> bool:
        with self.lock:
            if attempt not in self._threads:
                return False
            self._threads[attempt] = threading.get_ident()
            return True

    def _end(self, attempt: int) -> None:
        with self.lock:
            self._threads.pop(attempt, None)
            self._streams.pop(attempt, None)

    def _interrupt(self, attempt: int) -> None:
        with self.lock:
            streams = self._streams.get(attempt)
            if thread := self._threads.pop(attempt, _NONE_YET):
                raise_in(thread)
                self._output_credit.notify_all()  # the thread may wait to print
        if streams is not None:
            streams.wake()

    def _print(self, output: Output) -> None:
        """Send output of a task. Wait while too much output is unread by the executor server, unless the task ends."""
        with self.lock:
            while self._unread_bytes >= _WINDOW_BYTES and output.attempt in self._threads:
                if not self._credit_requested:
                    self._send_body(pipes.OUTPUT_CREDIT)
                    self._credit_requested = True
                self._output_credit.wait()
            self._unread_bytes += len(output.text)
            self._send(output)

    def _on_output_credit(self) -> None:
        with self.lock:
            self._unread_bytes, self._credit_requested = 0, False
            self._output_credit.notify_all()


def raise_in(thread: int) -> None:
    """Raise `Interrupted` in a thread, at its next Python instruction (not while it waits in C code)."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))
