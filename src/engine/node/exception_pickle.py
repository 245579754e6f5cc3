"""Pickling of exceptions of any class.

Unpickling does not run the class's ``__init__``, which may take other arguments than ``args``. Unpicklable arguments
and attributes are left out, and a note of the exception names them. The pickle includes the causes that a traceback
would show.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

from ..wire import pickler

_DEPTH = 16  # maximum length of a chain of causes
_CAUSES = 256  # maximum number of causes in total: each member of an exception group may have its own
_CAUSE_BYTES = 1 << 20
_TEXT_CHARACTERS = 500  # maximum length of the text that replaces an unpicklable argument
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was created at run time, not compiled in C

_LINKS = ("__cause__", "__context__", "__suppress_context__")
# (pickled cause, whether it is `__cause__`, whether it is `__context__`, the error's `__suppress_context__`)
Links = tuple[bytes | None, bool, bool, bool]


def dumps(error: BaseException, *, causes: bool = True, most_bytes: int | None = None) -> bytes:
    """Return a pickle of the error.

    Args:
        causes: whether the pickle includes the causes.
        most_bytes: the pickle of a larger error is made without its causes, and then may have any size.

    Raises:
        Exception: the class of the error cannot be pickled.
    """
    pickled = _dumps(error, _Causes() if causes else None)
    fits = not causes or most_bytes is None or len(pickled) <= most_bytes
    return pickled if fits else _dumps(error, None)


def either(first: bytes, second: bytes) -> bytes:
    """Return a pickle that unpickles ``first``, or ``second`` if unpickling ``first`` fails. Both are pickles."""
    return pickle.dumps(_Loaded(first, second), 5)


# --- pickling ---------------------------------------------------------------------------------------------------------


class _Causes:
    """The causes of an error, and the causes of those; each is pickled once."""

    def __init__(self) -> None:
        self.pickles: dict[int, bytes] = {}  # id of a cause -> its pickle
        self.path: list[int] = []  # ids of the errors being pickled: the error, its cause, the cause of that, ...

    def pickle(self, error: BaseException) -> tuple[bytes | None, str]:
        """Return (pickle of a cause, ""), or (None, why it is left out)."""
        if (pickled := self.pickles.get(id(error))) is None:
            if len(self.path) > _DEPTH or len(self.pickles) >= _CAUSES:
                return None, ", one of very many"
            try:
                self.pickles[id(error)] = pickled = _dumps(error, self)
            except Exception:  # noqa: BLE001  the error's class cannot be pickled
                return None, ""
        return (pickled, "") if len(pickled) <= _CAUSE_BYTES else (None, ", too large")

    def links(self, error: BaseException, left_out: list[str]) -> Links | None:
        """Return the links from an error to the cause that its traceback would show; None if there are none.

        The cause has a pickle of its own: if unpickling the cause fails, the error can still be unpickled.
        """
        cause, context, hidden = (BaseException.__dict__[name].__get__(error) for name in _LINKS)
        shown = context if cause is None and not hidden else cause
        if shown is None or id(shown) in self.path:
            return (None, False, False, True) if hidden else None
        pickled, reason = self.pickle(shown)
        if pickled is None:
            left_out.append(f"{'.__context__' if cause is None else '.__cause__'} ({_name(shown)}{reason})")
        return pickled, cause is shown, context is shown, hidden


class _Loaded:
    """An object whose unpickling calls `loaded` with these arguments, and returns the result."""

    def __init__(self, *arguments: Any) -> None:
        self._arguments = arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return loaded, self._arguments


def _dumps(error: BaseException, causes: _Causes | None) -> bytes:
    left_out: list[str] = []
    if causes is None:
        return _dumps_alone(error, None, None, left_out)
    causes.path.append(id(error))
    try:
        return _dumps_alone(error, causes, causes.links(error, left_out), left_out)
    finally:
        causes.path.pop()


def _dumps_alone(error: BaseException, causes: _Causes | None, links: Links | None, left_out: list[str]) -> bytes:
    """Pickle an error with these links to its cause.

    Errors in its attributes, and the members of an exception group, get links to their own causes, from ``causes``.
    """
    second = None
    whole = BytesIO()
    pickler = _Pickler(whole, error, causes)
    try:
        pickler.dump(error)
    except Exception:  # noqa: BLE001  the error may hold a lock, a socket, an object whose __reduce__ fails
        first = _dumps_in_parts(error, causes)
    else:
        first = whole.getvalue()
        if pickler.has_own_ways:
            with suppress(Exception):  # only the class's own `__reduce__` can pickle the error
                second = _dumps_in_parts(error, causes)
    if links is None and not left_out and second is None:
        return first
    return pickle.dumps(_Loaded(first, second, links, left_out), 5)


def _dumps_in_parts(error: BaseException, causes: _Causes | None) -> bytes:
    file = BytesIO()
    _Pickler(file, error, causes, in_parts=True).dump(error)
    return file.getvalue()


class _Pickler(pickler.Pickler):
    """A pickler of an error.

    Args:
        root: the error, whose own links to its cause are stored outside of this pickle.
        causes: the source of links for other errors in the pickle; None: no links.
        in_parts: check each argument and attribute separately, and leave out the unpicklable ones.
    """

    def __init__(self, file: BytesIO, root: BaseException, causes: _Causes | None, *, in_parts: bool = False) -> None:
        super().__init__(file)
        self._root, self._causes, self._in_parts = root, causes, in_parts
        self.has_own_ways = False  # whether the pickle used a class's own `__reduce__`: unpickling it may fail

    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, BaseException):
            return super().reducer_override(obj)
        left_out: list[str] = []
        links = None
        if self._causes is not None and obj is not self._root:  # the root's links are stored outside
            links = self._causes.links(obj, left_out)
        kind = type(obj)
        if self._in_parts:
            if obj is self._root or _can_travel(kind):
                return _reduced(obj, links, left_out, in_parts=True)
            return RuntimeError, (f"{_name(obj)}: {_text(obj)}",)
        if kind in self.dispatch_table or _has_own_way(kind):
            self.has_own_ways = True
            return self._in_own_way(obj, links, left_out)
        if links is None and not left_out and not _has_own_init(kind) and not _slots(obj):
            return super().reducer_override(obj)
        return _reduced(obj, links, left_out)

    def _in_own_way(self, error: BaseException, links: Links | None, left_out: list[str]) -> Any:
        reduce = self.dispatch_table.get(type(error))
        reduced: Any = error.__reduce_ex__(5) if reduce is None else reduce(error)
        if (links is None and not left_out) or isinstance(reduced, str):
            return reduced
        make, args, state, items, pairs, setter = (*reduced, None, None, None, None)[:6]
        return make, args, (state, setter, links, left_out), items, pairs, build


class _Probe(pickler.Pickler):
    """A pickler that only tests whether an object can be pickled.

    An exception in the object counts as picklable, because `_Pickler` leaves out its unpicklable attributes.
    """

    def reducer_override(self, obj: Any) -> Any:
        return (Exception, ()) if isinstance(obj, BaseException) else super().reducer_override(obj)


def _can_travel(value: object) -> bool:
    try:
        _Probe(BytesIO()).dump(value)
    except Exception:  # noqa: BLE001  any error of a __reduce__
        return False
    return True


def _reduced(
    error: BaseException, links: Links | None, left_out: list[str], *, in_parts: bool = False
) -> tuple[Any, ...]:
    kind = type(error)
    reduced: Any = _interpreters(kind).__reduce__(error)
    _, args, *more = reduced
    # The values of slots are stored separately from other attributes. If cloudpickle copies the error's class, the copy
    # has no slots, and the values become ordinary attributes.
    others = _slots(error)
    attributes = {name: value for name, value in vars(error).items() if name not in others}
    for name, value in dict(*filter(None, more)).items():
        if name not in attributes:  # attributes of the built-in class, such as ImportError.name
            others[name] = value
    if in_parts:
        args = tuple(_or_text(arg, f"args[{index}]", left_out) for index, arg in enumerate(args))
        attributes = {name: _or_nothing(value, name, left_out) for name, value in attributes.items()}
        others = {name: _or_nothing(value, name, left_out) for name, value in others.items()}
    return rebuilt, (kind, args), (attributes, others, links, left_out), None, None, restore


def _or_text(value: object, name: str, left_out: list[str]) -> object:
    if _can_travel(value):
        return value
    left_out.append(f"{name} ({_name(value)})")
    return _text(value)


def _or_nothing(value: object, name: str, left_out: list[str]) -> object:
    if _can_travel(value):
        return value
    left_out.append(f".{name} ({_name(value)})")
    return None


def _text(value: object) -> str:
    try:
        text = str(value) if isinstance(value, BaseException) else repr(value)
    except Exception as broken:  # noqa: BLE001  __repr__ is user code
        return f"<its text cannot be read: {type(broken).__name__}>"
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[:_TEXT_CHARACTERS]}..."


def _name(value: object) -> str:
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _interpreters(kind: type[BaseException]) -> Any:
    """Return the nearest built-in exception class from which ``kind`` is derived."""
    base: Any = kind
    while base.__flags__ & _HEAP_TYPE:
        base = base.__base__
    return base


def _has_own_init(kind: type[BaseException]) -> bool:
    """Return whether the class has an ``__init__`` or a ``__new__`` written in Python."""
    return not isinstance(kind.__init__, WrapperDescriptorType) or not isinstance(kind.__new__, BuiltinFunctionType)


def _has_own_way(kind: type[BaseException]) -> bool:
    """Return whether the class defines its own pickling, by ``__reduce__`` or a similar method."""
    ways = [getattr(kind, name, None) for name in ("__reduce__", "__reduce_ex__", "__setstate__")]
    # a frozen dataclass with slots gets this generated `__setstate__`, which takes a list: not the user's own method
    of_dataclass = isinstance(ways[2], FunctionType) and ways[2].__name__ == "_dataclass_setstate"
    return not all(isinstance(way, MethodDescriptorType) for way in (ways[:2] if of_dataclass else ways))


def _slots(error: BaseException) -> dict[str, Any]:
    names = []
    for kind in type(error).__mro__:
        declared = kind.__dict__.get("__slots__", ())
        names += [_mangled(name, kind) for name in ((declared,) if isinstance(declared, str) else declared)]
    hidden = {"__dict__", "__weakref__"}
    return {name: getattr(error, name) for name in names if name not in hidden and hasattr(error, name)}


def _mangled(name: str, kind: type) -> str:
    """Return the mangled name of a slot: ``__secret`` of class C is stored as ``_C__secret``."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private and kind.__name__.strip("_") else name


