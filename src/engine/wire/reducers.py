"""The reducers of the pickler for everything that is sent between a program and its nodes.

The pickler is cloudpickle's, with additional reducers for objects that cloudpickle or the standard library does not
pickle correctly. All of them are registered here, and apply to functions, arguments, results, streams, `pool.put`,
`keep` and `shard` alike:

================================  ======================================================================================
object                            without its reducer
================================  ======================================================================================
function of the program           has globals of its own, apart from ``__main__``; two closures share no variable
code                              has no file name (cloudpickle 3.1.3)
class of the program              is made anew for each pickle; with ``__slots__``, a result cannot be unpickled
functools.lru_cache, cache        cannot be pickled if the script defines it
functools.cached_property         cannot be pickled in Python 3.11, since it has a lock
functools.singledispatch          cannot be pickled, since it has weak references
typing.NewType, ParamSpec, ...    cannot be pickled if the script defines them
torch.compile                     cannot be pickled
bound method of a module          is copied with its object: ``from random import random`` draws equal numbers
random.Random, numpy's, torch's   the generators of modules are sent with their state
generator that a function uses    draws equal numbers in all processes; with its reducer, each task has its own stream
os.environ                        is sent as a copy: tasks see the program's variables
weak dictionaries, weakref.ref    cannot be pickled
lock or similar in a global       cannot be pickled; with its reducer, each process has its own
struct.Struct, @contextmanager's  cannot be pickled
open file                         silently becomes an io.StringIO; with its reducer, an error is raised
torch.Tensor, Parameter           is sent with a copy of its whole storage; tensors do not share a storage (`tensors`)
================================  ======================================================================================
"""

from __future__ import annotations

import contextlib
import contextvars
import copyreg
import functools
import inspect
import io
import os
import pickle
import struct
import sys
import threading
import typing
import weakref
from collections.abc import Callable
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, cast

from . import copies, random_streams, script_modules
from .copies import Reduced, code_parts, function_parts, is_named, module_parts, travels_as_copy

if TYPE_CHECKING:
    from .copies import Copier


def function_reduced(pickler: Copier, function: FunctionType) -> Reduced:
    """Return how to pickle a function that nodes cannot import."""
    if function.__code__ is _DISPATCHER:
        return _single_dispatch(pickler, function)
    if function.__globals__.get("__name__") == "torch._dynamo.eval_frame" and _is_compiled(function):
        return _compiled(function, cast("Any", function)._torchdynamo_orig_callable)
    make, args, state = function_parts(pickler, function)
    return make, args, state, None, None, script_modules.set_function


# --- objects created by functools and typing --------------------------------------------------------------------------


def _lru_cached(pickler: Copier, cached: Any) -> Reduced:
    module, function = getattr(cached, "__module__", None), cached.__wrapped__
    name = getattr(cached, "__qualname__", "")
    if name and is_named(cached, module, name) and not travels_as_copy(module):
        return NotImplemented
    others = {name: value for name, value in vars(cached).items() if name != "__wrapped__"}
    limits = tuple(cached.cache_parameters().values())
    if type(function) is not FunctionType or not travels_as_copy(function.__module__, function):
        return _cached_again, (function, *limits), others, None, None, _set_cached
    if pickler.watch is not None:
        pickler.watch.saw(FunctionType)
    # The first part is the function without the variables that it uses. The variables follow in the state, because the
    # cached function may itself be one of them.
    _, args, state = function_parts(pickler, function)
    return _make_cached, (*args, *limits), (state, others), None, None, _set_cached


def _make_cached(
    code: CodeType, scope: dict[str, Any], cells: Any, _name: str, maxsize: int | None, typed: bool
) -> object:
    function = script_modules.make_function(code, scope, cells, "")
    return functools.lru_cache(maxsize, typed)(function)


def _cached_again(function: Any, maxsize: int | None, typed: bool) -> object:
    return functools.lru_cache(maxsize, typed)(function)


def _set_cached(cached: Any, state: Any) -> None:
    if isinstance(state, tuple):
        function_state, others = state
        script_modules.set_function(cached.__wrapped__, function_state)
        functools.update_wrapper(cached, cached.__wrapped__)
        state = others
    vars(cached).update(state)


def _cached_property(_: Copier, obj: Any) -> Reduced:
    return functools.cached_property, (obj.func,), (None, {"attrname": obj.attrname, "__doc__": obj.__doc__})


_DISPATCHER = functools.singledispatch(len).__code__  # type: ignore[attr-defined]  # a function has it


