"""A call's arguments in the form in which they are sent: streamed arguments are replaced by placeholders."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .signatures import Streamed


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
