"""`stdout`, `stderr` and `silent`: suppress the output of one function, and of nothing else."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context, ContextVar
from threading import Lock
from typing import Any, Literal, TypeVar, cast

from ..api.compute import WRAPPER, Kind, kind_of
from ..api.errors import SpecError
from ..api.instance import InstanceInfo
from ..node.context import current
from .instance_info import instance_info

F = TypeVar("F", bound=Callable[..., Any])
Only = Literal["head"] | Callable[[InstanceInfo], bool]


def stdout(*, only: Only) -> Callable[[F], F]:
    """Let only some ranks print: ``@stdout(only="head")``, or a predicate of `InstanceInfo`.

    Goes below or above `@compute`, or on any function. In a task's own process the descriptor itself is silenced: also
    output of native code, and whatever else the task prints meanwhile. In a thread, only ``sys.stdout`` is, for writes
    of that thread.
    """
    return _decorator(("stdout",), _checked("stdout", only))


def stderr(*, only: Only) -> Callable[[F], F]:
    """Let only some ranks print to standard error, as `stdout` does for standard output."""
    return _decorator(("stderr",), _checked("stderr", only))


def silent(function: F) -> F:
    """Suppress both streams on every rank."""
    return _decorator(("stdout", "stderr"), lambda _info: False)(function)


def _checked(name: str, only: Any) -> Callable[[InstanceInfo], bool]:
    if only == "head":
        return _is_head
    if not callable(only):
        raise SpecError(f'{name}(only=...) takes "head" or a function of instance_info(), not {only!r}')
    return cast("Callable[[InstanceInfo], bool]", only)


def _is_head(info: InstanceInfo) -> bool:
    return info.is_head


def _decorator(streams: Sequence[str], speaks: Callable[[InstanceInfo], bool]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        from ..api.compute import Decorated

        plain: Any = function
        output_filter = _OutputFilter(tuple(streams), speaks)
        if isinstance(plain, Decorated):
            return cast("F", plain.wrapped(lambda inner: _wrapped(inner, output_filter)))
        return cast("F", _wrapped(plain, output_filter))

    return decorate


class _OutputFilter:
    """The output filter of one function. It decides when the function runs whether to silence its streams.

    It can be pickled, as its wrapper must be.
    """

    def __init__(self, streams: tuple[str, ...], speaks: Callable[[InstanceInfo], bool]) -> None:
        self._streams = streams
        self._speaks = speaks

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with ExitStack() as stack:
            if not self._speaks(instance_info()):
                silenced = _descriptor_silenced if _alone() else _stream_silenced
                for stream in self._streams:
                    stack.enter_context(silenced(stream))
            yield


def _wrapped(function: Callable[..., Any], output_filter: _OutputFilter) -> Callable[..., Any]:
    """Wrap a function in one of the same kind. A generator is silenced while it runs, not while its consumer does."""
    wrapper = _WRAPPERS[kind_of(function)](function, output_filter)
    functools.update_wrapper(wrapper, function)
    setattr(wrapper, WRAPPER, True)
    return wrapper


def _filtered_function(function: Callable[..., Any], output_filter: _OutputFilter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with output_filter():
            return function(*args, **kwargs)

    return wrapper


def _filtered_coroutine(function: Callable[..., Any], output_filter: _OutputFilter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        with output_filter():
            return await function(*args, **kwargs)

    return wrapper


def _filtered_generator(function: Callable[..., Any], output_filter: _OutputFilter) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with output_filter():
            items = iter(function(*args, **kwargs))
        try:
            while True:
                with output_filter():
                    item = next(items, _END)
                if item is _END:
                    return
                yield item
        finally:
            if hasattr(items, "close"):
                with output_filter():
                    items.close()

    return wrapper


def _filtered_async_generator(function: Callable[..., Any], output_filter: _OutputFilter) -> Callable[..., Any]:
    async def wrapper(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        items = aiter(function(*args, **kwargs))
        try:
            while True:
                with output_filter():
                    item = await anext(items, _END)
                if item is _END:
                    return
                yield item
        finally:
            if hasattr(items, "aclose"):
                with output_filter():
                    await items.aclose()

    return wrapper


_WRAPPERS = {
    Kind.VALUE: _filtered_function,
    Kind.COROUTINE: _filtered_coroutine,
    Kind.ITERATOR: _filtered_generator,
    Kind.ASYNC_ITERATOR: _filtered_async_generator,
}


class _End:
    """A sentinel that is no item, also in wrappers that were pickled."""

    def __reduce__(self) -> str:
        return "_END"


_END = _End()


def _alone() -> bool:
    """Return whether this process runs this task and nothing else, so that its descriptors are the task's own."""
    return Context().run(current) is not None  # the process's own task is visible without any context


@contextmanager
def _descriptor_silenced(name: str) -> Iterator[None]:
    """Discard everything that this process writes there, including output of C code and of its children."""
    with _gates:
        if not _users[name]:
            _shut_descriptor(name)
        _users[name] += 1
    try:
        yield
    finally:
        with _gates:
            _users[name] -= 1
            if not _users[name]:  # coroutines and threads end in any order
                _open_descriptor(name)


def _shut_descriptor(name: str) -> None:
    _flush(name)
    descriptor = _DESCRIPTORS[name]
    _kept[name] = os.dup(descriptor)
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _open_descriptor(name: str) -> None:
    _flush(name)
    kept = _kept.pop(name)
    os.dup2(kept, _DESCRIPTORS[name])
    os.close(kept)


def _flush(name: str) -> None:
    """Flush the stream and C's buffers, so that a change of the descriptor does not affect earlier output."""
    try:
        getattr(sys, name).flush()
    except (AttributeError, OSError, ValueError):  # replaced or closed by the user's code
        pass
    import ctypes  # imported only where something is silenced

    ctypes.CDLL(None).fflush(None)


@contextmanager
def _stream_silenced(name: str) -> Iterator[None]:
    """Discard what this thread or coroutine prints, and nobody else's output."""
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
_users = dict.fromkeys(_DESCRIPTORS, 0)  # of a silenced descriptor
_kept: dict[str, int] = {}  # by stream: a copy of its original descriptor
_shut = {name: ContextVar(f"outrider_{name}_shut", default=False) for name in ("stdout", "stderr")}


class _Gate:
    """A text stream that discards the writes of some contexts."""

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