def _single_dispatch(pickler: Copier, function: Any) -> Reduced:
    if pickler.watch is not None:
        pickler.watch.may_change = True  # calling `register` may change the dispatcher
    return _make_dispatcher, (), [*function.registry.items()], None, None, _set_dispatcher


def _make_dispatcher() -> object:
    return functools.singledispatch(lambda *_: None)


def _set_dispatcher(dispatcher: Any, registry: list[tuple[type, Any]]) -> None:
    for kind, function in registry:
        dispatcher.register(kind, function)
        if kind is object:
            functools.update_wrapper(dispatcher, function)


def _new_type(_: Copier, obj: Any) -> Reduced:
    if is_named(obj, obj.__module__, obj.__qualname__) and not travels_as_copy(obj.__module__):
        return NotImplemented
    return _make_new_type, (obj.__qualname__, obj.__supertype__, obj.__module__)


def _make_new_type(name: str, supertype: Any, module: str) -> object:
    new_type = cast("Any", typing).NewType(name, supertype)
    new_type.__module__ = module
    return new_type


def _parameter(_: Copier, obj: Any) -> Reduced:
    """Return how to pickle a ParamSpec or a TypeVarTuple."""
    if is_named(obj, obj.__module__, obj.__name__) and not travels_as_copy(obj.__module__):
        return NotImplemented
    return type(obj), (obj.__name__,)


def _alias(_: Copier, obj: Any) -> Reduced:
    """Return how to pickle the alias that a ``type`` statement defines."""
    if is_named(obj, obj.__module__, obj.__name__) and not travels_as_copy(obj.__module__):
        return NotImplemented
    return _make_alias, (obj.__name__, obj.__value__, obj.__type_params__)


def _make_alias(name: str, value: Any, parameters: tuple[Any, ...]) -> object:
    return cast("Any", typing).TypeAliasType(name, value, type_params=parameters)


def _is_compiled(function: FunctionType) -> bool:
    """Return whether torch.compile created a function. Other decorators of torch create functions of the same kind."""
    context = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)).get("self")
    kind = None if context is None else type(copies.contents_of(context)).__name__
    return kind == "OptimizeContext" and hasattr(function, "_torchdynamo_orig_callable")


def _compiled(function: Any, original: Any) -> Reduced:
    """Return how to pickle a function that torch.compile created.

    The receiver compiles the function again, with the same backend and settings.
    """
    cells = dict(zip(function.__code__.co_freevars, map(copies.contents_of, function.__closure__ or ()), strict=True))
    context = cells.get("self")
    backend = getattr(context, "callback", None)
    while inner := getattr(backend, "_torchdynamo_orig_backend", getattr(backend, "_torchdynamo_orig_callable", None)):
        backend = inner
    settings = {"dynamic": getattr(context, "_dynamic", None), "fullgraph": bool(getattr(context, "fullgraph", False))}
    return _compile, (original, getattr(backend, "compiler_fn", backend), settings)


def _compile(function: Any, backend: Any, settings: dict[str, Any]) -> object:
    torch: Any = __import__("torch")
    return torch.compile(function, **({} if backend is None else {"backend": backend}), **settings)


# --- objects of which each process has its own ------------------------------------------------------------------------


def _bound_method(_: Copier, method: Any) -> Reduced:
    return _by_name(method)


def _by_name(method: Any) -> Reduced:
    """Return how to pickle a bound method that a module offers as a function, such as ``random.randint``: by name."""
    owner = method.__self__
    if owner is None or isinstance(owner, ModuleType | type):
        return NotImplemented
    module, name = str(type(owner).__module__), method.__name__
    while module and module != "builtins":
        value = getattr(sys.modules.get(module), name, None)
        if type(value) is type(method) and value == method and not travels_as_copy(module):
            return named, (module, name)
        module = module.rpartition(".")[0]
    return NotImplemented


def named(module: str, name: str) -> Any:
    __import__(module)
    value: Any = sys.modules[module]
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _environ(_: Copier, obj: Any) -> Reduced:
    for name in ("environ", "environb"):
        if obj is getattr(os, name, None):
            return named, ("os", name)
    return NotImplemented


def _context_manager(_: Copier, obj: Any) -> Reduced:
    """Return how to pickle a context manager of ``contextlib.contextmanager`` whose ``with`` block has not begun."""
    if inspect.getgeneratorstate(obj.gen) != inspect.GEN_CREATED:
        return NotImplemented
    return type(obj), (obj.func, obj.args, obj.kwds)


