"""Plugins as decorators, for a function that needs a plugin in any pool: ``@integrations.torch`` under `@compute`.

Every plugin that prepares the process of a single task has a decorator, which can take the plugin's options. Of
Outrider's own plugins these are accelerate, huggingface, jax, keras, mpi, tensorflow and torch. The other plugins
prepare whole nodes and are passed to the pool.

This module also has adapters, which write the values that frameworks log to the record of the run: `keras_callback`,
`lightning_logger`, `trainer_callback`, and `LoggingHandler` for Python's `logging`. An adapter imports its framework
only when it is called.
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
    """Return a decorator that adds plugins to a function. They replace the pool's plugins that have the same names."""

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

    Calling it raises `SpecError` if the plugin can only be used for a whole pool.
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


def keras_callback(*, every: int | None = None, ranks: Ranks = "all") -> keras_.callbacks.Callback:
    """Return a callback for Keras's ``model.fit`` that logs losses and metrics at the end of each epoch.

    Args:
        every: Also log after this number of batches; steps are then batches, not epochs.
        ranks: "all", or "head": log on rank 0 alone, for values that are equal on all ranks.

    Raises:
        SpecError: An option is not valid.
        ModuleNotFoundError: keras is not installed here.
    """
    from .adapters.loggable import checked_ranks
    from .api import checks

    checked_ranks("keras_callback", ranks)
    if every is not None:
        checks.count("integrations.keras_callback: every", every, least=1)
    from .adapters.keras_callback import RecordCallback

    return RecordCallback(every, ranks)


def trainer_callback() -> transformers.TrainerCallback:
    """Return a callback for Hugging Face's ``Trainer`` that logs the trainer's arguments and log values, on rank 0.

    Raises:
        ModuleNotFoundError: transformers is not installed here.
    """
    from .adapters.trainer_callback import RecordCallback

    return RecordCallback()


def lightning_logger(*, ranks: Ranks = "all") -> lightning.pytorch.loggers.Logger:
    """Return a logger for Lightning's ``Trainer``: it logs the module's values, and hyperparameters on rank 0.

    Args:
        ranks: "all", or "head": log on rank 0 alone, for values that are logged with ``sync_dist=True``.

    Raises:
        SpecError: An option is not valid.
        ModuleNotFoundError: lightning is not installed here.
    """
    from .adapters.loggable import checked_ranks

    checked_ranks("lightning_logger", ranks)
    from .adapters.lightning_logger import LightningLogger

    return LightningLogger(ranks)


ADAPTERS = ("LoggingHandler", "keras_callback", "lightning_logger", "trainer_callback")

if TYPE_CHECKING:
    import keras as keras_  # pyright: ignore[reportMissingImports]  the three packages may be missing
    import lightning.pytorch.loggers  # pyright: ignore[reportMissingImports]
    import transformers  # pyright: ignore[reportMissingImports]

    from .adapters.loggable import LoggingHandler as LoggingHandler  # noqa: PLC0414  public
    from .adapters.loggable import Ranks

    accelerate = Integration(_plugins.accelerate)
    huggingface = Integration(_plugins.huggingface)
    jax = Integration(_plugins.jax)
    keras = Integration(_plugins.keras)
    mpi = Integration(_plugins.mpi)
    tensorflow = Integration(_plugins.tensorflow)
    torch = Integration(_plugins.torch)
else:

    def __getattr__(name: str) -> Any:
        if name == "LoggingHandler":
            from .adapters import loggable

            globals()[name] = loggable.LoggingHandler
        else:
            globals()[name] = Integration(getattr(_plugins, name))
        return globals()[name]

    def __dir__() -> list[str]:
        return sorted({"using", *ADAPTERS, *dir(_plugins)})
