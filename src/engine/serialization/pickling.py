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

from ..api.secrets import crossing
from .importable import importable

if TYPE_CHECKING:
    from ..api.compute import Decorated
    from .importable import Reach

_by_value = RLock()  # cloudpickle's register of modules is global
_reach: ContextVar[Reach | None] = ContextVar("outrider_reach", default=None)


def named(scope: object, qualname: str) -> object:
    """Return the object named ``qualname`` in ``scope``, or None."""
    found = scope
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@contextmanager
def copied(*modules: str) -> Iterator[None]:
    """Within this, cloudpickle copies the functions and classes of these modules; the rest it names."""
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
def towards(reach: Reach | None) -> Iterator[None]:
    """Within this, what is pickled is for nodes that can import so much; None: whatever can be imported here."""
    if reach is None:
        yield
        return
    token = _reach.set(reach)
    try:
        with copied(*reach.own()), crossing():
            yield
    finally:
        _reach.reset(token)


def reached(module: str) -> bool:
    """Return whether the nodes for which something is being pickled can import this module by its name."""
    reach = _reach.get()
    return importable(module) if reach is None else reach.has(module)


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
    return getattr(home, "function", None) is function.function and reached(function.__module__)


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

    with copied(*(module for module in modules if not reached(module))), crossing():
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
