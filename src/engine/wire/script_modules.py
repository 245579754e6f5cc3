"""The copies of a program's modules in its workers: ``__main__``, with the names that the program sends.

A function or class that is sent as a copy belongs to a module of the program, usually its script or notebook, which a
worker cannot import. The worker has a module of that name instead (`Namespace`). It contains the globals of those
functions, and `pickle`, `multiprocessing`, `inspect` and `typing` find the classes in it. Therefore these work:

=====================================  =================================================================================
in a task                              because
=====================================  =================================================================================
pickle.dumps, torch.save, joblib.dump  a class is found under its name in ``sys.modules["__main__"]``
pickle.loads of a saved object         names that no function mentions are loaded when they are first used
multiprocessing, by fork               a child has the parent's ``__main__``
multiprocessing, by spawn, forkserver  a child loads the names of its parent's ``__main__`` (`spawned_main`)
DataLoader, mp.Queue, mp.spawn         as above
inspect.getsource, torch.jit.script    `linecache` has the program's sources if the node does not have the files
typing.get_type_hints                  a class's module has the names that its annotations use
a cache in a global                    a name keeps its value until the program sends another one
=====================================  =================================================================================

The program itself unpickles results with the same functions. There, a name refers to the program's own modules, which
are not changed.
"""

from __future__ import annotations

import builtins
import importlib
import linecache
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import dumps, loads
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

from ...lazy_named_tuple import NamedTuple
from . import random_streams

MAIN = "__main__"
_NEW = "<new>"  # temporary name of a new function until its attributes are set
_ATOMIC = {type(None), bool, bytes, complex, float, int, str}
# types of objects that each process has for itself
_OWNED = {type(threading.Lock()), type(threading.RLock()), threading.local}
_MISSING = object()
_loading = threading.RLock()

# `namespace`: the namespace of the program that this thread runs; `recorded`: see `recording`
_local = threading.local()
_namespaces: dict[str, Namespace] = {}  # token that identifies a program -> namespace of the program in this process


class _Process:
    last: Namespace | None = None  # the namespace of the last task; None if this process runs no tasks


_process = _Process()


