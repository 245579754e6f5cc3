"""`plugins`: every installed plugin, by name, found through the entry points ``outrider.plugins``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from ...providers.shared.option_names import closest
from ..api.checks import check_known, refuse

if TYPE_CHECKING:
    from ..api.plugin import Plugin
    from .accelerate import accelerate as _accelerate
    from .dask import dask as _dask
    from .huggingface import huggingface as _huggingface
    from .jax import jax as _jax
    from .joblib import joblib as _joblib
    from .keras import keras as _keras
    from .mig import mig as _mig
    from .mpi import mpi as _mpi
    from .mps import mps as _mps
    from .ray import ray as _ray
    from .sklearn import sklearn as _sklearn
    from .tensorflow import tensorflow as _tensorflow
    from .torch import torch as _torch

GROUP = "outrider.plugins"


class Plugins:
    """The factories of all installed plugins, as attributes: ``plugins.torch(...)``.

    A plugin's module is imported on first use.
    """

    if TYPE_CHECKING:
        accelerate = staticmethod(_accelerate)
        dask = staticmethod(_dask)
        huggingface = staticmethod(_huggingface)
        jax = staticmethod(_jax)
        joblib = staticmethod(_joblib)
        keras = staticmethod(_keras)
        mig = staticmethod(_mig)
        mpi = staticmethod(_mpi)
        mps = staticmethod(_mps)
        ray = staticmethod(_ray)
        sklearn = staticmethod(_sklearn)
        tensorflow = staticmethod(_tensorflow)
        torch = staticmethod(_torch)

    def __getattr__(self, name: str) -> Callable[..., Plugin]:
        if name.startswith("_"):
            raise AttributeError(name)
        installed = _installed()
        if name in installed:
            factory = self.__dict__[name] = checked(f"plugins.{name}", installed[name].load())
            return factory
        close = closest(name, installed)
        hint = f"did you mean {close}?" if close else "is its package installed?"
        raise AttributeError(
            f"No plugin is called {name}: {hint} There are: {', '.join(sorted(installed)) or 'none'}.",
            name=name,
            obj=self,
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_installed()})


def checked(name: str, factory: Callable[..., Plugin]) -> Callable[..., Plugin]:
    """Return the factory; wrong arguments raise `SpecError`. ``name``: the factory's name for users."""
    signature = inspect.signature(factory)
    kinds = {each.kind for each in signature.parameters.values()}
    positional = {each.name for each in signature.parameters.values() if each.kind is each.POSITIONAL_ONLY}

    @wraps(factory, updated=())
    def make(*args: Any, **options: Any) -> Plugin:
        if inspect.Parameter.VAR_KEYWORD not in kinds:
            check_known(name, options, signature.parameters.keys() - positional)
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            refuse(f"{name}: {error}. Write {name}{_called(signature)}.")
        return factory(*args, **options)

    return make


def _called(signature: inspect.Signature) -> str:
    """Return the parameters of a factory without their types, as in ``(profile, *, count=None)``."""
    empty = inspect.Parameter.empty
    parameters = [each.replace(annotation=empty) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty))


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


plugins = Plugins()
