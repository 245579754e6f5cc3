"""The dependencies of a pickled function: the names, variables and classes that the function uses.

`Watch` records the dependencies, and tells whether they changed since the function was pickled.
"""

from __future__ import annotations

import dis
import enum
import itertools
import re
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from .script_modules import Empty

_MISSING = object()
_ATOMIC = {type(None), bool, bytes, complex, float, int, str, range, type(Ellipsis), type(NotImplemented)}
_BY_TEXT = frozenset(
    {"globals", "eval", "exec", "vars", "dir"}
)  # functions that can access any name, given as a string
_CONTAINERS = {list, dict, set, bytearray}
# Types whose objects never change, or whose changes are detected by other code. Types are listed by name, because the
# modules that define them may not be imported.
_FIXED = {
    "builtins": {
        "builtin_function_or_method", "classmethod", "code", "cell", "frozenset", "function", "getset_descriptor",
        "member_descriptor", "method", "method_descriptor", "module", "property", "slice", "staticmethod",
        "tuple", "wrapper_descriptor",
    },
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "functools": {"_lru_cache_wrapper", "cached_property", "partial", "partialmethod", "singledispatchmethod"},
    "logging": {"Logger", "RootLogger"},
    "numpy": {"ufunc", "dtype"},
    "os": {"_Environ"},
    "pathlib": {"Path", "PosixPath", "PurePath", "PurePosixPath"},
    "_thread": {"lock", "RLock", "_local"},
    "_contextvars": {"ContextVar"},
    "re": {"Pattern"},
    "torch": {"dtype", "device"},
    "types": {"GenericAlias", "UnionType", "MappingProxyType"},
    "typing": {"NewType", "ParamSpec", "TypeVar", "TypeVarTuple", "TypeAliasType", "_GenericAlias", "_SpecialForm"},
    "uuid": {"UUID"},
}  # fmt: skip
_fixed: dict[type, bool] = {}


class Watch:
    """The dependencies of one pickled function.

    ``may_change``: whether a dependency may change in a way that `is_unchanged` cannot detect.
    """

    __slots__ = ("_cells", "_functions", "_names", "_owners", "code", "files", "generators", "may_change", "needs_rest")

    def __init__(self) -> None:
        self._functions: list[tuple[Any, ...]] = []
        self._owners: list[tuple[type | ModuleType, tuple[tuple[str, object], ...]]] = []
        self._names: list[tuple[Callable[[str, object], object], str, object]] = []
        self._cells: list[tuple[CellType, object]] = []
        self.may_change = False
        # whether the function may use names that its code does not mention, such as by calling `globals`
        self.needs_rest = False
        self.code = b""  # the pickle of the function
        self.files: dict[str, None] = {}  # the files that define the functions (the values are unused)
        self.generators: list[str] = []  # types of the random number generators to which functions refer

    def function(self, function: FunctionType, names: dict[str, object], contents: tuple[object, ...]) -> None:
        get = function.__globals__.get
        own = tuple(function.__dict__.items())
        self._functions.append((function, function.__code__, function.__defaults__, function.__kwdefaults__, own))
        mentioned = names_of(function.__code__)
        self._names += [(get, name, get(name, _MISSING)) for name in mentioned]
        self.needs_rest = self.needs_rest or not _BY_TEXT.isdisjoint(mentioned)
        self._cells += zip(function.__closure__ or (), contents, strict=True)
        self.files[function.__code__.co_filename] = None
        self._look((*names.values(), *contents, *(function.__defaults__ or ())))
        self._look((function.__kwdefaults__ or {}).values())
        self._look(function.__dict__.values())

    def module(self, module: ModuleType, names: dict[str, object]) -> None:
        self._owners.append((module, tuple(vars(module).items())))
        self._look(names.values())

    def kind(self, kind: type) -> None:
        items = tuple(kind.__dict__.items())
        self._owners.append((kind, items))
        self._look(value for name, value in items if not _is_pythons_own(name))

    def saw(self, kind: type) -> None:
        """Record that the pickle contains an object of type ``kind``."""
        if not self.may_change and not _is_fixed(kind):
            self.may_change = True

    def is_unchanged(self) -> bool:
        """Return whether all recorded names, variables and attributes still have the same values.

        Takes 0.1 us per name, variable or attribute.
        """
        for function, code, defaults, keywords, own in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not keywords or ((function.__dict__ or own) and not _has(function, own)):
                return False
        for get, name, value in self._names:
            if get(name, _MISSING) is not value:
                return False
        for cell, content in self._cells:
            if contents_of(cell) is not content:
                return False
        return not self._owners or all(itertools.starmap(_has, self._owners))

    def _look(self, values: Iterable[object]) -> None:
        for value in values:
            kind = type(value)
            if kind in _CONTAINERS:
                self.may_change = True
            elif kind is tuple or kind is frozenset:
                self._look(value)  # type: ignore[arg-type]  # a tuple or a frozenset
            elif kind is partial:
                self._look((*value.args, *value.keywords.values()))  # type: ignore[attr-defined]
            elif kind is BuiltinFunctionType or kind is MethodType:
                self._look((value.__self__,))  # type: ignore[attr-defined]