class Namespace:
    """The copies of one program's modules in this process."""

    def __init__(self, rest: bytes = b"") -> None:
        """Create a namespace without modules.

        ``rest``: a compressed pickle of a dictionary from name to pickled value. Its values are loaded when they are
        needed.
        """
        self._modules: dict[str, ModuleType] = {}
        self._values: dict[str, dict[str, object]] = {}  # module -> {name: value}, as the program sent them
        self._rest: bytes | dict[str, bytes] = rest
        self._newest_rest = rest
        # names that were loaded from `_rest`; when the program sends a new `_rest`, they are loaded again
        self._loaded: set[str] = set()
        # name that was loaded from `_rest` -> random number generators in the name's value
        self.generators: dict[str, list[random_streams.Used]] = {}
        self._reloads: dict[str, int] = {}  # module -> how often the program has reloaded it
        self._applied: object = None  # the program whose names are currently set in the modules

    # --- names that a program sends ------------------------------------------------------------------------------

    def update(self, script: Script) -> None:
        """Apply a new description of the program's script."""
        sys.path.extend(folder for folder in script.path if folder not in sys.path and Path(folder).is_dir())
        self._reload({name: times for name, times in script.reloads if self._reloads.get(name, 0) != times})
        if script.rest and script.rest != self._newest_rest:
            self._rest = self._newest_rest = script.rest
            loaded, self._loaded = self._loaded, set()
            for name in loaded:
                try:
                    self._load_rest(name)
                except AttributeError:  # a task that uses the name gets this error; the old value must not be used
                    self.module(MAIN, {}).__dict__.pop(name, None)
        if script.sources:
            for name, text in loads(zlib.decompress(script.sources)).items():
                linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        self.module(MAIN, script.attributes)
        if script.needs_rest:
            self._load_rest()

    def _reload(self, due: dict[str, int]) -> None:
        """Reload modules that the program has reloaded.

        A module that fails is tried again after the others, because it may import new names from them. If there are
        several modules, all are reloaded twice, because the first time a module may import old values from another
        module.

        Raises:
            Exception: a module's own error. The task fails with it, because it must not run with the old module.
        """
        again = tuple(name for name in due if name in sys.modules) if len(due) > 1 else ()
        while due:
            failed: dict[str, int] = {}
            errors: list[Exception] = []
            for name, times in due.items():
                try:
                    if name in sys.modules:
                        importlib.reload(sys.modules[name])
                except Exception as error:  # noqa: BLE001  code of the user's
                    failed[name] = times
                    errors.append(error)
                else:
                    self._reloads[name] = times
            if len(failed) == len(due):
                raise errors[0]
            due = failed
        for name in again:
            importlib.reload(sys.modules[name])

    def apply(self, program: object, names: Iterable[Record]) -> None:
        """Set names in the program's modules, and attributes of its classes, to the values that the program sent."""
        if self._applied is not program:
            self._applied = program
            for owner, values in names:
                if isinstance(owner, str):
                    self._bind(owner, values)
                else:
                    owner(values)

    def module(self, name: str, attributes: Mapping[str, object]) -> ModuleType:
        """Return the module of this process that stands for the program's module ``name``."""
        module = self._modules.get(name)
        if module is None:
            self._modules[name] = module = ModuleType(name)
            module.__dict__.update({key: value for key, value in attributes.items() if key != "__file__"})
            module.__dict__["__builtins__"] = builtins
            module.__dict__["__getattr__"] = _Later(self if name == MAIN else None, name)
            if name == MAIN:
                sys.modules[MAIN] = module
            elif name not in sys.modules:
                _place(name, module)
        file = attributes.get("__file__")
        if "__file__" not in module.__dict__ and isinstance(file, str) and _has_source(file):
            module.__file__ = file
        return module

    def bind(self, module: str, values: dict[str, object]) -> None:
        note((module, values))
        self._bind(module, values)

    def _bind(self, module: str, values: dict[str, object]) -> None:
        """Set names of a module.

        If the program sends an unchanged value again, the current value in this process stays.
        """
        scope = self.module(module, {}).__dict__
        before = self._values.setdefault(module, {})
        for name, value in values.items():
            if value is _Loading or (type(value) in _OWNED and type(scope.get(name)) is type(value)):
                continue
            if name not in scope or not _is_same(before.get(name, _MISSING), value):
                scope[name] = value
            before[name] = value

    # --- names that are loaded when they are first used ----------------------------------------------------------

    def later(self, name: str) -> object:
        """Return the value of a name of the script that no received function mentions.

        Raises AttributeError if the script has no such name.
        """
        if not name.startswith("__"):
            self._load_rest(name)
            scope = self.module(MAIN, {}).__dict__
            if name in scope:
                return scope[name]
        raise AttributeError(f"module '{MAIN}' has no attribute {name!r}", name=name)

    def _load_rest(self, *names: str) -> None:
        """Load the values of these names from the pickle that the program sent (``_rest``). Without names: load all."""
        rest = self._rest
        if isinstance(rest, bytes):
            self._rest = rest = loads(zlib.decompress(rest)) if rest else dict[str, bytes]()
        _loading.acquire()
        previous, _local.namespace = getattr(_local, "namespace", None), self
        try:
            for name in names or tuple(rest):
                data = rest.pop(name, None)
                if data is not None:
                    try:
                        self._load_name(name, data)
                    except Exception as error:
                        if names:
                            rest[name] = data  # keep the pickle, so that the next use raises the same error
                            raise AttributeError(f"{name} of {MAIN} cannot be unpickled here", name=name) from error
        finally:
            _local.namespace = previous
            _loading.release()

    def _load_name(self, name: str, data: bytes) -> None:
        """Load the value of one name.

        If the value contains random number generators, set them to the start of the running task's stream.
        """
        generators: list[random_streams.Used] = []
        with random_streams.loading(generators):
            self._bind(MAIN, {name: loads(data)})
        self._loaded.add(name)
        self.generators.pop(name, None)
        if generators:
            self.generators[name] = generators
            if (task := random_streams.task_of()) is not None:
                random_streams.begin_task(generators, *task)

    def names(self) -> tuple[dict[str, object], bytes, object]:
        """Return the contents of ``__main__``: {name: value}, a pickle of the names not loaded yet, ``__file__``."""
        scope = self.module(MAIN, {}).__dict__
        hidden = {"__builtins__", "__spec__", "__loader__", "__getattr__", "__name__"}
        rest = self._rest if isinstance(self._rest, bytes) else zlib.compress(dumps(self._rest, 5), 1)
        return {name: value for name, value in scope.items() if name not in hidden}, rest, scope.get("__file__")


