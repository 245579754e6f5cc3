"""The signatures of users' functions: their parameters, which of these are streamed, and a call's arguments in the form
in which they are sent.

A streamed parameter consumes its argument item by item while the function runs.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from types import CodeType, FunctionType, UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin

WRAPPER = "__outrider_wrapper__"  # set on Outrider's wrappers, which pass on every argument


class Streamed(NamedTuple):
    """The way in which a parameter consumes its argument while the function runs."""

    always: bool  # False: only if the value is an iterator; a list is sent as a list
    asynchronous: bool

    def takes(self, argument: object) -> bool:
        if self.always:
            return argument is not None and isinstance(argument, Iterable | AsyncIterable)
        return isinstance(argument, Iterator | AsyncIterator)


_STREAMS: dict[object, Streamed] = {
    Iterator: Streamed(always=True, asynchronous=False),
    Generator: Streamed(always=True, asynchronous=False),
    Iterable: Streamed(always=False, asynchronous=False),
    AsyncIterator: Streamed(always=True, asynchronous=True),
    AsyncGenerator: Streamed(always=True, asynchronous=True),
    AsyncIterable: Streamed(always=False, asynchronous=True),
}
_BY_NAME = {kind.__name__: streamed for kind, streamed in _STREAMS.items() if isinstance(kind, type)}


def streamed_parameters(function: Callable[..., object]) -> dict[str, Streamed]:
    """Return the streamed parameters by name, whose arguments are consumed while the function runs."""
    called = called_of(_own(function))
    annotations = getattr(called, "__annotations__", {})
    parameters = {name: streamed(each, called) for name, each in annotations.items() if name != "return"}
    return {name: how for name, how in parameters.items() if how is not None}


def argument_check(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function that checks a call's arguments: it raises the `TypeError` that the function itself would raise.

    It uses Python's own argument binding, which takes 0.1 us; `inspect.Signature.bind` takes 3 us, too much for a call
    of 20 us.
    """
    own = _own(function)
    if not isinstance(own, FunctionType):
        try:
            return inspect.signature(own).bind
        except Exception:  # noqa: BLE001  of a builtin, or of an object with an `==` of its own: the node checks it
            return _anything
    code = own.__code__
    stub = FunctionType(_stub_code(code), {}, own.__name__, own.__defaults__)
    stub.__kwdefaults__ = own.__kwdefaults__
    stub.__qualname__ = own.__qualname__
    return stub


def called_of(function: Callable[..., object]) -> Callable[..., object]:
    """Return the ``__call__`` method of an object whose class defines it; return other callables unchanged."""
    call = getattr(type(function), "__call__", None)  # noqa: B004  the function itself
    return call if isinstance(call, FunctionType) and not isinstance(function, type) else function


def _nothing() -> None: ...


def _anything(*_args: object, **_options: object) -> None: ...


def _stub_code(code: CodeType) -> CodeType:
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


def _own(function: Callable[..., object]) -> Callable[..., object]:
    """Return the user's function below Outrider's wrappers.

    Other wrappers are kept, because they may change the arguments.
    """
    while hasattr(function, WRAPPER):
        function = function.__wrapped__  # type: ignore[attr-defined]
    return function


def streamed(annotation: object, function: Callable[..., object]) -> Streamed | None:
    """Return how an annotation of ``function`` marks a value as streamed; None: the value is not streamed."""
    if isinstance(annotation, str):
        annotation = _evaluated(annotation, function)
    # the annotation may have names that exist only for type checkers, so match its text
    if isinstance(annotation, str):
        return _BY_NAME.get(annotation.partition("[")[0].rpartition(".")[2])
    origin = get_origin(annotation) or annotation
    if origin in (Union, UnionType):
        return next(filter(None, (streamed(each, function) for each in get_args(annotation))), None)
    return _STREAMS.get(origin) if isinstance(origin, type) else None


def _evaluated(annotation: str, function: Callable[..., object]) -> object:
    module = sys.modules.get(getattr(function, "__module__", ""), None)
    names = getattr(function, "__globals__", None) or getattr(module, "__dict__", {})
    try:
        return eval(annotation, names)  # noqa: S307  the user's own annotation, in the user's own module
    except Exception:  # noqa: BLE001  it may need names that only type checkers see
        return annotation


class Detached(NamedTuple):
    """A call's arguments in the form in which they are sent.

    ``args`` and ``kwargs`` contain numbered placeholders in place of streamed arguments. ``inputs`` has the streamed
    arguments themselves, in the order of these numbers.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Iterable[Any] | AsyncIterable[Any], ...]


def detached(
    function: Callable[..., Any],
    streamed: Mapping[str, Streamed],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    with_setup: bool,
) -> Detached:
    """Replace streamed arguments by placeholders. The task iterates over a placeholder to get the items.

    If ``with_setup`` is True, the function's first parameter is for the setup's result, and ``args`` do not include it.
    """
    from ..node.context import AsyncInput, Input

    inputs: list[Iterable[Any] | AsyncIterable[Any]] = []

    def placed(argument: Any, how: Streamed) -> Any:
        if not how.takes(argument):
            return argument
        inputs.append(argument)
        return (AsyncInput if how.asynchronous else Input)(len(inputs) - 1)

    setup_args = (None,) if with_setup else ()
    bound = inspect.signature(function).bind(*setup_args, *args, **kwargs)
    for name, how in streamed.items():
        if name not in bound.arguments:
            continue
        match bound.signature.parameters[name].kind:
            case inspect.Parameter.VAR_POSITIONAL:
                bound.arguments[name] = tuple(placed(each, how) for each in bound.arguments[name])
            case inspect.Parameter.VAR_KEYWORD:
                bound.arguments[name] = {key: placed(each, how) for key, each in bound.arguments[name].items()}
            case _:
                bound.arguments[name] = placed(bound.arguments[name], how)
    return Detached(bound.args[len(setup_args) :], bound.kwargs, tuple(inputs))