# --- loading: the pickles refer to these functions by name ------------------------------------------------------------


def loaded(first: bytes, second: bytes | None, links: Links | None = None, left_out: Sequence[str] = ()) -> Any:
    try:
        error = pickle.loads(first)
    except Exception:  # for example, the class's `__reduce__` returns arguments that its `__init__` does not take
        if second is None:
            raise
        error = pickle.loads(second)
    _link(error, links, left_out)
    return error


def rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Create an exception of class ``kind`` by the ``__init__`` of its built-in base class, not by its own."""
    base = _interpreters(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    return error


def restore(error: BaseException, state: tuple[dict[str, Any], dict[str, Any], Links | None, list[str]]) -> None:
    """Set the attributes and the cause of an error that `rebuilt` has created."""
    attributes, others, links, left_out = state
    vars(error).update(attributes)  # setattr could fail: the class may be frozen, or have properties of these names
    for name, value in others.items():
        BaseException.__setattr__(error, name, value)
    _link(error, links, left_out)


def build(error: Any, state: tuple[Any, Any, Links | None, list[str]]) -> None:
    """Set the state that an error's own ``__reduce__`` has returned, as `pickle` does; then set the error's cause."""
    own, setter, links, left_out = state
    if setter is not None:
        setter(error, own)
    elif own is not None and hasattr(error, "__setstate__"):
        error.__setstate__(own)
    _link(error, links, left_out)


def _link(error: BaseException, links: Links | None, left_out: Sequence[str]) -> None:
    if left_out:
        _note(error, f"left out (cannot be pickled): {', '.join(left_out)}")
    if links is None:
        return
    pickled, is_cause, is_context, hidden = links
    if pickled is not None:
        try:
            cause = pickle.loads(pickled)
        except Exception as broken:  # noqa: BLE001  the cause's class cannot be imported here
            _note(error, f"left out (cannot be unpickled here): its cause ({type(broken).__name__}: {broken})")
        else:
            if is_context:
                BaseException.__setattr__(error, "__context__", cause)
            if is_cause:
                BaseException.__setattr__(error, "__cause__", cause)
    BaseException.__setattr__(error, "__suppress_context__", hidden)


def _note(error: BaseException, text: str) -> None:
    notes = vars(error).get("__notes__")
    vars(error)["__notes__"] = [*(notes if isinstance(notes, list | tuple) else ()), text]