def _has_source(file: str) -> bool:
    """Return whether `inspect` can find the source code of classes that are defined in this file."""
    return file in linecache.cache or Path(file).exists()


class Script(NamedTuple):
    """The description of a program's script. Workers need it to run the script's functions."""

    token: str  # identifies the program; each worker has one namespace per token
    attributes: Mapping[str, object]  # `__file__` and `__package__` of the program's `__main__`
    path: tuple[str, ...] = ()  # folders that the program added to `sys.path` since the workers started
    # (module, count): how often the program has reloaded each module since the workers started
    reloads: tuple[tuple[str, int], ...] = ()
    rest: bytes = b""  # compressed pickle of {name: pickled function, class or constant of the script}
    sources: bytes = b""  # compressed pickle of {file name: text}, for source files that nodes do not have
    needs_rest: bool = False  # whether the function looks up names given as text, as `globals` and `eval` do


def entered(script: Script) -> Namespace:
    """Return the namespace of the program to which the script belongs.

    The namespace becomes the current namespace of this thread.
    """
    namespace = _namespaces.get(script.token)
    if namespace is None:
        _namespaces[script.token] = namespace = Namespace()
    _local.namespace = namespace
    if namespace is not _process.last:
        _process.last = namespace
        if MAIN in namespace._modules:
            sys.modules[MAIN] = namespace._modules[MAIN]
    return namespace


# (module, {name: value}), or (function that sets the attributes of a class, argument of that function)
Record = tuple[Any, Any]


def note(record: Record) -> None:
    """Record names and values that were set for a program, so that they can be set again later.

    This is necessary after another program has run in this process.
    """
    if (recorded := getattr(_local, "recorded", None)) is not None:
        recorded.append(record)


@contextmanager
def recording(names: list[Record]) -> Iterator[None]:
    """Collect in ``names`` all that this thread sets in the program's modules and classes during the ``with`` block."""
    _local.recorded = names
    try:
        yield
    finally:
        _local.recorded = None


def begin(namespace: Namespace) -> None:
    """Make this namespace the current one of a process that runs no tasks, such as a child process of a task."""
    _process.last = namespace


def _current() -> Namespace | None:
    return getattr(_local, "namespace", None) or _process.last


class _Later:
    """The ``__getattr__`` of a module copy, which has only the names that the program sent."""

    def __init__(self, namespace: Namespace | None, module: str) -> None:
        self._namespace, self._module = namespace, module

    def __call__(self, name: str) -> object:
        if self._namespace is not None:
            return self._namespace.later(name)
        raise AttributeError(
            f"module {self._module!r} has no attribute {name!r} on this node, which has only what functions mention: "
            f"send all of it, by Image(includes=[{self._module.partition('.')[0]!r}])",
            name=name,
        )


def _place(name: str, module: ModuleType) -> None:
    """Add a module to `sys.modules`, where imports find it.

    Create its parent packages, without contents, if they are missing.
    """
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            package = ModuleType(parent)
            package.__path__ = []
            _place(parent, package)
        setattr(sys.modules[parent], last, module)
    sys.modules[name] = module


class _Loading:
    """A placeholder for the value of a name that is still being loaded. The name is set when the value is complete."""


class Empty:
    """A placeholder for the contents of a closure cell whose variable has no value yet."""


