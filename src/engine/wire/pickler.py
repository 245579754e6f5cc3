"""The pickler for everything that a program and its nodes send each other. `reducers` lists the types that it adds."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import Any

import cloudpickle

from . import copies, reducers, script_modules
from .copies import (
    MODULE_ATTRIBUTES,
    BareCell,
    ImportedScope,
    ModuleScope,
    Owned,
    Reduced,
    class_parts,
    travels_as_copy,
)

_OURS = f"{__name__.partition('.')[0]}."


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """A pickler for objects that another process will load.

    Args:
        file: The file into which the pickle is written.
        buffer_callback: See `pickle.Pickler`.
        code: Whether the pickled object is a function and what it refers to (True), or data such as arguments (False).
        watch: Records the dependencies of the pickled function, so that later changes can be detected.
        others: id -> name in ``__main__``, of functions and classes that are pickled separately.
    """

    def __init__(
        self,
        file: Any,
        buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None,
        *,
        code: bool = False,
        watch: copies.Watch | None = None,
        others: dict[int, str] | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.code, self.watch, self._others = code, watch, others or {}
        self._of_loaded = reducers.of_loaded()
        self._scopes: dict[int, Any] = {}
        self._cells: dict[int, Any] = {}

    def reducer_override(self, obj: Any) -> Reduced:
        kind = type(obj)
        if self.watch is not None:
            self.watch.saw(kind)
        if id(obj) in self._others:
            return script_modules.named_later, (self._others[id(obj)],)
        if kind is FunctionType:
            is_ours = str(obj.__module__).startswith(_OURS) and "<" not in obj.__qualname__
            return NotImplemented if is_ours else super().reducer_override(obj)
        if issubclass(kind, type):
            return class_parts(self, obj, super().reducer_override(obj))
        reduce = reducers.OF_TYPE.get(kind) or self._of_loaded.get(kind)
        if reduce is None and self.code and issubclass(kind, threading.local):
            return kind, ()
        reduced = NotImplemented if reduce is None else reduce(self, obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced

    # override of a cloudpickle method; it is called for functions that nodes cannot import
    def _dynamic_function_reduce(self, func: FunctionType) -> Reduced:
        return reducers.function_reduced(self, func)

    def clear_memo(self) -> None:
        super().clear_memo()
        self._scopes.clear()
        self._cells.clear()

    def scope(self, function: FunctionType) -> Any:
        """Return a picklable object for the global variables of a function.

        If functions share their global variables, the copies of the functions share them, too.
        """
        scope = function.__globals__
        known = self._scopes.get(id(scope))
        if known is None:
            name = scope.get("__name__")
            attributes = {key: scope[key] for key in MODULE_ATTRIBUTES if key in scope}
            if getattr(sys.modules.get(str(name)), "__dict__", None) is not scope:
                known = {"__name__": name, **attributes}
            elif travels_as_copy(str(name)):
                known = ModuleScope(str(name), attributes)
            else:
                known = ImportedScope(str(name), attributes)
            self._scopes[id(scope)] = known
        return known

    def owned(self, value: Any) -> Any:
        """Return a stand-in for an object such as a lock, so that each process gets an object of its own.

        Values of other types are returned unchanged.
        """
        if type(value) not in reducers.OWN:
            return value
        return self._cells.setdefault(id(value), Owned(value, reducers.OWN[type(value)]))

    def cells(self, function: FunctionType) -> tuple[BareCell, ...] | None:
        if function.__closure__ is None:
            return None
        return tuple(self._cells.setdefault(id(cell), BareCell(cell)) for cell in function.__closure__)


def dumps(obj: object, buffers: Callable[[pickle.PickleBuffer], object] | None = None, **options: Any) -> bytes:
    with io.BytesIO() as file:
        write(file, lambda: Pickler(file, buffers, **options).dump(obj))
        return file.getvalue()


def write(file: Any, dump: Callable[[], object], again: Callable[[], object] = lambda: None) -> None:
    """Call ``dump``, which writes a pickle into the file. Repeat if tensors in the pickle share memory.

    Before a repetition, the file is emptied, and ``again`` is called.
    """
    if "torch" not in sys.modules:
        dump()
        return
    from .tensors import collected

    with collected() as parts:
        dump()
        while parts.again():
            file.seek(0)
            file.truncate()
            again()
            dump()


def dumps_what_can(names: dict[str, object]) -> bytes:
    """Pickle the names and values of a module. Names whose value cannot be pickled are left out."""
    try:
        return dumps(names, code=True)
    except Exception:  # noqa: BLE001 - any error of a __reduce__
        return dumps({name: value for name, value in names.items() if _can_be_pickled(value)}, code=True)


def _can_be_pickled(value: object) -> bool:
    try:
        dumps(value, code=True)
    except Exception:  # noqa: BLE001 - any error of a __reduce__
        return False
    return True
