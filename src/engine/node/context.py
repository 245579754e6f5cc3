"""What a running task can ask about itself, and the iterators that stand for its streamed arguments.

Imported by user code's side of the engine (``runtime``, ``task``) on the client too, so it imports next to nothing.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .notice_page import NoticePage
    from .streams import Streams

BOARD = "OUTRIDER_BOARD"  # the environment variable that says where it can be opened


class TaskContext:
    """The running task. ``info`` is what `instance_info` is made from."""

    __slots__ = ("attempt", "closing", "info", "job", "number", "streams")

    def __init__(
        self, attempt: int, job: int, number: int, info: dict[str, Any], streams: Streams | None = None
    ) -> None:
        self.attempt = attempt
        self.job = job
        self.number = number  # 1 for the first attempt of this task
        self.info = info
        self.streams = streams
        self.closing: list[Callable[[bool], None]] = []  # see `close`

    def close(self, *, failed: bool) -> None:
        """The function has ended. What runs here may take its time, and what it raises the task has raised."""
        while self.closing:
            self.closing.pop()(failed)


class LoadError(Exception):
    """Raised ``from`` the real error by who cannot unpickle a function or its arguments: reported as phase "load"."""


def current() -> TaskContext | None:
    """The task this code runs in; in a process worker its threads too. None outside."""
    return _task.get() or _process.alone


def stepped(kind: str) -> None:
    """The task's loop has come round once more."""
    if on_step and (task := current()) in on_step:
        on_step[task](kind)


def board() -> NoticePage | None:
    """The node's; also in processes that a task starts. None outside of one."""
    if _process.board is None and (path := os.environ.get(BOARD)):
        _process.board = _opened(path)
    return _process.board


class Input(Iterator[Any]):
    """Stands for an argument that is streamed from the client; pickled with the arguments, live in the task."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._streams: Streams | None = None

    def __next__(self) -> Any:
        return _bound(self._streams).next(self.index)

    def close(self) -> None:
        """Take no more items: the client's iterator is closed."""
        _bound(self._streams).close(self.index)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _bind, (type(self), self.index)


class AsyncInput(AsyncIterator[Any]):
    """The same for asyncio."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._streams: Streams | None = None

    async def __anext__(self) -> Any:
        return await _bound(self._streams).anext(self.index)

    async def aclose(self) -> None:
        _bound(self._streams).close(self.index)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[object, ...]]:
        return _bind, (type(self), self.index)


def enter(task: TaskContext, *, alone: bool) -> None:
    """``alone``: the process runs one task at a time, so all of its threads are in it."""
    if alone:
        _process.alone = task
    else:
        _task.set(task)


def leave() -> None:
    if _process.alone is None:
        _task.set(None)
    _process.alone = None


def board_is(board: NoticePage) -> None:
    """In this process, and in those forked from it."""
    _process.board = board


on_step: dict[TaskContext | None, Callable[[str], None]] = {}  # who counts them: `testing.chaos` alone


class _Process:
    """What is the same for all threads of this process."""

    alone: TaskContext | None = None
    board: NoticePage | None = None


def _opened(path: str) -> NoticePage | None:
    from .notice_page import NoticePage

    try:
        return NoticePage(os.open(path, os.O_RDWR | os.O_CLOEXEC))
    except OSError:  # the node has ended
        os.environ.pop(BOARD, None)
        return None


def _bind(kind: type[Any], index: int) -> Any:
    stream = kind(index)
    task = current()
    stream._streams = task.streams if task is not None else None
    return stream


def _bound(streams: Streams | None) -> Streams:
    if streams is None:
        raise RuntimeError("this iterator stands for a streamed argument: only the task it was sent to can read it")
    return streams


_task: ContextVar[TaskContext | None] = ContextVar("outrider_task", default=None)
_process = _Process()