def _has(owner: type | ModuleType | FunctionType, items: tuple[tuple[str, object], ...]) -> bool:
    now = owner.__dict__
    return len(now) == len(items) and all(now.get(name, _MISSING) is value for name, value in items)


def _is_pythons_own(name: str) -> bool:
    """Return whether Python itself or a decorator of the standard library added this attribute to a class."""
    return (name.startswith("__") and name.endswith("__")) or name in {
        "_abc_impl", "_fields", "_field_defaults", "_member_map_", "_member_names_", "_value2member_map_",
        "_hashable_values_", "_unhashable_values_", "_unhashable_values_map_", "_parameters",
    }  # fmt: skip


def _is_fixed(kind: type) -> bool:
    fixed = _fixed.get(kind)
    if fixed is None:
        if len(_fixed) > _MOST_VERSIONS:
            _fixed.clear()
        module = str(kind.__module__)
        names = _FIXED.get(module.partition(".")[0] if module.startswith(("pathlib", "numpy")) else module, set())
        fixed = kind in _ATOMIC or kind.__name__ in names or issubclass(kind, type | enum.Enum | CodeType)
        fixed = fixed or kind is re.Pattern or module.startswith("outrider.")
        _fixed[kind] = fixed
    return fixed


# --- versions of classes ----------------------------------------------------------------------------------------------

# class -> (attributes of the class, version of the class); contains only the most recently used classes
_versions: dict[type, tuple[tuple[tuple[str, object], ...], int]] = {}
_MOST_VERSIONS = 512
_numbers = itertools.count(1)


def _stays(value: object) -> bool:
    """Return whether a class attribute with this value cannot be modified in place (unlike a list)."""
    if type(value) in _ATOMIC or isinstance(value, type | MemberDescriptorType):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(_stays, value))
    if isinstance(value, property):
        return all(each is None or _stays(each) for each in (value.fget, value.fset, value.fdel))
    if isinstance(value, staticmethod | classmethod):
        return _stays(value.__func__)
    if not isinstance(value, FunctionType) or value.__dict__:
        return False
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    closed = all(name == "__class__" or _stays(contents_of(cell)) for name, cell in cells)
    return closed and all(map(_stays, (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())))


def version_of(kind: type) -> int | None:
    """Return a number that changes when an attribute of the class gets a new value.

    None: the class has an attribute that can be modified in place (such as a list), so that changes cannot be detected.
    """
    items = tuple(kind.__dict__.items())
    for name, value in items:
        if not (_is_pythons_own(name) or _stays(value)):
            return None
    known = _versions.get(kind)
    if known is None or not _has(kind, known[0]):
        while len(_versions) >= _MOST_VERSIONS:
            _versions.pop(next(iter(_versions)))
        _versions[kind] = known = items, next(_numbers)
    return known[1]


# --- names in code ----------------------------------------------------------------------------------------------------

_names: weakref.WeakKeyDictionary[CodeType, tuple[str, ...]] = weakref.WeakKeyDictionary()
_GLOBALS = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"}


def names_of(code: CodeType) -> tuple[str, ...]:
    """Return the names of global variables that the code uses.

    Includes the functions and classes that are defined inside the code.
    """
    names = _names.get(code)
    if names is None:
        own = (each.argval for each in dis.get_instructions(code) if each.opname in _GLOBALS)
        inner = (names_of(each) for each in code.co_consts if isinstance(each, CodeType))
        _names[code] = names = tuple(dict.fromkeys(itertools.chain(own, *inner)))
    return names


def contents_of(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # the variable is not bound yet
        return Empty


def submodules(code: CodeType, values: Iterable[object]) -> list[ModuleType]:
    """Return the imported submodules that the code accesses as attributes of a package, such as ``os.path``.

    ``values`` contains the packages; values of other types are ignored.
    """
    packages = [each for each in values if isinstance(each, ModuleType) and each.__dict__.get("__path__") is not None]
    return [*_submodules(code, packages)] if packages else []


def _submodules(code: CodeType, packages: list[ModuleType]) -> Iterator[ModuleType]:
    names = set(_attribute_names(code))
    for package in packages:
        beginning = f"{package.__name__}."
        for name, module in list(sys.modules.items()):
            if (
                name.startswith(beginning)
                and module is not None
                and names.issuperset(name[len(beginning) :].split("."))
            ):
                yield module


def _attribute_names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _attribute_names(each)
