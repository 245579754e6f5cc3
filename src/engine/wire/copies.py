"""Pickling of functions, classes and modules that nodes cannot import. `script_modules` recreates them on the node."""

from __future__ import annotations

import enum
import marshal
import pickle
import sys
import typing
import weakref
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from . import captured, class_copies, script_modules
from .script_modules import MAIN

if TYPE_CHECKING:
    from typing import Protocol

    from .captured import Watch

    class Copier(Protocol):
        """The parts of `pickler.Pickler` that reducers use."""

        code: bool
        watch: Watch | None

        def scope(self, function: FunctionType) -> Any: ...

        def owned(self, value: Any) -> Any: ...

        def cells(self, function: FunctionType) -> tuple[BareCell, ...] | None: ...


Reduced = Any  # result of a reducer: a tuple like the result of `object.__reduce__`, or NotImplemented
MODULE_ATTRIBUTES = "__package__", "__path__", "__file__"
_SLOTS = (
    "__name__", "__qualname__", "__annotations__", "__kwdefaults__", "__defaults__", "__module__", "__doc__",
    "__type_params__",
)  # fmt: skip


def travels_as_copy(module: str | None, obj: Any = None) -> bool:
    """Return whether the module (or ``obj`` in it) must be sent as a copy, because other machines cannot import it.

    The rules are those of `cloudpickle`.
    """
    if module is None or module == MAIN or module not in sys.modules:
        return True
    if obj is not None and not is_named(obj, module, obj.__qualname__):
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module == each or module.startswith(f"{each}.") for each in registered)


class ModuleScope:
    def __init__(self, name: str, attributes: dict[str, object]) -> None:
        self._at = name, attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return script_modules.module_scope, self._at


class ImportedScope:
    """The global variables of a module.

    The receiver imports the module if it can; else it creates a copy of the module.

    An example of its use is the inner function that an installed library's decorator returns.
    """

    def __init__(self, name: str, attributes: dict[str, object]) -> None:
        self.name, self._attributes = name, attributes

    def __reduce__(self) -> tuple[Any, ...]:
        return script_modules.imported_scope, (self.name, self._attributes)


class BareCell:
    """A closure cell that is pickled empty.

    The receiver fills the cell when it sets up the first function that uses it.
    """

    def __init__(self, cell: CellType) -> None:
        self._cell = cell  # a reference, so that the cell is not freed and its id not reused

    def __reduce__(self) -> tuple[Any, ...]:
        return CellType, ()


class Owned:
    def __init__(self, value: object, make: Callable[[], object]) -> None:
        self._value, self._make = value, make

    def __reduce__(self) -> tuple[Any, ...]:
        return self._make, ()


def function_parts(pickler: Copier, function: FunctionType) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    code, scope = function.__code__, function.__globals__
    names = {name: scope[name] for name in captured.names_of(code) if name in scope}
    contents = tuple(map(captured.contents_of, function.__closure__ or ()))
    if pickler.watch is not None:
        pickler.watch.function(function, names, contents)
    if not pickler.code:  # replace locks and other objects that belong to one process
        names = {name: pickler.owned(value) for name, value in names.items()}
        contents = tuple(map(pickler.owned, contents))
    slots = {name: getattr(function, name) for name in _SLOTS if hasattr(function, name)}
    if submodules := captured.submodules(code, (*names.values(), *contents)):
        slots["__doc__"] = _After(slots["__doc__"], submodules)
    globals_ = pickler.scope(function)
    if type(globals_) is ImportedScope and globals_.name != function.__module__:
        # the function comes from an installed decorator: do not send that module's variables, which may be anything
        names = {}
    has_name = "." not in function.__qualname__ and is_named(function, function.__module__, function.__qualname__)
    args = code, globals_, pickler.cells(function), function.__qualname__ if has_name else ""
    return script_modules.make_function, args, (function.__dict__, slots, contents, names, has_name)


