"""Plugins as decorators, for functions that need them in any pool: ``@integrations.torch`` under `@compute`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Literal, TypeVar, cast, overload

from .plugins.base import Plugin, merged

F = TypeVar("F", bound=Callable[..., Any])


def using(*plugins: Plugin) -> Callable[[F], F]:
    """Give a function plugins of its own; they replace those of the same name that the pool has."""

    def decorate(function: F) -> F:
        from .task import PLUGINS, Decorated

        target: Any = function
        if isinstance(target, Decorated):
            target = target.function
        setattr(target, PLUGINS, merged(getattr(target, PLUGINS, ()), plugins))
        return function

    return decorate


@overload
def torch(function: F, /) -> F: ...
@overload
def torch(
    *,
    backend: str | None = None,
    ranks_per_node: int | Literal["auto"] = "auto",
    timeout: float | timedelta | None = None,
) -> Callable[[F], F]: ...
def torch(function: Any = None, /, **options: Any) -> Any:
    """`plugins.torch` for this function: bare, or with its options."""
    from .plugins.torch import torch as plugin

    decorate = using(plugin(**options))
    return decorate if function is None else decorate(cast("Callable[..., Any]", function))
