"""The context of a running task: the facts it can read about itself, and the iterators of its streamed arguments.

User code's side of the engine (``runtime``, ``task``) imports this on the client too, so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .log_sender import LogSender
    from .notice_page import NoticePage
    from .profiling import Profiling
    from .stack_file import StackFile
    from .worker_streams import Streams

NOTICE_PAGE = "OUTRIDER_NOTICE_PAGE"  # the environment variable with the path of the notice page


class TaskContext:
    """The running task. ``info``: the source of `instance_info`."""

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
        self.place = place  # the index of its thread among the worker's task threads
        self.loading = loading  # whether its function or arguments are being loaded, which imports modules
        self.closing: list[Callable[[bool], None]] = []  # see `close`
        self.has_sessions = False  # of plugins, which may change settings of the process and restore them later
        self.keeping: Callable[[object, Callable[[], Any]], Any] | None = None  # calls a function, and keeps its locals
        self.raised_ns = 0  # `perf_counter_ns` of when its function raised; 0: it did not, or nothing followed

    def close(self, *, failed: bool) -> None:
        """Run the ``closing`` callbacks after the function's end. They may take long; the task raises their errors."""
        while self.closing:
            self.closing.pop()(failed)


class LoadError(Exception):
    """Raised ``from`` the real error where a function or its arguments cannot be loaded: reported as phase "load"."""

    phase = "load"


class SetupError(LoadError):
    """Raised ``from`` the real error where the setup of a function fails."""

    phase = "setup"


def current() -> TaskContext | None:
    """Return the current task, in a process worker on all threads. None outside of a task."""
    return _task.get() or _process.alone


def has_process(task: TaskContext) -> bool:
    """Return whether the task has its process to itself, including environment variables."""
    return _process.alone is task


def stepped(kind: str) -> None:
    """Note that the task's loop has come round once more, and report it to `on_step`."""
    task = current()
    if task is not None and _process.notes is not None:
        _process.notes.stepped(task.place)
    if on_step and task in on_step:
        on_step[task](kind)
    if on_profile_step is not None:
        on_profile_step(kind, None)


def signed(task: TaskContext) -> None:
    """Note a local sign of life of the calling task; no message is sent."""
    if _process.notes is not None:
        _process.notes.stepped(task.place)


def notice_page() -> NoticePage | None:
    """Return the node's notice page; processes that a task starts find it too. None outside of a node."""
    if _process.page is None and (path := os.environ.get(NOTICE_PAGE)):
        from .notice_page import NoticePage

        try:
            _process.page = NoticePage(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError:  # the node has ended
            os.environ.pop(NOTICE_PAGE, None)
    return _process.page


class _StreamedArgument:
    """The stand-in for an argument that is streamed from the client; pickled with the arguments, live in the task."""

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
        """Take no more items: the client's iterator is closed."""
        self._streams().close(self.index)


class AsyncInput(_StreamedArgument, AsyncIterator[Any]):
    async def __anext__(self) -> Any:
        return await self._streams().anext(self.index)

    async def aclose(self) -> None:
        self._streams().close(self.index)


def enter(task: TaskContext, *, alone: bool) -> None:
    """Set the running task. ``alone``: the process runs one task at a time, so all of its threads are in it."""
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
    """Return a copy of this thread's context, for `run_in_copy`.

    Without decimal's variable: its value can be changed in place, in all copies, and is made again where it is unset.
    """
    base = Context()
    for variable, value in copy_context().items():
        if variable.name != "decimal_context":
            base.run(variable.set, value)
    return base


def run_in_copy(base: Context, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a task in a copy of its thread's context: context variables that it sets are unset for the next task."""
    copy = base.copy()
    copy.run(_base.set, base)
    return copy.run(function, *arguments)


def run_setup(function: Callable[[], Any]) -> Any:
    """Run a setup, as `run_lasting` does. The process keeps its result."""
    _process.has_setups = True
    return run_lasting(function)


def run_lasting(function: Callable[[], Any]) -> Any:
    """Run a function that imports modules: context variables that they set stay set for this and all later tasks."""
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
    """Return whether this process keeps results of setups, which a new process would have to compute again."""
    return _process.has_setups


def set_notice_page(page: NoticePage) -> None:
    _process.page = page


def set_notes(notes: StackFile) -> None:
    """Set the place for the process's tasks to note their state."""
    _process.notes = notes


def set_profiling(profiling: Profiling) -> None:
    _process.profiling = profiling


def profiling() -> Profiling | None:
    """Return the profiler of this process's tasks. None outside of a node's own processes."""
    return _process.profiling


on_profile_step: Callable[[str, int | None], None] | None = None  # called at each step while a profile is under way
on_step: dict[TaskContext | None, Callable[[str], None]] = {}  # called at each step: `testing.chaos` alone uses it


class _Process:
    has_setups = False  # whether it keeps results of setups
    alone: TaskContext | None = None
    page: NoticePage | None = None
    notes: StackFile | None = None
    profiling: Profiling | None = None


def _live(kind: type[_StreamedArgument], index: int) -> _StreamedArgument:
    argument = kind(index)
    argument._task = current()
    return argument


_task: ContextVar[TaskContext | None] = ContextVar("outrider_task", default=None)
_base: ContextVar[Context | None] = ContextVar("outrider_base", default=None)  # in a task: see `run_in_copy`
_process = _Process()
