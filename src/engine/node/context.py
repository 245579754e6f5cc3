"""The context of a running task: the information that the task can read about itself, and its streamed arguments.

Client programs import this module too (by ``runtime`` and ``task``), so it imports very few modules.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Protocol

    from ..wire.messages import Profiled
    from .log_sender import LogSender
    from .notice_page import NoticePage
    from .signal_requests import ProfileRequest, StackFile
    from .worker_streams import Streams

    class Profiling(Protocol):
        """The interface of `profiling.Profiling`, which makes the profiles of this process's tasks."""

        def begin(self, request: ProfileRequest, task: TaskContext, thread: int) -> Any: ...

        def next_block(self, task: TaskContext) -> int: ...

        def say(self, message: Profiled) -> None: ...


# environment variable with the path of the notice page, the node's shared memory for preemption notices
NOTICE_PAGE = "OUTRIDER_NOTICE_PAGE"


class TaskContext:
    """The running task. ``info``: the values that `instance_info` returns."""

    __slots__ = (
        "attempt", "closing", "has_sessions", "info", "job", "keeping", "loading", "log", "number", "place",
        "raised_ns", "streams",
    )  # fmt: skip

    def __init__(
        self,
        attempt: int,
        job: int,
        number: int,
        info: dict[str, Any],
        streams: Streams | None = None,
        *,
        log: LogSender | None = None,
        place: int = 0,
        loading: bool = False,
    ) -> None:
        self.attempt = attempt
        self.job = job
        self.number = number  # 1 for the first attempt of this task
        self.info = info
        self.streams = streams
        self.log = log
        self.place = place  # index of the task's thread among the worker's task threads
        self.loading = loading  # whether the worker is unpickling the function or its arguments, which imports modules
        self.closing: list[Callable[[bool], None]] = []  # callbacks for `close`; the argument: has the task failed?
        self.has_sessions = False  # whether a plugin has changed settings of the process that it restores at the end
        self.keeping: Callable[[object, Callable[[], Any]], Any] | None = None  # in a rank: `after_call.keeping`
        self.raised_ns = 0  # when the function raised, if cleanup followed (by `perf_counter_ns`); else 0

    def close(self, *, failed: bool) -> None:
        """Run the ``closing`` callbacks after the function's end. They may take long; their errors fail the task."""
        while self.closing:
            self.closing.pop()(failed)


class LoadError(Exception):
    """Raised ``from`` the original error when a function or its arguments cannot be unpickled.

    The client receives the original error with the phase "load".
    """

    phase = "load"


class SetupError(LoadError):
    """Raised ``from`` the original error when the ``setup=`` function of a function fails."""

    phase = "setup"


def current() -> TaskContext | None:
    """Return the current task, None outside of a task. In a process worker, it is the same in all threads."""
    return _task.get() or _process.alone


def has_process(task: TaskContext) -> bool:
    """Return whether no other task can run in the task's process, so that it may change environment variables."""
    return _process.alone is task


def stepped(kind: str) -> None:
    """Record that the task has completed one more step of its training loop, and call the callbacks for steps."""
    task = current()
    if task is not None and _process.notes is not None:
        _process.notes.stepped(task.place)
    if on_step and task in on_step:
        on_step[task](kind)
    if on_profile_step is not None:
        on_profile_step(kind, None)


def signed(task: TaskContext) -> None:
    """Record in the node's shared memory that this task makes progress. No message is sent."""
    if _process.notes is not None:
        _process.notes.stepped(task.place)