def _file(_: Copier, obj: Any) -> Reduced:
    if obj in (sys.stdout, sys.stderr):
        return NotImplemented
    raise pickle.PicklingError("an open file cannot be sent: give its path, or what it contains")


def _weak_reference(_: Copier, obj: Any) -> Reduced:
    return _refer, (obj(),)


def _refer(obj: Any) -> Any:
    return weakref.ref(_Gone() if obj is None else obj)


class _Gone:
    pass


def _weak_dictionary(_: Copier, obj: Any) -> Reduced:
    return type(obj), (), None, None, iter([*obj.items()])


OWN: dict[type, Callable[[], object]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
    threading.local: threading.local,
}


def _own(pickler: Copier, obj: Any) -> Reduced:
    """Return how to pickle an object such as a lock to which a function refers: each process gets a new object."""
    return (OWN[type(obj)], ()) if pickler.code else NotImplemented


def _variable(pickler: Copier, obj: contextvars.ContextVar[Any]) -> Reduced:
    if not pickler.code:
        return NotImplemented
    try:
        return _make_variable, (obj.name, contextvars.Context().run(obj.get))
    except LookupError:
        return contextvars.ContextVar, (obj.name,)


def _make_variable(name: str, default: object) -> object:
    return contextvars.ContextVar(name, default=default)


OF_TYPE: dict[type, Callable[[Copier, Any], Reduced]] = {
    CodeType: code_parts,
    type(functools.lru_cache(len)): _lru_cached,
    functools.cached_property: _cached_property,
    typing.NewType: _new_type,
    typing.ParamSpec: _parameter,
    typing.TypeVarTuple: _parameter,
    ModuleType: module_parts,
    MethodType: _bound_method,
    BuiltinFunctionType: _bound_method,
    struct.Struct: lambda _, obj: (struct.Struct, (obj.format,)),
    type(contextlib.contextmanager(lambda: iter(()))()): _context_manager,
    io.TextIOWrapper: _file,
    type(os.environ): _environ,
    weakref.ref: _weak_reference,
    weakref.WeakKeyDictionary: _weak_dictionary,
    weakref.WeakValueDictionary: _weak_dictionary,
    **dict.fromkeys(OWN, _own),
    contextvars.ContextVar: _variable,
}
if hasattr(typing, "TypeAliasType"):
    OF_TYPE[cast("Any", typing).TypeAliasType] = _alias

# --- types of loaded libraries ----------------------------------------------------------------------------------------

_loaded: dict[type, Callable[[Any, Any], Reduced]] = {}
_plain: dict[type, Callable[[Any], Any]] = {}


_LIBRARIES = "random", "numpy.random", "torch"


class _Now:
    known: tuple[int | bool, ...] = ()  # the libraries that were imported when the tables of reducers were built


_now = _Now()


class _PlainPickler:
    """A stand-in for `Pickler`, for reducers that Python's plain pickler calls.

    ``code`` is False, because the plain pickler pickles only data, not functions.
    """

    code = False


def of_loaded() -> dict[type, Callable[[Any, Any], Reduced]]:
    """Return the reducers for types of the libraries that this process has imported, such as torch."""
    known = len(copyreg.dispatch_table), *(name in sys.modules for name in _LIBRARIES)
    if known != _now.known:
        _loaded.clear()
        _loaded.update(random_streams.reducers())
        if hasattr(sys.modules.get("torch"), "default_generator"):  # false while torch is still being imported
            from . import tensors

            _loaded.update(tensors.reducers())
        _plain.clear()
        _plain.update(copyreg.dispatch_table)
        for kind in (MethodType, BuiltinFunctionType, type(os.environ)):
            _plain[kind] = _whole(OF_TYPE[kind])
        _plain.update({kind: _whole(reduce) for kind, reduce in _loaded.items()})
        _now.known = known
    return _loaded


def plain_table() -> dict[type, Callable[[Any], Any]]:
    """Return the dispatch table for Python's plain pickler, which cannot copy functions and classes."""
    of_loaded()
    return _plain


def _whole(reduce: Callable[[Any, Any], Reduced]) -> Callable[[Any], Any]:
    """Convert a reducer into a function for a dispatch table, which may not return NotImplemented."""

    def reduced(obj: Any) -> Any:
        reduced_value = reduce(_PlainPickler, obj)
        return obj.__reduce_ex__(5) if reduced_value is NotImplemented else reduced_value

    return reduced
