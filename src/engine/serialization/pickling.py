"""Pickle code for a node: by name if the node can import it, else as a copy."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from threading import RLock
from typing import TYPE_CHECKING, Any

from ..api.secrets import allow_secrets
from .importable import importable

if TYPE_CHECKING:
    from ..api.compute import Decorated
    from .importable import ImportableModules

_by_value = RLock()  # cloudpickle's register of modules is global
_node_modules: ContextVar[ImportableModules | None] = ContextVar("outrider_node_modules", default=None)


def named(scope: object, qualname: str) -> object:
    """Return the object named ``qualname`` in ``scope``, or None."""
    found = scope
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@contextmanager
def copying(*modules: str) -> Iterator[None]:
    """Have cloudpickle copy the functions and classes of these modules during the block. All others travel by name."""
    import cloudpickle

    with _by_value, ExitStack() as stack:
        for module in modules:
            loaded = sys.modules.get(module)
            if (
                loaded is not None
                and module != "__main__"
                and module not in cloudpickle.list_registry_pickle_by_value()
            ):
                cloudpickle.register_pickle_by_value(loaded)
                stack.callback(cloudpickle.unregister_pickle_by_value, loaded)
        yield


@contextmanager
def for_nodes(modules: ImportableModules | None) -> Iterator[None]:
    """Pickle for nodes that can import these modules, during the block; None: for nodes that can import what this
    program can.
    """
    if modules is None:
        yield
        return
    token = _node_modules.set(modules)
    try:
        with copying(*modules.own()), allow_secrets():
            yield
    finally:
        _node_modules.reset(token)


def nodes_have(module: str) -> bool:
    """Return whether the nodes for which something is being pickled can import this module by its name."""
    modules = _node_modules.get()
    return importable(module) if modules is None else modules.has(module)


def dumps_function(function: Decorated[...]) -> bytes:
    """A `@compute` function's own function, so that `pickle.loads` gives it on a node.

    Raises:
        Unpicklable: with the path to what it holds that cannot be pickled.
    """
    if has_name(function):
        return pickle.dumps(_Named(function.__module__, function.__qualname__), 5)
    return dumps(function.function, function.__name__, function.__module__)


def has_name(function: Decorated[...]) -> bool:
    """Return whether a node that imports the function's module finds the function there."""
    home = named(sys.modules.get(function.__module__), function.__qualname__)
    return getattr(home, "function", None) is function.function and nodes_have(function.__module__)


def imported(module: str, qualname: str) -> Any:
    """Return the object named ``module.qualname``.

    Raises:
        ImportError, AttributeError
    """
    found = named(importlib.import_module(module), qualname)
    if found is None:
        raise AttributeError(f"module {module!r} has no {qualname!r}", name=qualname)
    return found


def dumps(value: object, name: str, *modules: str) -> bytes:
    """Pickle ``value`` with cloudpickle. Objects from ``modules`` that nodes cannot import are copied.

    Raises:
        Unpicklable: ``name`` is what its path begins with.
    """
    import cloudpickle

    from ..wire import values

    with copying(*(module for module in modules if not nodes_have(module))), allow_secrets():
        try:
            return bytes(cloudpickle.dumps(value, protocol=5))
        except Exception:
            values.dump(value, name)  # fails as well, and says where
            raise


class _Named:
    """Unpickles as the function of the `@compute` function of that name."""

    def __init__(self, module: str, qualname: str) -> None:
        self._at = module, qualname

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of, self._at


def _function_of(module: str, qualname: str) -> Any:
    return imported(module, qualname).function