def _is_same(before: object, value: object) -> bool:
    return before is value or (type(before) is type(value) and type(value) in _ATOMIC and before == value)


# --- functions that pickles call --------------------------------------------------------------------------------------


def module_scope(name: str, attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the global variables for the copies of a module's functions."""
    namespace = _current()
    if namespace is not None:
        return namespace.module(name, attributes).__dict__
    module = sys.modules.get(name)
    return dict(attributes, __name__=name, __builtins__=builtins) if module is None else module.__dict__


def imported_scope(name: str, attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the global variables of a module. If the module cannot be imported here, return those of its copy."""
    try:
        return importlib.import_module(name).__dict__
    except ImportError:
        return module_scope(name, attributes)


def make_function(code: CodeType, scope: dict[str, Any], cells: tuple[CellType, ...] | None, name: str) -> FunctionType:
    """Return a new function, without attributes.

    If the module already has a function with this name and the same code, return that function instead.
    """
    existing = scope.get(name) if cells is None else None
    if type(existing) is FunctionType and existing.__code__ == code and existing.__globals__ is scope:
        return existing
    scope.setdefault("__builtins__", builtins)
    return FunctionType(code, scope, _NEW, None, cells)


def set_function(function: FunctionType, state: tuple[Any, Any, tuple[Any, ...], dict[str, Any], bool]) -> None:
    """Set a function's attributes, the contents of its closure cells, and the global variables that it uses.

    ``state``: the function's ``__dict__``, its other attributes, the contents of its cells, the global variables, and
    whether the function's module contains the function under its own name.
    """
    attributes, slots, contents, names, is_named = state
    is_new = function.__name__ == _NEW
    if not is_new and _current() is None:
        return  # this process is the program itself, and the function is its own
    if names:
        _bind(function.__globals__, names)
    if is_new:
        function.__dict__.update(attributes)
        for cell, content in zip(function.__closure__ or (), contents, strict=True):
            if content is not Empty:
                cell.cell_contents = content
    for name, value in slots.items():
        if is_new or (name in {"__defaults__", "__kwdefaults__"} and not _is_equal(getattr(function, name), value)):
            setattr(function, name, value)
    if is_named:
        place(function, function.__module__, function.__qualname__)


def make_module(name: str, attributes: Mapping[str, object]) -> ModuleType:
    namespace = _current()
    if namespace is not None:
        return namespace.module(name, attributes)
    return sys.modules.get(name) or ModuleType(name)


def set_module(module: ModuleType, names: dict[str, object]) -> None:
    _bind(module.__dict__, names)


def named_later(name: str) -> object:
    """Return the value of a name of the script whose value was pickled separately."""
    namespace = _current()
    if namespace is None:
        return getattr(sys.modules[MAIN], name)
    scope = namespace.module(MAIN, {}).__dict__
    if name not in scope:
        namespace._load_rest(name)
    return scope.get(name, _Loading)


def place(value: Any, module: str, name: str) -> None:
    """Set ``name`` in the worker's copy of ``module`` to ``value``, as in the program's module."""
    namespace = _current()
    if namespace is not None:
        namespace.bind(module, {name: value})


def _bind(scope: dict[str, Any], names: dict[str, object]) -> None:
    name = scope.get("__name__")
    namespace = _current()
    if namespace is not None and name in namespace._modules and namespace._modules[name].__dict__ is scope:
        namespace.bind(name, names)
    elif getattr(sys.modules.get(str(name)), "__dict__", None) is scope:
        for each, value in names.items():  # the module is the program's own, not a copy: keep its values
            scope.setdefault(each, value)
    else:
        scope.update(names)


def _is_equal(before: Any, value: Any) -> bool:
    """Return whether two sets of default values of function parameters are equal."""
    if isinstance(before, dict) and isinstance(value, dict):
        return before.keys() == value.keys() and all(_is_same(before[name], value[name]) for name in value)
    if isinstance(before, tuple) and isinstance(value, tuple):
        return len(before) == len(value) and all(map(_is_same, before, value))
    return before is value
