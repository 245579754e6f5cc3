"""A call's arguments, prepared for transport: streamed arguments stay in the client, and the task gets placeholders."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .compute import Decorated
    from .signatures import Streamed


class Detached(NamedTuple):
    """A call's arguments for transport.

    ``inputs``: the streamed arguments, replaced by placeholders, in the order of these.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: tuple[Iterable[Any] | AsyncIterable[Any], ...]


def detached(function: Decorated[...], args: tuple[Any, ...], kwargs: dict[str, Any], *, with_setup: bool) -> Detached:
    """Replace streamed arguments by placeholders, over which the task iterates instead.

    ``with_setup``: the function's first parameter receives the setup's result, and is not among the caller's arguments.
    """
    from ..node.context import AsyncInput, Input

    inputs: list[Iterable[Any] | AsyncIterable[Any]] = []

    def placed(argument: Any, how: Streamed) -> Any:
        if not how.takes(argument):
            return argument
        inputs.append(argument)
        return (AsyncInput if how.asynchronous else Input)(len(inputs) - 1)

    setup_args = (None,) if with_setup else ()
    bound = inspect.signature(function.function).bind(*setup_args, *args, **kwargs)
    for name, how in function.streamed.items():
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
