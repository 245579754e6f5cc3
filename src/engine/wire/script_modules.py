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
_NEW = "<new>"  # the name of a new function whose attributes are not set yet
_ATOMIC = {type(None), bool, bytes, complex, float, int, str}
# types of objects that each process has for itself
_OWNED = {type(threading.Lock()), type(threading.RLock()), threading.local}
_MISSING = object()
_loading = threading.RLock()

_local = threading.local()  # `namespace`: of the program that this thread runs; `recorded`: see `recording`
_namespaces: dict[str, Namespace] = {}  # token of a program -> its namespace in this process


class _Process:
    last: Namespace | None = None  # the namespace entered last; None: this process runs no tasks


_process = _Process()


class Namespace:
    """The modules of one program in this process."""

    def __init__(self, rest: bytes = b"") -> None:
        """Create an empty namespace.

        ``rest``: a dictionary with the pickles of names not needed yet, pickled and compressed.
        """
        self._modules: dict[str, ModuleType] = {}
        self._values: dict[str, dict[str, object]] = {}  # module -> the names and values that the program has sent
        self._rest: bytes | dict[str, bytes] = rest
        self._newest_rest = rest
        self._loaded: set[str] = set()  # names from `_rest` that are in use; newer versions replace them
        self.generators: dict[str, list[random_streams.Used]] = {}  # by name that was loaded from the rest
        self._reloads: dict[str, int] = {}  # module -> how often the program has reloaded it
        self._applied: object = None  # the program whose names are now in the modules

    # --- names that a program sends ------------------------------------------------------------------------------

    def update(self, script: Script) -> None:
        """Apply a program's description of its script."""
        sys.path.extend(folder for folder in script.path if folder not in sys.path and Path(folder).is_dir())
        self._reload({name: times for name, times in script.reloads if self._reloads.get(name, 0) != times})
        if script.rest and script.rest != self._newest_rest:
            self._rest = self._newest_rest = script.rest
            loaded, self._loaded = self._loaded, set()
            for name in loaded:
                try:
                    self._load_rest(name)
                except AttributeError:  # raised again for a task that needs the name: the old version must not run
                    self.module(MAIN, {}).__dict__.pop(name, None)
        if script.sources:
            for name, text in loads(zlib.decompress(script.sources)).items():
                linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        self.module(MAIN, script.attributes)
        if script.needs_rest:
            self._load_rest()

    def _reload(self, due: dict[str, int]) -> None:
        """Reload modules, in an order that lets each import new names of the others.

        Several modules are reloaded twice: the first time, one may have imported old values of another.

        Raises:
            Exception: The error of a module. It is the task's, because the old version must not run.
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
        """Set the names in the program's modules and the attributes of its classes to the values that were sent."""
        if self._applied is not program:
            self._applied = program
            for owner, values in names:
                if isinstance(owner, str):
                    self._bind(owner, values)
                else:
                    owner(values)

    def module(self, name: str, attributes: Mapping[str, object]) -> ModuleType:
        """Return the local module for functions and classes of the program's module ``name``."""
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
        """Set names of a module. If the program sends a name again with an unchanged value, the local value stays."""
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
        """Return the script's value of a name that no received function mentions.

        Raises AttributeError if there is none.
        """
        if not name.startswith("__"):
            self._load_rest(name)
            scope = self.module(MAIN, {}).__dict__
            if name in scope:
                return scope[name]
        raise AttributeError(f"module '{MAIN}' has no attribute {name!r}", name=name)

    def _load_rest(self, *names: str) -> None:
        """Load these names; without arguments, load all names."""
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
                            rest[name] = data  # the next use fails alike
                            raise AttributeError(f"{name} of {MAIN} cannot be unpickled here", name=name) from error
        finally:
            _local.namespace = previous
            _loading.release()

    def _load_name(self, name: str, data: bytes) -> None:
        """Load one name. The generators of random numbers in its pickle begin the stream of the running task."""
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
        """Return the names of ``__main__``, the pickles of names that were not needed yet, and its file."""
        scope = self.module(MAIN, {}).__dict__
        hidden = {"__builtins__", "__spec__", "__loader__", "__getattr__", "__name__"}
        rest = self._rest if isinstance(self._rest, bytes) else zlib.compress(dumps(self._rest, 5), 1)
        return {name: value for name, value in scope.items() if name not in hidden}, rest, scope.get("__file__")


def _has_source(file: str) -> bool:
    """Return whether `inspect` can find the source of classes with this file path."""
    return file in linecache.cache or Path(file).exists()


class Script(NamedTuple):
    """The description of a program's script, for the workers that run its functions."""

    token: str  # identifies the program, and so its modules in a worker
    attributes: Mapping[str, object]  # `__file__` and `__package__` of the program's `__main__`
    path: tuple[str, ...] = ()  # folders added to `sys.path` since the workers started
    reloads: tuple[tuple[str, int], ...] = ()  # (module, count) of modules reloaded since the workers started
    rest: bytes = b""  # name -> function, class or constant of the script, pickled and compressed
    sources: bytes = b""  # file name -> text, pickled and compressed, for files that nodes do not have
    needs_rest: bool = False  # whether the function looks up names given as text, as `globals` and `eval` do