def module_parts(pickler: Copier, module: ModuleType) -> Reduced:
    """Return how to pickle a module of the program that nodes cannot import, together with all names in the module."""
    name = module.__name__
    if name == MAIN or sys.modules.get(name) is not module or not travels_as_copy(name):
        return NotImplemented
    names = {key: value for key, value in vars(module).items() if not (key.startswith("__") and key.endswith("__"))}
    attributes = {key: vars(module)[key] for key in MODULE_ATTRIBUTES if key in vars(module)}
    if pickler.watch is not None:
        pickler.watch.module(module, names)
    return script_modules.make_module, (name, attributes), names, None, None, script_modules.set_module


class _After:
    """A wrapper that makes the receiver import certain modules before it unpickles the value."""

    def __init__(self, value: object, modules: list[ModuleType]) -> None:
        self._parts = value, modules

    def __reduce__(self) -> tuple[Any, ...]:
        return _first, self._parts


def _first(value: object, _: object) -> object:
    return value


def is_named(obj: object, module: str | None, qualname: str) -> bool:
    value: object = sys.modules.get(module or "")
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value is obj


# code object -> (file name of the code, code as bytes)
_codes: weakref.WeakKeyDictionary[CodeType, tuple[str, bytes]] = weakref.WeakKeyDictionary()


def code_parts(_: Copier, code: CodeType) -> Reduced:
    known = _codes.get(code)
    if known is None or known[0] != code.co_filename:  # code objects of different files may be equal
        _codes[code] = known = code.co_filename, marshal.dumps(code)
    return load_code, (sys.implementation.cache_tag, known[1])


def load_code(version: str, data: bytes) -> CodeType:
    if version != sys.implementation.cache_tag:
        raise ImportError(f"code of {version} is not code of {sys.implementation.cache_tag}: use one version of Python")
    return marshal.loads(data)  # type: ignore[no-any-return]  # noqa: S302 - part of a pickle, which is trusted


def class_parts(pickler: Copier, kind: type, reduced: Reduced) -> Reduced:
    """Change how cloudpickle pickles a class: the receiver creates the class only once per process.

    The receiver also puts the class into the module to which the class belongs.
    """
    if not isinstance(reduced, tuple) or len(reduced) != 6:
        return reduced
    make, args, state, _, _, set_attributes = reduced
    number = args[-2]
    if (before := class_copies.known_classes.setdefault(number, kind)) is not kind:
        raise pickle.PicklingError(f"{kind} has the number of {before}")
    is_own = kind not in class_copies.received_classes
    if pickler.watch is not None:
        pickler.watch.kind(kind)
    attributes: Any = dict(state[0])
    if (slots := kind.__dict__.get("__slots__")) is not None and isinstance(args[0], type):
        if typing.NamedTuple not in args[2]:  # NamedTuple itself defines `__slots__` in the class
            args[3]["__slots__"] = slots if isinstance(slots, str | tuple | list | dict) else tuple(slots)
        attributes = {
            name: value
            for name, value in attributes.items()
            if name != "__slots__" and not isinstance(value, MemberDescriptorType)
        }
    version = captured.version_of(kind) if is_own else class_copies.received_classes[kind]
    place = None
    if is_named(kind, kind.__module__, kind.__qualname__):
        first, dot, _ = kind.__qualname__.partition(".")
        place = kind.__module__, first, getattr(sys.modules[kind.__module__], first) if dot else None
    if isinstance(kind, enum.EnumMeta):  # cloudpickle sends only the values of enum members, not their other attributes
        set_attributes, attributes = class_copies.set_enum, (set_attributes, _attributes_of_members(kind), attributes)
    return (
        class_copies.make_class,
        (number, make, args, kind.__qualname__),
        (set_attributes, (attributes, *state[1:]), is_own, version, place),
        None,
        None,
        class_copies.set_class,
    )


def _attributes_of_members(kind: enum.EnumMeta) -> dict[str, dict[str, object]]:
    own = {"_value_", "_name_", "__objclass__", "_sort_order_"}
    members: list[Any] = list(kind)
    return {each.name: {key: value for key, value in vars(each).items() if key not in own} for each in members}
