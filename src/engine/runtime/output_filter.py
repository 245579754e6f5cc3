"""The decorators `stdout`, `stderr` and `silent`, which suppress the output of one function."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import Context, ContextVar
from threading import Lock
from typing import Any, Literal, TypeVar, cast

from ..api.compute import AsyncCompute, AsyncStreamCompute, Decorated, SyncCompute, SyncStreamCompute, kind_of
from ..api.errors import SpecError
from ..api.instance import InstanceInfo
from ..api.signatures import WRAPPER
from ..node.context import current
from .instance_info import instance_info

F = TypeVar("F", bound=Callable[..., Any])
Only = Literal["head"] | Callable[[InstanceInfo], bool]
Filter = Callable[[], AbstractContextManager[None]]


def stdout(*, only: Only) -> Callable[[F], F]:
    """Let only some ranks print to standard output.

    ``@stdout(only="head")`` lets only rank 0 print; ``only`` can also be a function that gets the `InstanceInfo` and
    returns whether the rank may print. Place the decorator below or above `@compute`, or on any function. In a task's
    own process it redirects the file descriptor. This also suppresses the output of native code, and everything else
    that the task prints at the same time. In a thread it suppresses only what that thread writes to ``sys.stdout``.
    """
    return _decorator(("stdout",), _checked("stdout", only))


def stderr(*, only: Only) -> Callable[[F], F]:
    """Let only some ranks print to standard error, as `stdout` does for standard output."""
    return _decorator(("stderr",), _checked("stderr", only))


def silent(function: F) -> F:
    """Suppress standard output and standard error of a function on every rank."""
    return _decorator(("stdout", "stderr"), lambda _info: False)(function)


def _checked(name: str, only: Any) -> Callable[[InstanceInfo], bool]:
    if only == "head":
        return lambda info: info.is_head
    if not callable(only):
        raise SpecError(f'{name}(only=...) takes "head" or a function of instance_info(), not {only!r}')
    return cast("Callable[[InstanceInfo], bool]", only)


def _decorator(streams: Sequence[str], speaks: Callable[[InstanceInfo], bool]) -> Callable[[F], F]:
    # a `partial` and not a closure, because it must be picklable
    filtered = functools.partial(_filtered, tuple(streams), speaks)

    def decorate(function: F) -> F:
        plain: Any = function
        if isinstance(plain, Decorated):
            return cast("F", plain.wrapped(lambda inner: _wrapped(inner, filtered)))
        return cast("F", _wrapped(plain, filtered))

    return decorate


@contextmanager
def _filtered(streams: tuple[str, ...], speaks: Callable[[InstanceInfo], bool]) -> Iterator[None]:
    """Discard output to ``streams`` during the block, unless this rank may print."""
    with ExitStack() as stack:
        if not speaks(instance_info()):
            silenced = _descriptor_silenced if _alone() else _stream_silenced
            for stream in streams:
                stack.enter_context(silenced(stream))
        yield


def _wrapped(function: Callable[..., Any], filtered: Filter) -> Callable[..., Any]:
    """Wrap a function in a function of the same kind: plain, async, generator or async generator.

    A generator is silenced only while it runs, not while its consumer runs.
    """
    wrapper = functools.wraps(function)(_WRAPPERS[kind_of(function)](function, filtered))
    setattr(wrapper, WRAPPER, True)
    return wrapper


def _filtered_function(function: Callable[..., Any], filtered: Filter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with filtered():
            return function(*args, **kwargs)

    return wrapper


def _filtered_coroutine(function: Callable[..., Any], filtered: Filter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with filtered():
            return await function(*args, **kwargs)

    return wrapper


def _filtered_generator(function: Callable[..., Any], filtered: Filter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with filtered():
            items = iter(function(*args, **kwargs))
        try:
            while True:
                try:
                    with filtered():
                        item = next(items)
                except StopIteration:
                    return
                yield item
        finally:
            if hasattr(items, "close"):
                with filtered():
                    items.close()

    return wrapper


def _filtered_async_generator(function: Callable[..., Any], filtered: Filter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        items = aiter(function(*args, **kwargs))
        try:
            while True:
                try:
                    with filtered():
                        item = await anext(items)
                except StopAsyncIteration:
                    return
                yield item
        finally:
            if hasattr(items, "aclose"):
                with filtered():
                    await items.aclose()

    return wrapper


_WRAPPERS: dict[type[Decorated[...]], Callable[[Callable[..., Any], Filter], Callable[..., Any]]] = {
    SyncCompute: _filtered_function,
    AsyncCompute: _filtered_coroutine,
    SyncStreamCompute: _filtered_generator,
    AsyncStreamCompute: _filtered_async_generator,
}


def _alone() -> bool:
    """Return whether this process runs only this task, so that the process's file descriptors belong to the task."""
    # `current` finds the task in the context variables or, if the process runs a single task, in a global variable. In
    # this new context, which has no variables, it finds only the latter.
    return Context().run(current) is not None


@contextmanager
def _descriptor_silenced(name: str) -> Iterator[None]:
    """Discard everything that this process writes to the stream, including output of C code and of its children."""
    descriptor = _DESCRIPTORS[name]
    with _gates:
        if not _users[name]:
            _flush(name)
            _kept[name] = os.dup(descriptor)
            _replace(descriptor, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC))
        _users[name] += 1
    try:
        yield
    finally:
        with _gates:
            _users[name] -= 1
            # coroutines and threads may leave their blocks in any order: the last one restores the descriptor
            if not _users[name]:
                _flush(name)
                _replace(descriptor, _kept.pop(name))


def _replace(descriptor: int, other: int) -> None:
    os.dup2(other, descriptor)
    os.close(other)


def _flush(name: str) -> None:
    """Flush the stream and C's buffers, so that earlier output still goes where the descriptor pointed before."""
    try:
        getattr(sys, name).flush()
    except (AttributeError, OSError, ValueError):  # user code has replaced or closed the stream
        pass
    import ctypes  # imported only if output is silenced

    ctypes.CDLL(None).fflush(None)


@contextmanager
def _stream_silenced(name: str) -> Iterator[None]:
    """Discard the output of this thread or coroutine only."""
    with _gates:
        gate = getattr(sys, name)
        if not isinstance(gate, _Gate):
            gate = _Gate(gate, _shut[name])
            setattr(sys, name, gate)
        gate.users += 1
    token = _shut[name].set(True)
    try:
        yield
    finally:
        _shut[name].reset(token)
        with _gates:
            gate.users -= 1
            if not gate.users and getattr(sys, name) is gate:
                setattr(sys, name, gate.stream)


_gates = Lock()
_DESCRIPTORS = {"stdout": 1, "stderr": 2}
_users = dict.fromkeys(_DESCRIPTORS, 0)  # by stream: number of blocks that silence its descriptor now
_kept: dict[str, int] = {}  # by silenced stream: duplicate of the descriptor's original
_shut = {name: ContextVar(f"outrider_{name}_shut", default=False) for name in ("stdout", "stderr")}


class _Gate:
    """A text stream that discards the output of contexts (threads and coroutines) in which ``shut`` is set."""

    def __init__(self, stream: Any, shut: ContextVar[bool]) -> None:
        self.stream = stream
        self.users = 0
        self._shut = shut

    def write(self, text: str) -> int:
        return len(text) if self._shut.get() else int(self.stream.write(text))

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
