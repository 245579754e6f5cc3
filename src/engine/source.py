"""How code reaches a node: by name where the node can import it, else as a copy."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .task import Decorated

_by_value = RLock()  # cloudpickle's register of modules is global


def importable(name: str) -> bool:
    """Whether another interpreter with this search path would find the module ``name`` where this one got it.

    Not so for ``__main__``, for modules made by hand, and for those a test runner loaded from their file.
    """
    module = sys.modules.get(name)
    if module is None or name == "__main__":
        return False
    if name in sys.builtin_module_names:
        return True
    spec, path = None, None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        spec = _find(".".join(parts[:depth]), path)
        if spec is None:
            return False
        path = spec.submodule_search_locations
    return spec is not None and spec.origin == getattr(module, "__file__", None)


def _find(name: str, path: Any) -> ModuleSpec | None:
    """As an import would, without looking at what is imported already."""
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = find_spec(name, path) if find_spec is not None else None
        if spec is not None:
            return spec
    return None


def named(scope: object, qualname: str) -> object:
    """What ``qualname`` is in ``scope``, or None."""
    found = scope
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


@contextmanager
def copied(module: str) -> Iterator[None]:
    """Within this, cloudpickle copies the functions and classes of ``module`` where nodes cannot import it."""
    loaded: ModuleType | None = sys.modules.get(module)
    if loaded is None or module == "__main__" or importable(module):
        yield
        return
    import cloudpickle

    with _by_value:
        if module in cloudpickle.list_registry_pickle_by_value():
            yield
            return
        cloudpickle.register_pickle_by_value(loaded)
        try:
            yield
        finally:
            cloudpickle.unregister_pickle_by_value(loaded)


def dumps_function(function: Decorated[...]) -> bytes:
    """A `@compute` function's own function, so that `pickle.loads` gives it on a node.

    Raises:
        Unpicklable: with the path to what it holds that cannot be pickled.
    """
    if has_name(function):
        return pickle.dumps(_Named(function.__module__, function.__qualname__), 5)
    return dumps(function.function, function.__name__, function.__module__)


def has_name(function: Decorated[...]) -> bool:
    """Whether a node that imports its module finds it there."""
    home = named(sys.modules.get(function.__module__), function.__qualname__)
    return getattr(home, "function", None) is function.function and importable(function.__module__)


def imported(module: str, qualname: str) -> Any:
    """What ``module.qualname`` is.

    Raises:
        ImportError, AttributeError
    """
    found = named(importlib.import_module(module), qualname)
    if found is None:
        raise AttributeError(f"module {module!r} has no {qualname!r}", name=qualname)
    return found


def dumps(value: object, name: str, *modules: str) -> bytes:
    """By cloudpickle; what is from ``modules`` as a copy where nodes cannot import them.

    Raises:
        Unpicklable: ``name`` is what its path begins with.
    """
    import cloudpickle

    from .wire import values

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(copied(module))
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
