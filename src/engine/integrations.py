"""Plugins as decorators, for functions that need them in any pool: ``@integrations.torch`` under `@compute`.

There is one for every plugin that works around a task, bare or with the plugin's options: of Outrider's own accelerate,
huggingface, jax, keras, mpi, tensorflow and torch. The others work on whole nodes and are given to the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from .api.errors import SpecError
from .api.plugin import Plugin, replaced
from .plugins.registry import plugins as _plugins

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")


def using(*plugins: Plugin) -> Callable[[F], F]:
    """Give a function plugins of its own; they replace those of the same name that the pool has."""

    def decorate(function: F) -> F:
        from .api.compute import PLUGINS, Decorated

        target: Any = function
        if isinstance(target, Decorated):
            target = target.function
        setattr(target, PLUGINS, replaced(getattr(target, PLUGINS, ()), plugins))
        return function

    return decorate


class Integration(Generic[P]):
    """A plugin's decorator: ``@integrations.torch``, or ``@integrations.torch(backend="gloo")``.

    Calling it raises `SpecError` where the plugin is a pool's alone.
    """

    def __init__(self, plugin: Callable[P, Plugin]) -> None:
        self._plugin: Callable[..., Plugin] = plugin

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> Callable[[F], F]: ...
    def __call__(self, *args: Any, **options: Any) -> Any:
        if len(args) == 1 and not options and callable(args[0]):
            return using(_own(self._plugin()))(args[0])
        return using(_own(self._plugin(*args, **options)))


def _own(plugin: Plugin) -> Plugin:
    if plugin.has_halves:
        raise SpecError(
            f"The {plugin.name} plugin works on whole nodes, and is no function's own: give it to the pool, "
            f"Pool(plugins=[plugins.{plugin.name}(...)])."
        )
    return plugin


if TYPE_CHECKING:
    accelerate = Integration(_plugins.accelerate)
    huggingface = Integration(_plugins.huggingface)
    jax = Integration(_plugins.jax)
    keras = Integration(_plugins.keras)
    mpi = Integration(_plugins.mpi)
    tensorflow = Integration(_plugins.tensorflow)
    torch = Integration(_plugins.torch)
else:

    def __getattr__(name: str) -> Integration[...]:
        found = globals()[name] = Integration(getattr(_plugins, name))
        return found

    def __dir__() -> list[str]:
        return sorted({"using", *dir(_plugins)})
