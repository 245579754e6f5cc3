"""`plugins`: every plugin that is installed, by name, found through the entry points ``outrider.plugins``."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

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
    """Attributes are plugins' factories: ``plugins.torch(...)``. A plugin's module is imported when it is used."""

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
        found = _installed()
        if name in found:
            factory: Any = found[name].load()
            self.__dict__[name] = factory
            return factory  # type: ignore[no-any-return]
        from difflib import get_close_matches

        close = get_close_matches(name, found, n=1)
        hint = f"did you mean {close[0]}?" if close else "is its package installed?"
        raise AttributeError(
            f"No plugin is called {name}: {hint} There are: {', '.join(sorted(found)) or 'none'}.", name=name, obj=self
        )

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_installed()})


def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP)}


plugins = Plugins()
