"""Pickling of functions, classes and modules that nodes cannot import. `script_modules` recreates them on the node.

`Watch` records the dependencies of a pickled function: the names, variables and classes that the function uses. It
tells whether they changed since the function was pickled.

The receiver creates each class that is sent as a copy only once per process. If the program that defines a class
receives it back, for example in a result, it gets its own class. A number identifies the class. If the program defines
a metaclass, or a hook such as ``__init_subclass__``, only the program calls them: the receiver creates the class
without them.
"""

from __future__ import annotations

import dis
import enum
import itertools
import marshal
import pickle
import re
import sys
import threading
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

import cloudpickle

from . import script_modules
from .script_modules import MAIN, Empty

if TYPE_CHECKING:
    from typing import Protocol


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


def used_submodules(code: CodeType, values: Iterable[object]) -> list[ModuleType]:
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


_making = threading.RLock()  # a lock, because tasks in several threads may receive the same class at the same time

# number that identifies a class -> the class
known_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()
# class that was received -> version of its attributes
received_classes: weakref.WeakKeyDictionary[type, object] = weakref.WeakKeyDictionary()


def make_class(number: str, make: Any, args: tuple[Any, ...], qualname: str) -> type:
    """Return the class that this number identifies. Create the class if this process does not have it yet."""
    with _making:
        return _known_or_new(number, make, args, qualname)


def _known_or_new(number: str, make: Any, args: tuple[Any, ...], qualname: str) -> type:
    kind = known_classes.get(number)
    if kind is None:
        kind = _own_metaclass(*args[:4]) if args[0] in received_classes else _subclass(make, args)
        kind.__qualname__ = qualname
        known_classes[number] = kind
        received_classes[kind] = None
    return kind


def _own_metaclass(metaclass: Any, name: str, bases: tuple[Any, ...], attributes: dict[str, Any]) -> type:
    """Create a class without calling its metaclass, because the program has already called it."""
    resolved = types.resolve_bases(bases)
    if resolved is not bases:
        attributes["__orig_bases__"] = bases
    make = next(each for each in metaclass.__mro__ if each not in received_classes).__new__
    return _subclass(make, (metaclass, name, resolved, attributes))


def _subclass(make: Any, args: tuple[Any, ...]) -> type:
    """Create a class without calling ``__init_subclass__`` of the program's base classes.

    The program has already called these methods.
    """
    bases = next((each for each in args[:3] if isinstance(each, tuple)), ())
    kinds = {kind for base in bases if isinstance(base, type) for kind in base.__mro__ if kind in received_classes}
    hooks = {kind: vars(kind)["__init_subclass__"] for kind in kinds if "__init_subclass__" in vars(kind)}
    try:
        for kind in hooks:
            kind.__init_subclass__ = classmethod(_do_nothing)  # type: ignore[method-assign, assignment]
        new_class: type = make(*args)
    finally:
        for kind, hook in hooks.items():
            kind.__init_subclass__ = hook  # type: ignore[method-assign]
    return new_class


def _do_nothing(*_: Any, **__: Any) -> None:
    pass


def set_class(kind: type, state: tuple[Any, Any, bool, object, Any]) -> None:
    """Set a class's attributes, unless this program defines the class or the class already has these attributes.

    ``state``: a tuple of the function that sets the attributes, the argument of that function, whether the sender
    defines the class, the version of the attributes, and (module, name, object) of the module-level name under which
    the class is found, or None.
    """
    set_attributes, attributes, is_from_its_program, version, place = state
    if kind in received_classes:
        before = received_classes[kind]
        if before is None or (is_from_its_program and (version is None or version != before)):
            _set(kind, (set_attributes, attributes))
            received_classes[kind] = version if version is not None else 0
        # Without a version, changes of the class cannot be detected. So a worker that returns to this program after
        # running another program sets the attributes again.
        if is_from_its_program and version is None:
            script_modules.note((lambda values: _set(kind, values), (set_attributes, attributes)))
    if place is not None:
        module, name, outermost = place
        script_modules.place(kind if outermost is None else outermost, module, name)


# class -> names of the attributes that the last call of `_set` set
_sent: weakref.WeakKeyDictionary[type, set[str]] = weakref.WeakKeyDictionary()


def _set(kind: type, values: tuple[Any, Any]) -> None:
    set_attributes, attributes = values
    set_attributes(kind, attributes)
    names = {*(attributes[0][2] if set_attributes is set_enum else attributes[0])}
    for name in _sent.get(kind, set()) - names:
        if name in vars(kind):
            delattr(kind, name)
    _sent[kind] = names


def set_enum(kind: Any, state: tuple[Any, ...]) -> None:
    """Set the attributes of an enumeration class and of its members."""
    (set_attributes, members, attributes), *others = state
    set_attributes(kind, (attributes, *others))
    for name, values in members.items():
        vars(kind[name]).update(values)


if TYPE_CHECKING:

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
    """The global variables of a function, pickled as the name of their module.

    The receiver imports the module if it can; else it creates a copy of the module.

    For example, the function that a decorator of an installed library returns is pickled in this way.
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
    names = {name: scope[name] for name in names_of(code) if name in scope}
    contents = tuple(map(contents_of, function.__closure__ or ()))
    if pickler.watch is not None:
        pickler.watch.function(function, names, contents)
    if not pickler.code:  # locks and similar objects are not pickled: the receiver creates new ones
        names = {name: pickler.owned(value) for name, value in names.items()}
        contents = tuple(map(pickler.owned, contents))
    slots = {name: getattr(function, name) for name in _SLOTS if hasattr(function, name)}
    if submodules := used_submodules(code, (*names.values(), *contents)):
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
    if (before := known_classes.setdefault(number, kind)) is not kind:
        raise pickle.PicklingError(f"{kind} has the number of {before}")
    is_own = kind not in received_classes
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
    version = version_of(kind) if is_own else received_classes[kind]
    place = None
    if is_named(kind, kind.__module__, kind.__qualname__):
        first, dot, _ = kind.__qualname__.partition(".")
        place = kind.__module__, first, getattr(sys.modules[kind.__module__], first) if dot else None
    if isinstance(kind, enum.EnumMeta):  # cloudpickle sends only the values of enum members, not their other attributes
        set_attributes, attributes = set_enum, (set_attributes, _attributes_of_members(kind), attributes)
    return (
        make_class,
        (number, make, args, kind.__qualname__),
        (set_attributes, (attributes, *state[1:]), is_own, version, place),
        None,
        None,
        set_class,
    )


def _attributes_of_members(kind: enum.EnumMeta) -> dict[str, dict[str, object]]:
    own = {"_value_", "_name_", "__objclass__", "_sort_order_"}
    members: list[Any] = list(kind)
    return {each.name: {key: value for key, value in vars(each).items() if key not in own} for each in members}
