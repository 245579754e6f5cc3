"""A worker process: runs attempts as they come out of its pipe, one by one or one per thread, until it is killed.

Earlier tasks leave to later ones: running processes, the working directory, the environment except variables of each
task, and signal handlers. The pools of loky and inductor and Python's resource tracker rely on that. `between_tasks`
restores the rest, or ends the process.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import pickle
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
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
from .between_tasks import BetweenTasks
from .blobs import adopt_shared, drop_shared
from .call import Answer, Caller, Interrupted, aged
from .cuda_failure import Cuda
from .failure import lacking
from .info import Info
from .log_sender import LogSender
from .log_socket import LogEnd
from .output import STDERR, UNFINISHED_S, Printed
from .profiling import Profiling
from .routed_output import RoutedStreams
from .worker_streams import Streams

_STREAMED = int(RunFlag.STREAM | RunFlag.ALONE)
_NONE_YET = 0  # no thread has this number
_WINDOW_BYTES = 64 * 1024  # as much as a process's pipe takes
_USES_GPU_US = 1000  # a shorter task that did not fail is assumed not to use the GPU


class WorkerProcess:
    """The base of both kinds of workers: the pipe, and the functions and objects that the process has."""

    def __init__(
        self, pipe: socket.socket, index: int, setup: dict[str, Any], outputs: Mapping[int, int], *, alone: bool
    ) -> None:
        """``outputs``: of descriptors 1 and 2, duplicates from which those are restored."""
        self._pipe = pipe
        self._pid = os.getpid()
        self._limits = limits.watched()
        self._cuda = Cuda()
        self._printed = Printed(outputs)
        self._info = Info(index, setup["address"], setup["hostname"])
        self.lock = threading.RLock()  # a thread that holds it is not interrupted
        log = LogSender(self._send, self.lock, wanted=setup["logs"])
        self._caller = Caller(self._info, self._send, log, alone=alone)
        Profiling(setup["folder"], tasks=self._caller.tasks, send=self._send, log=log, lock=self.lock)

    def serve(self) -> NoReturn:
        """Handle the messages of the pipe until the other end is closed."""
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
        message = codec.decode_again(body)  # the executor server has checked it
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
        for fd in fds:  # of a stream whose task is over
            os.close(fd)

    def _run(self, run: Run, fds: list[int]) -> None:
        raise NotImplementedError

    def _on_lost_descriptors(self, body: bytes) -> None:
        """Answer an attempt whose message came without its descriptors; exit if the message was of another kind."""
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
        """Return whether a task has left CUDA in a state in which all later tasks of this process fail."""
        used = isinstance(answer, Failed) or getattr(answer, "duration_us", 0) >= _USES_GPU_US
        return used and self._cuda.has_failed()

    def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        self._send_body(codec.body(message), fds)
        for fd in fds:
            os.close(fd)

    def _send_body(self, body: bytes, fds: Sequence[int] = ()) -> None:
        if os.getpid() != self._pid:  # a child that a task forked has returned from the task: it must not answer
            os._exit(0)
        pipes.send(self._pipe, body, fds)


class Worker(WorkerProcess):
    """A worker that runs one task at a time, in the only thread of the process that is Outrider's."""

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
        """``logged``: the socket to which the task's processes log; None: they have none."""
        super().__init__(pipe, index, setup, outputs, alone=True)
        self._fresh, self._logged = fresh, logged
        self._between = BetweenTasks(Caller.run.__code__, outputs.get(STDERR, STDERR))
        self._received: deque[pipes.Datagram] = deque()  # received while it waited for another message

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
            os._exit(0)  # the next task gets another worker, instead of failing here
        self._caller.modes.restore()

    def _on_lost_descriptors(self, body: bytes) -> None:
        super()._on_lost_descriptors(body)
        os._exit(0)  # the next worker holds fewer descriptors

    def _wait_until_output_is_read(self) -> None:
        """Keep a task's answer from overtaking its output, and the next task's output from mixing with it.

        Also wait until the records of its processes are read.
        """
        self._send_body(pipes.PAUSE)
        while (datagram := pipes.receive_next(self._pipe))[0] != pipes.PAUSE:
            if not datagram[0]:
                os._exit(0)
            self._received.append(datagram)


def without_item(message: Input) -> Input:
    """Return a stream's message with an error in place of the item, whose descriptor is lost."""
    return message._replace(item=None, error=pickle.dumps(OSError(errno.EMFILE, limits.story())))


class _Reader:
    """A thread that reads the pipe's messages for a task with streams, while the task runs."""

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
    """A worker that runs several attempts at once, one per thread.

    Threads cannot be killed: `Interrupted` is raised in an attempt that is to end, also while it waits for its client;
    if it does not react (it may wait in C code) the executor server kills the whole process. Output through
    `sys.stdout` is attributed to tasks by thread; output of C code and child processes is not.
    """

    def __init__(self, pipe: socket.socket, index: int, setup: dict[str, Any], outputs: Mapping[int, int]) -> None:
        super().__init__(pipe, index, setup, outputs, alone=False)
        self._output_credit = threading.Condition(self.lock)
        self._unread_bytes = 0  # printed, and not yet confirmed as read
        self._credit_requested = False
        self._unfinished = threading.Event()  # a line without an end waits to be sent
        self._routed = RoutedStreams(self._print, self._unfinished.set)
        self._size: int = setup["threads"]
        self._reading = threading.Lock()
        self._readable = select.poll()
        self._readable.register(self._pipe, select.POLLIN)
        self._runs: SimpleQueue[tuple[Run, list[int], Streams]] = SimpleQueue()
        self._streams: dict[int, Streams] = {}
        self._threads: dict[int, int] = {}  # attempt -> its thread, `_NONE_YET` before it begins; not once interrupted

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
        """Run one attempt and answer it, whenever it is interrupted: that happens once, and not after `_end`."""
        answer: Answer = Ended(run.attempt, Cause.KILLED, 0, ""), []
        try:
            if self._begin(run.attempt):
                answer = context.run_in_copy(base, self._caller.run, run, fds, streams, thread)
                self._routed.finish(run.attempt)
            self._end(run.attempt)
        except Interrupted:  # before the task began, or after its end
            self._end(run.attempt)
        self._routed.finish(run.attempt)
        with self.lock:
            self._printed.restore_descriptors()
            self._routed.restore(self._threads.keys())
        while fds:  # never loaded
            os.close(fds.pop())
        streams.discard()
        if self._printed.is_redirected or self._lost_gpu(answer[0]):
            self._answer_and_leave(run.attempt, answer)
        else:
            self._answer(run.attempt, *answer)
        limits.spoiled(self._limits, getattr(answer[0], "duration_us", 0))  # a changed limit stays: others run too

    def _answer_and_leave(self, attempt: int, answer: Answer) -> None:
        """End the process, unless it has taken another task, which may not need the GPU or may use its own stdout."""
        with self._reading:  # messages still in the pipe go to the next process
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
                self._output_credit.notify_all()  # it may wait for that, or for its client
        if streams is not None:
            streams.wake()

    def _print(self, output: Output) -> None:
        """Send output; wait while too much of it is unread, unless the attempt is over."""
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
    """Raise `Interrupted` at that thread's next bytecode: code that waits in C is not interrupted."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(Interrupted))
