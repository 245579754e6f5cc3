"""Inspect a user's function once: its kind, its arguments, and which of them are streamed."""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Generator, Iterable, Iterator
from enum import Enum, auto
from types import CodeType, FunctionType, UnionType
from typing import Any, Union, get_args, get_origin

WRAPPER = "__outrider_wrapper__"  # set on our wrappers, which pass every argument on


class Kind(Enum):
    """The kind of result that calling the function gives."""

    VALUE = auto()
    COROUTINE = auto()
    ITERATOR = auto()
    ASYNC_ITERATOR = auto()


class Streamed(Enum):
    """The way in which a parameter consumes its argument while the function runs."""

    ALWAYS = auto()  # Iterator[T]
    IF_ITERATOR = auto()  # Iterable[T]: a list is sent as a list
    ALWAYS_ASYNC = auto()  # AsyncIterator[T]
    IF_ITERATOR_ASYNC = auto()  # AsyncIterable[T]

    @property
    def asynchronous(self) -> bool:
        return self in (Streamed.ALWAYS_ASYNC, Streamed.IF_ITERATOR_ASYNC)

    def takes(self, argument: object) -> bool:
        """Return whether this argument is sent item by item."""
        if self in (Streamed.ALWAYS, Streamed.ALWAYS_ASYNC):
            return argument is not None and isinstance(argument, Iterable | AsyncIterable)
        return isinstance(argument, Iterator | AsyncIterator)


_STREAMS: dict[object, Streamed] = {
    Iterator: Streamed.ALWAYS,
    Generator: Streamed.ALWAYS,
    Iterable: Streamed.IF_ITERATOR,
    AsyncIterator: Streamed.ALWAYS_ASYNC,
    AsyncGenerator: Streamed.ALWAYS_ASYNC,
    AsyncIterable: Streamed.IF_ITERATOR_ASYNC,
}
_BY_NAME = {kind.__name__: streamed for kind, streamed in _STREAMS.items() if isinstance(kind, type)}


def kind_of(function: Callable[..., Any]) -> Kind:
    """The function's kind: by its type, or by its return annotation (a plain function may return an iterator)."""
    if inspect.isasyncgenfunction(function):
        return Kind.ASYNC_ITERATOR
    if inspect.isgeneratorfunction(function):
        return Kind.ITERATOR
    if inspect.iscoroutinefunction(function):
        return Kind.COROUTINE
    match _stream(getattr(function, "__annotations__", {}).get("return"), function):
        case Streamed.ALWAYS:
            return Kind.ITERATOR
        case Streamed.ALWAYS_ASYNC:
            return Kind.ASYNC_ITERATOR
        case _:
            return Kind.VALUE


def streamed_parameters(function: Callable[..., Any]) -> dict[str, Streamed]:
    """The parameters whose annotation asks for a stream, by name."""
    annotations = getattr(_own(function), "__annotations__", {})
    found = {name: _stream(annotation, function) for name, annotation in annotations.items() if name != "return"}
    return {name: streamed for name, streamed in found.items() if streamed is not None}


def argument_check(function: Callable[..., Any]) -> Callable[..., object]:
    """A function to call with a call's arguments: it raises the `TypeError` that the function itself would raise.

    That is Python's own argument binding in 0.1 us; `inspect.Signature.bind` takes 3 us, too much for a call of 20 us.
    """
    own = _own(function)
    if not isinstance(own, FunctionType):
        return inspect.signature(own).bind
    code = own.__code__
    stub = FunctionType(_stub_code(code), {}, own.__name__, own.__defaults__)
    stub.__kwdefaults__ = own.__kwdefaults__
    stub.__qualname__ = own.__qualname__
    return stub


def _nothing() -> None: ...


def _stub_code(code: CodeType) -> CodeType:
    """The code of a function with ``code``'s parameters that does nothing."""
    variadic = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    count = code.co_argcount + code.co_kwonlyargcount + variadic.bit_count()
    return _nothing.__code__.replace(
        co_argcount=code.co_argcount,
        co_posonlyargcount=code.co_posonlyargcount,
        co_kwonlyargcount=code.co_kwonlyargcount,
        co_nlocals=count,
        co_varnames=code.co_varnames[:count],
        co_flags=_nothing.__code__.co_flags | variadic,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
    )


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function below our wrappers. Other wrappers may change the arguments, so they count as functions."""
    while hasattr(function, WRAPPER):
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def _stream(annotation: object, function: Callable[..., Any]) -> Streamed | None:
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, function)
    if isinstance(annotation, str):  # names that exist only for type checkers: match the text
        return _BY_NAME.get(annotation.partition("[")[0].rpartition(".")[2])
    origin = get_origin(annotation) or annotation
    if origin in (Union, UnionType):
        return next(filter(None, (_stream(each, function) for each in get_args(annotation))), None)
    return _STREAMS.get(origin) if isinstance(origin, type) else None


def _evaluated(annotation: str, function: Callable[..., Any]) -> object:
    module = sys.modules.get(getattr(function, "__module__", ""), None)
    names = getattr(function, "__globals__", None) or getattr(module, "__dict__", {})
    try:
        return eval(annotation, names)  # noqa: S307  the user's own annotation, in the user's own module
    except Exception:  # noqa: BLE001  it may need names that only type checkers see
        return annotation