def notice_page() -> NoticePage | None:
    """Return the node's notice page (shared memory for preemption notices), None outside of a node.

    A process that a task has started finds the page by its environment.
    """
    if _process.page is None and (path := os.environ.get(NOTICE_PAGE)):
        from .notice_page import NoticePage

        try:
            _process.page = NoticePage(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:  # the node has ended
            os.environ.pop(NOTICE_PAGE, None)
    return _process.page


class _StreamedArgument:
    """An iterator that stands for an iterator argument of the client: in the task, it yields the streamed items."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._task: TaskContext | None = None

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _live, (type(self), self.index)

    def _streams(self) -> Streams:
        if self._task is None or self._task.streams is None:
            raise RuntimeError("this iterator stands for a streamed argument: only the task it was sent to can read it")
        return self._task.streams


class Input(_StreamedArgument, Iterator[Any]):
    def __next__(self) -> Any:
        return self._streams().next(self.index)

    def close(self) -> None:
        """Request no more items; the client then closes its iterator."""
        self._streams().close(self.index)


class AsyncInput(_StreamedArgument, AsyncIterator[Any]):
    async def __anext__(self) -> Any:
        return await self._streams().anext(self.index)

    async def aclose(self) -> None:
        self._streams().close(self.index)


def enter(task: TaskContext, *, alone: bool) -> None:
    """Make the task the current one.

    ``alone``: the process runs one task at a time, so the task is the current one in all threads of the process.
    """
    if alone:
        _process.alone = task
    else:
        _task.set(task)
        if _process.notes is not None:
            _process.notes.began(task.place, task.attempt)


def leave() -> None:
    if _process.alone is None:
        if _process.notes is not None and (task := _task.get()) is not None:
            _process.notes.began(task.place, 0)
        _task.set(None)
    _process.alone = None


def of_tasks() -> Context:
    """Return a copy of this thread's context variables, for `run_in_copy`.

    The variable of the module `decimal` is left out: its value is mutable, and all copies would share the value.
    Without a value, `decimal` creates a new one.
    """
    base = Context()
    for variable, value in copy_context().items():
        if variable.name != "decimal_context":
            base.run(variable.set, value)
    return base


def run_in_copy(base: Context, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in a copy of ``base``: context variables that the task sets do not reach the next task."""
    copy = base.copy()
    copy.run(_base.set, base)
    return copy.run(function, *arguments)


def run_setup(function: Callable[[], Any]) -> Any:
    """Run a ``setup=`` function as `run_lasting` does, and record that this process keeps the result of a setup."""
    _process.has_setups = True
    return run_lasting(function)


def run_lasting(function: Callable[[], Any]) -> Any:
    """Run a function that imports modules; context variables that these modules set stay set for all later tasks."""
    if (base := _base.get()) is None:
        return function()
    task = _task.get()

    def run() -> Any:
        _task.set(task)
        try:
            return function()
        finally:
            _task.set(None)

    before = dict(base.items())
    try:
        return base.run(run)
    finally:
        for variable, value in base.items():
            if variable is not _task and before.get(variable, before) is not value:
                variable.set(value)


def has_setups() -> bool:
    """Return whether this process keeps results of ``setup=``, which a new process would have to compute again."""
    return _process.has_setups


def set_notice_page(page: NoticePage) -> None:
    _process.page = page


def set_notes(notes: StackFile) -> None:
    """Set the file in which the tasks of this process record their attempt and their steps."""
    _process.notes = notes


def set_profiling(profiling: Profiling) -> None:
    _process.profiling = profiling


def profiling() -> Profiling | None:
    """Return the profiler of this process's tasks, None if this process is not a worker."""
    return _process.profiling


on_profile_step: Callable[[str, int | None], None] | None = None  # called at each step while a profile is running
on_step: dict[
    TaskContext | None, Callable[[str], None]
] = {}  # called at each step; used only by `testing.fault_injection`


class _Process:
    has_setups = False
    alone: TaskContext | None = None
    page: NoticePage | None = None
    notes: StackFile | None = None
    profiling: Profiling | None = None


def _live(kind: type[_StreamedArgument], index: int) -> _StreamedArgument:
    argument = kind(index)
    argument._task = current()
    return argument


_task: ContextVar[TaskContext | None] = ContextVar("outrider_task", default=None)
# within a task: the context of which the task's context is a copy (`run_in_copy`)
_base: ContextVar[Context | None] = ContextVar("outrider_base", default=None)
_process = _Process()
