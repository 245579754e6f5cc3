"""One attempt (one try at a task), from its `Run` message to its answer. `Caller.run` calls all user code."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import get_ident
from time import perf_counter_ns
from typing import Any, cast

from ..wire import values
from ..wire.messages import Cause, Done, Ended, Failed, Message, Run, RunFlag, Yield
from . import after_call, blobs, context, limits
from .after_call import release_frames
from .between_tasks import Modes
from .environ import INFO_VARIABLE, Info, RankVariables, Variable
from .failure import failed, lacking
from .log_sender import LogSender
from .worker_streams import Streams

Answer = tuple[Message, list[int]]  # the message, and a list with its blob's descriptor, empty without a blob
Program = Callable[[Callable[[], Any]], Any]


_STREAM, _KEEP = int(RunFlag.STREAM), int(RunFlag.KEEP)


class Interrupted(BaseException):
    """Raised within a running task of a thread worker, to end the task."""


class Caller:
    """The code that runs attempts, each in the thread that calls `run`."""

    def __init__(self, info: Info, send: Callable[[Message, list[int]], None], log: LogSender, *, alone: bool) -> None:
        self._info = info
        self._send = send
        self._log = log
        self._alone = alone
        self.modes = Modes(alone=alone)
        self._variable = Variable(INFO_VARIABLE)
        self._ranks = RankVariables()
        # digest of a function -> its pickle, or the descriptor of the blob with its pickle
        self._codes: dict[bytes, bytes | int] = {}
        self._programs: dict[bytes, Program] = {}
        self.tasks: dict[int, tuple[context.TaskContext, int]] = {}  # attempt -> (running task, its thread)

    def define(self, function: bytes, code: bytes, fds: list[int]) -> None:
        if fds or code:  # otherwise the function's blob is missing: attempts that call the function fail
            self._codes[function] = fds.pop() if fds else code

    def run(self, run: Run, fds: list[int], streams: Streams | None, thread: int = 0) -> Answer:
        """Run one attempt and return its answer. Raises only `Interrupted`, if it arrives after the function's end."""
        task = self._entered(run, streams, thread)
        is_first_call = run.function not in self._programs
        began = perf_counter_ns()

        def load() -> Any:
            nonlocal began
            try:
                arguments = blobs.load(run.args, fds)
            except Exception as error:
                self.modes.note(
                    is_first_call=is_first_call, in_sessions=task.has_sessions
                )  # record the settings now, so that `restore` does not undo changes by a failed ``setup=``
                raise context.LoadError from error
            task.loading = False
            self.modes.note(is_first_call=is_first_call, in_sessions=task.has_sessions)
            began = perf_counter_ns()
            return arguments

        phase = "call"
        try:
            value = self._program(run.function)(load)
            if run.flags & _STREAM and streams is not None:
                self._stream(run.attempt, value, streams)
                value = None
            if task.closing:
                task.close(failed=False)
            took = _microseconds(began)
            phase = "dump"
            dumped, blob = blobs.dump(value, "result", sized=run.flags & _KEEP != 0)
            return Done(run.attempt, dumped, took), blob
        except Interrupted:
            return Ended(run.attempt, Cause.KILLED, 0, ""), []
        except BaseException as error:  # noqa: BLE001 - any error of user code becomes data
            raised = task.raised_ns or perf_counter_ns()
            answer, blob = _failed(run.attempt, phase, error, _microseconds(began))
            (release_frames if task.keeping is None else after_call.hold)(error)
            return aged(answer, raised), blob
        finally:
            self.tasks.pop(run.attempt, None)
            if task.closing:
                with suppress(Exception):  # ignored: the answer already has an error
                    task.close(failed=True)
            context.leave()
            self._log.finish(run.attempt)
            while fds:  # close the arguments' descriptor if an error came before the arguments were loaded
                os.close(fds.pop())
            if perf_counter_ns() - began > 1_000_000:  # only after tasks of over 1 ms: finding another port takes 15 us
                self._info.release_port()

    def _entered(self, run: Run, streams: Streams | None, thread: int) -> context.TaskContext:
        """Create the `TaskContext` of an attempt, and make it the current one of this process or thread."""
        fields, text = self._info.of(run.job, run.number, run.world, thread)
        task = context.TaskContext(
            run.attempt, run.job, run.number, fields, streams, log=self._log, place=thread, loading=True
        )
        task.keeping = after_call.keeping if self._alone and run.world is not None else None
        context.enter(task, alone=self._alone)
        self.tasks[run.attempt] = task, get_ident()
        self._variable.set(text)
        # not in a thread worker: its tasks share one environment, and may be ranks of different broadcasts
        if run.world is not None and self._alone:
            self._ranks.set(fields)
        elif self._ranks.present:
            self._ranks.clear()
        return task

    def _program(self, function: bytes) -> Program:
        if (program := self._programs.get(function)) is not None:
            return program
        try:
            if (code := self._codes.get(function)) is None:
                raise LookupError(f"function {function.hex()} was not defined on this node")
            program = cast("Program", pickle.loads(blobs.mapped(os.dup(code)) if isinstance(code, int) else code))
        except Exception as error:
            raise context.LoadError from error
        self._programs[function] = program
        return program

    def _stream(self, attempt: int, items: Iterator[Any], streams: Streams) -> None:
        """Compute and send the items of a stream, each only when the client has granted credit (allowed one more)."""
        index = 0
        while streams.wait_credit():
            try:
                item = next(items)
            except StopIteration:
                return
            value, blob = blobs.dump(item, f"item {index}")
            self._send(Yield(attempt, value), blob)
            index += 1
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _failed(attempt: int, phase: str, error: BaseException, took_us: int) -> Answer:
    if isinstance(error, context.LoadError):
        phase, error = error.phase, error.__cause__ or error
    elif isinstance(error, values.Unpicklable):
        return failed(attempt, "dump", error, took_us)
    if phase != "call" and limits.is_shortage(error):  # the node lacks memory or descriptors: no fault of the task
        return lacking(attempt, limits.story()), []
    return failed(attempt, phase, error, took_us)


def aged(answer: Message, since: int) -> Message:
    """Return the answer; in a `Failed` message, add the time since ``since`` (of `perf_counter_ns`) to ``ago_us``."""
    return answer._replace(ago_us=answer.ago_us + _microseconds(since)) if isinstance(answer, Failed) else answer


def _microseconds(began: int) -> int:
    return (perf_counter_ns() - began) // 1000
