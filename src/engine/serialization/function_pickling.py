"""Pickling of functions and classes: by name if nodes can import them, else as a copy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock
from typing import TYPE_CHECKING, Any

from ..api.secrets import allow_secrets
from ..wire import importable

if TYPE_CHECKING:
    from ..api.calls import Callee
    from ..wire.copies import Watch
    from ..wire.importable import ImportableModules

_by_value = RLock()  # guards the list of modules that cloudpickle copies, which is global


@contextmanager
def copying(*modules: str) -> Iterator[None]:
    """Make cloudpickle send functions and classes of these modules as copies, during the ``with`` block.

    Functions and classes of other modules are sent by name.
    """
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
    """Pickle for nodes that can import ``modules``, within the ``with`` block.

    None: the nodes can import the same modules as this process.
    """
    if modules is None:
        yield
        return
    with importable.nodes_with(modules), copying(*modules.own()), allow_secrets():
        yield


def dumps_function(function: Callee, watch: Watch | None = None) -> bytes:
    """Pickle the user's function inside a `@compute` function, so that `pickle.loads` on a node returns that function.

    Raises the same errors as `dumps`.
    """
    if importable.has_name(function):
        import pickle  # imported here, so that a local pool can start its machines before this import takes time

        return pickle.dumps(_Named(function.__module__, function.__qualname__), 5)
    return dumps(function.function, function.__name__, function.__module__, watch=watch)


def dumps(value: object, name: str, *modules: str, watch: Watch | None = None) -> bytes:
    """Pickle ``value``, which is a function or something that belongs to one, such as its plugins.

    Args:
        value: The object.
        name: The name of the object in errors.
        modules: Modules whose functions and classes are copied if nodes cannot import these modules.
        watch: Records the dependencies of the pickle.

    Raises:
        Unpicklable: a part of the object cannot be pickled; the error has the path of that part, which begins with
            ``name``.
    """
    from ..wire import pickler, values

    with (
        copying(*(module for module in modules if not importable.nodes_have(module)), *importable.being_imported()),
        allow_secrets(),
    ):
        try:
            return pickler.dumps(value, code=True, watch=watch)
        except Exception as error:  # noqa: BLE001  a __reduce__ may raise anything
            failed = error
        values.dump(value, name, code=True)  # raises again, this time with the path of the part that cannot be pickled
        raise failed


class _Named:
    def __init__(self, module: str, qualname: str) -> None:
        self._at = module, qualname

    def __reduce__(self) -> tuple[Any, ...]:
        return _function_of, self._at


def _function_of(module: str, qualname: str) -> Any:
    return importable.imported(module, qualname).function