def entered(script: Script) -> Namespace:
    """Return the namespace of a script's program, and make it the current one in this thread."""
    namespace = _namespaces.get(script.token)
    if namespace is None:
        _namespaces[script.token] = namespace = Namespace()
    _local.namespace = namespace
    if namespace is not _process.last:
        _process.last = namespace
        if MAIN in namespace._modules:
            sys.modules[MAIN] = namespace._modules[MAIN]
    return namespace


Record = tuple[Any, Any]  # (module, names), or (function that sets a class's attributes, its argument)


def note(record: Record) -> None:
    """Record what was set for a program, so that it can be set again after another program has run."""
    if (recorded := getattr(_local, "recorded", None)) is not None:
        recorded.append(record)


@contextmanager
def recording(names: list[Record]) -> Iterator[None]:
    """Collect in ``names`` everything that this thread sets in the program's modules and classes during the block."""
    _local.recorded = names
    try:
        yield
    finally:
        _local.recorded = None


def begin(namespace: Namespace) -> None:
    """Make this namespace the current one in a process that runs no tasks itself, such as a child of a task."""
    _process.last = namespace


def _current() -> Namespace | None:
    return getattr(_local, "namespace", None) or _process.last


class _Later:
    """The ``__getattr__`` of a module that has only the names that were sent."""

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
    """Add a module to `sys.modules`, where imports find it; create missing packages without contents."""
    parent, _, last = name.rpartition(".")
    if parent:
        if parent not in sys.modules:
            package = ModuleType(parent)
            package.__path__ = []
            _place(parent, package)
        setattr(sys.modules[parent], last, module)
    sys.modules[name] = module


class _Loading:
    """A placeholder for an object that is still being loaded, and whose name is set afterwards."""


class Empty:
    """A placeholder for the contents of an unbound cell."""


def _is_same(before: object, value: object) -> bool:
    return before is value or (type(before) is type(value) and type(value) in _ATOMIC and before == value)


# --- functions that pickles call --------------------------------------------------------------------------------------


def module_scope(name: str, attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the globals for the copies of a module's functions."""
    namespace = _current()
    if namespace is not None:
        return namespace.module(name, attributes).__dict__
    module = sys.modules.get(name)
    return dict(attributes, __name__=name, __builtins__=builtins) if module is None else module.__dict__


def imported_scope(name: str, attributes: Mapping[str, object]) -> dict[str, Any]:
    """Return the globals of a module or, if it cannot be imported here, of a local copy."""
    try:
        return importlib.import_module(name).__dict__
    except ImportError:
        return module_scope(name, attributes)


def make_function(code: CodeType, scope: dict[str, Any], cells: tuple[CellType, ...] | None, name: str) -> FunctionType:
    """Return a new function without attributes; or the module's function of this name, if it has the same code."""
    existing = scope.get(name) if cells is None else None
    if type(existing) is FunctionType and existing.__code__ == code and existing.__globals__ is scope:
        return existing
    scope.setdefault("__builtins__", builtins)
    return FunctionType(code, scope, _NEW, None, cells)


def set_function(function: FunctionType, state: tuple[Any, Any, tuple[Any, ...], dict[str, Any], bool]) -> None:
    """Set a function's attributes, the contents of its cells, and the names that it uses.

    ``state``: its ``__dict__``, its other attributes, the contents of its cells, the names, and whether the function's
    module contains it under its own name.
    """
    attributes, slots, contents, names, is_named = state
    is_new = function.__name__ == _NEW
    if not is_new and _current() is None:
        return  # the function is the program's own
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
    """Return the script's value of a name, which has its own pickle."""
    namespace = _current()
    if namespace is None:
        return getattr(sys.modules[MAIN], name)
    scope = namespace.module(MAIN, {}).__dict__
    if name not in scope:
        namespace._load_rest(name)
    return scope.get(name, _Loading)


def place(value: Any, module: str, name: str) -> None:
    """Set ``name`` in a worker's module to the value that it has in the program's module."""
    namespace = _current()
    if namespace is not None:
        namespace.bind(module, {name: value})


def _bind(scope: dict[str, Any], names: dict[str, object]) -> None:
    name = scope.get("__name__")
    namespace = _current()
    if namespace is not None and name in namespace._modules and namespace._modules[name].__dict__ is scope:
        namespace.bind(name, names)
    elif getattr(sys.modules.get(str(name)), "__dict__", None) is scope:
        for each, value in names.items():  # this is the program's own module
            scope.setdefault(each, value)
    else:
        scope.update(names)


def _is_equal(before: Any, value: Any) -> bool:
    """Return whether two sets of default values are equal."""
    if isinstance(before, dict) and isinstance(value, dict):
        return before.keys() == value.keys() and all(_is_same(before[name], value[name]) for name in value)
    if isinstance(before, tuple) and isinstance(value, tuple):
        return len(before) == len(value) and all(map(_is_same, before, value))
    return before is value
