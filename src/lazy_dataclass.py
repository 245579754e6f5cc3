"""A replacement for the standard library's `dataclass`, which generates methods of a class with slots only when needed.

The standard library generates and compiles up to eight methods for each class, used or not, and a pool's client has
more than a hundred classes. Here, `__init__` is generated when a class gets its 17th object, and all classes share the
other methods. Measured with Python 3.11 and five fields: defining a class takes 0.06 ms instead of 0.75 ms, generating
`__init__` takes a further 0.2 ms, and making one of the first 16 objects takes 0.005 ms.

The result is a dataclass: `fields`, `replace`, `asdict`, pickling and pattern matching work, and type checkers see the
standard library's decorator. Classes with options or annotations that this module does not support are passed to the
standard library. One difference: a class without a docstring gets none; the standard library would use the class's
signature as its docstring.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from inspect import Signature, get_annotations, signature
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

# annotations that begin with one of these texts need the standard library's `dataclass`
_LEFT_TO_STANDARD = ("KW_ONLY", "InitVar", "dataclasses.")
_NOT_A_FIELD = ("ClassVar", "typing.ClassVar")


class _Absent:
    """The default value that a signature shows for a parameter whose field has a default factory."""

    def __repr__(self) -> str:
        return "<factory>"


_ABSENT = _Absent()
FEW = 16  # number of objects of a class that are made without a generated `__init__`; most classes have fewer objects
_standard: Any = dataclasses.dataclass  # typed as Any, because classes are built from parts in this module


@_standard(init=False, repr=False, eq=False)
class _Changing:
    """A dataclass of the standard library, whose ``__dataclass_params__`` all classes that are not frozen use."""

    field: int


@_standard(init=False, repr=False, eq=False, frozen=True)
class _Frozen:
    """A dataclass of the standard library, whose ``__dataclass_params__`` all frozen classes use."""


_NOTES: dict[bool, Any] = {kind is _Frozen: vars(kind)["__dataclass_params__"] for kind in (_Changing, _Frozen)}
# the standard library's mark for an ordinary field: neither `ClassVar` nor `InitVar`
_ORDINARY = vars(_Changing)["__dataclass_fields__"]["field"]._field_type


def _lazy(
    cls: type | None = None,
    /,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    repr: bool = True,  # noqa: A002 - the standard library's name
    init: bool = True,
    kw_only: bool = False,
    **others: bool,
) -> Any:
    def define(cls: type) -> type:
        annotations = get_annotations(cls)
        known = all(isinstance(text, str) and not text.startswith(_LEFT_TO_STANDARD) for text in annotations.values())
        if slots and known and not others and "self" not in annotations:
            namespace = dict(vars(cls))
            declared = _own(namespace, annotations, kw_only=kw_only)
            return _Definition(cls, _inherited(cls) | declared, frozen=frozen).make(namespace, eq, repr, init)
        kind: type = _standard(frozen=frozen, slots=slots, eq=eq, repr=repr, init=init, kw_only=kw_only, **others)(cls)
        return kind

    return define if cls is None else define(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - exported
else:
    dataclass = _lazy


class _Definition:
    """The definition of one class: its fields, and its `__init__`.

    All classes share the other methods, so that the garbage collector has fewer functions to search.
    """

    __slots__ = ("cls", "fields", "filled", "first_init", "frozen", "init")

    def __init__(self, cls: type, fields: dict[str, Field[Any]], *, frozen: bool) -> None:
        self.cls, self.fields, self.frozen = cls, fields, frozen
        self.init: Callable[..., None] | None = None  # the generated `__init__`; None: not generated yet
        self.filled = 0  # number of objects made without a generated `__init__`
        _check_order(cls, fields.values())

    def make(self, namespace: dict[str, Any], eq: bool, repr: bool, init: bool) -> type:  # noqa: A002
        """Make the class with slots, which is a new class and replaces the decorated one; return it."""
        old = self.cls
        for name in ("__dict__", "__weakref__"):
            namespace.pop(name, None)
        taken = {slot for base in old.__mro__[1:-1] for slot in base.__dict__.get("__slots__", ())}
        positional = (field.name for field in self.fields.values() if field.init and not field.kw_only)
        namespace["__slots__"] = tuple(name for name in self.fields if name not in taken)
        namespace["__dataclass_fields__"], namespace["__dataclass_params__"] = self.fields, _NOTES[self.frozen]
        namespace.setdefault("__match_args__", tuple(positional))
        if init:
            namespace["__init__"] = self.first_init = self._first_init()
            namespace["__signature__"] = _Signature(self)
        namespace.setdefault("__replace__", _replace)
        if repr:
            namespace.setdefault("__repr__", _repr)
        if eq:
            own_hash = namespace.get("__hash__") is not None
            namespace.setdefault("__eq__", _eq)
            namespace["__compared__"], namespace["__hashed__"] = _COMPARED, _HASHED
            if not own_hash:
                namespace["__hash__"] = _hash if self.frozen else None
        if self.frozen:
            namespace["__setattr__"], namespace["__delattr__"] = _refuse_assignment, _refuse_deletion
            namespace.setdefault("__getstate__", _state)
            namespace.setdefault("__setstate__", _set_state)
        self.cls = type(old)(old.__name__, old.__bases__, namespace)
        self.cls.__qualname__ = old.__qualname__
        return self.cls

    def _first_init(self) -> Callable[..., None]:
        definition = self

        def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            if definition.init is not None or not definition.fill(self, args, kwargs):
                (definition.init or definition.write_init())(self, *args, **kwargs)

        return __init__

    def fill(self, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Set the fields of an object without a generated `__init__`, for the first `FEW` objects of the class.

        Return False, and do nothing, if `__init__` has to be generated: for invalid arguments, or after the first `FEW`
        objects.
        """
        self.filled += 1
        if self.filled > FEW:
            return False
        fields = [field for field in self.fields.values() if field.init]
        positional = [field.name for field in fields if not field.kw_only]
        values = {**dict(zip(positional, args, strict=False)), **kwargs}
        missing = [field for field in fields if field.name not in values]
        if len(values) != len(args) + len(kwargs) or len(fields) - len(missing) != len(values):
            return False
        if not all(map(_optional, missing)):
            return False
        for name, field in self.fields.items():
            value = values.get(name, _ABSENT)
            if value is _ABSENT:
                if field.default_factory is not MISSING:
                    value = field.default_factory()
                elif field.default is MISSING:
                    continue
                else:
                    value = field.default
            if self.frozen:
                getattr(self.cls, name).__set__(instance, value)
            else:
                setattr(instance, name, value)
        if hasattr(self.cls, "__post_init__"):
            instance.__post_init__()
        return True

    def write_init(self) -> Callable[..., None]:
        """Generate `__init__` and return it; assign it to the class, unless the class got another `__init__` in the
        meantime.
        """
        names: dict[str, Any] = {"_ABSENT": _ABSENT}
        body = []
        for field in self.fields.values():
            name, value = field.name, field.name
            if field.default_factory is not MISSING:
                names[f"_make_{name}"] = field.default_factory
                value = f"_make_{name}() if {name} is _ABSENT else {name}" if field.init else f"_make_{name}()"
            elif field.default is not MISSING:
                names[f"_default_{name}"] = field.default
                value = name if field.init else f"_default_{name}"
            elif not field.init:
                continue
            if self.frozen:
                names[f"_set_{name}"] = getattr(self.cls, name).__set__
                body.append(f"  _set_{name}(self, {value})")
            else:
                body.append(f"  self.{name} = {value}")
        if hasattr(self.cls, "__post_init__"):
            body.append("  self.__post_init__()")
        init = self._compiled(names, body or ["  pass"])
        self.init = init
        if vars(self.cls)["__init__"] is self.first_init:
            type.__setattr__(self.cls, "__init__", init)
        return init

    def _compiled(self, names: dict[str, Any], body: list[str]) -> Callable[..., None]:
        """Return the function `__init__` with the lines ``body``, which may use ``names``.

        Its globals are the names of the class's module, as for a function that is defined in that module.
        """
        head = f" def __init__({', '.join(['self', *_parameters(self.fields.values())])}):"
        text = "\n".join([f"def make({', '.join(names)}):", head, *body, " return __init__"])
        namespace: dict[str, Any] = {}
        exec(text, vars(sys.modules[self.cls.__module__]), namespace)  # noqa: S102 - of names that Python has checked
        init: Callable[..., None] = namespace["make"](**names)
        init.__qualname__, init.__module__ = f"{self.cls.__qualname__}.__init__", self.cls.__module__
        init.__annotations__ = {field.name: field.type for field in self.fields.values() if field.init}
        init.__annotations__["return"] = None
        return init


class _Signature:
    """The value of a class's ``__signature__``, which `inspect.signature` reads.

    Reading the signature, which is rare, generates `__init__`.
    """

    __slots__ = ("definition",)

    def __init__(self, definition: _Definition) -> None:
        self.definition = definition

    def __get__(self, instance: object, owner: type) -> Signature:
        init = self.definition.init or self.definition.write_init()
        if instance is not None or owner is not self.definition.cls:
            raise AttributeError("__signature__")  # without the attribute, `inspect` uses its normal rules
        whole = signature(init)
        return whole.replace(parameters=list(whole.parameters.values())[1:])


# --- fields -----------------------------------------------------------------------------------------------------------


def _inherited(cls: type) -> dict[str, Field[Any]]:
    fields: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        if "__dataclass_fields__" in base.__dict__:
            fields |= {field.name: field for field in dataclasses.fields(base)}
    return fields


def _own(namespace: dict[str, Any], annotations: dict[str, str], *, kw_only: bool) -> dict[str, Field[Any]]:
    """Return the fields that a class itself declares, and remove their defaults from ``namespace``: slots need these
    names.
    """
    fields: dict[str, Field[Any]] = {}
    for name, annotation in annotations.items():
        if annotation.startswith(_NOT_A_FIELD):
            continue
        default = namespace.pop(name, MISSING)
        field: Any = default if isinstance(default, Field) else dataclasses.field(default=default)
        if field.default is not MISSING and type(field.default).__hash__ is None:
            raise ValueError(f"mutable default {type(field.default)} for field {name}: use default_factory")
        field.name, field.type, field._field_type = name, annotation, _ORDINARY
        if field.kw_only is MISSING:
            field.kw_only = kw_only
        fields[name] = field
    return fields


def _optional(field: Field[Any]) -> bool:
    return field.default is not MISSING or field.default_factory is not MISSING


def _check_order(cls: type, fields: Iterable[Field[Any]]) -> None:
    before = ""
    for field in fields:
        if field.init and not field.kw_only:
            if _optional(field):
                before = field.name
            elif before:
                raise TypeError(f"non-default argument {field.name!r} follows default argument {before!r} in {cls}")


def _parameters(fields: Iterable[Field[Any]]) -> list[str]:
    """Return the source text of each parameter of `__init__`, except ``self``."""
    positional: list[str] = []
    by_name: list[str] = []
    for field in fields:
        if field.init:
            default = f"=_default_{field.name}" if field.default is not MISSING else "=_ABSENT"
            (by_name if field.kw_only else positional).append(field.name + (default if _optional(field) else ""))
    return [*positional, *(["*", *by_name] if by_name else [])]


# --- methods ----------------------------------------------------------------------------------------------------------


class _Values:
    """A class attribute: a function that returns the values of an object's fields, for `==` or for `hash`.

    All classes share two objects of this class. At the first use, a class gets a function of its own in place of the
    shared object.
    """

    def __init__(self, name: str, chosen: Callable[[Field[Any]], bool | None]) -> None:
        """``name``: the name of the class attribute. ``chosen``: a function that returns whether a field takes part."""
        self.name, self.chosen = name, chosen

    def __get__(self, instance: object, owner: type) -> Callable[[object], Any]:
        cls: Any = _who_has(self.name, self, owner)
        values = _values_of([field.name for field in dataclasses.fields(cls) if self.chosen(field)])
        type.__setattr__(cls, self.name, values)
        return values


_COMPARED = _Values("__compared__", lambda field: field.compare)
_HASHED = _Values("__hashed__", lambda field: field.compare if field.hash is None else field.hash)


def _who_has(name: str, value: object, cls: type) -> type:
    """Return the class that defines ``name`` as this ``value``: ``cls`` itself, or a base class."""
    return next(each for each in cls.__mro__ if vars(each).get(name) is value)


def _values_of(names: list[str]) -> Callable[[object], Any]:
    """Return a function that returns the values of the attributes ``names`` of an object, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda one: (getattr(one, names[0]),)) if names else lambda _: ()


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    values = self.__class__.__compared__
    return values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(self.__class__.__hashed__(self))


@recursive_repr()
def _repr(self: object) -> str:
    fields = dataclasses.fields(_who_has("__repr__", _repr, type(self)))
    shown = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields if field.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: object, name: str, value: object) -> None:
    _check_frozen(self, "__setattr__", _refuse_assignment, f"assign to field {name!r}", name)
    object.__setattr__(self, name, value)


def _refuse_deletion(self: object, name: str) -> None:
    _check_frozen(self, "__delattr__", _refuse_deletion, f"delete field {name!r}", name)
    object.__delattr__(self, name)


def _check_frozen(changed: object, method: str, its: object, what: str, name: str) -> None:
    """Refuse to change a field of a frozen class. If the object is a direct instance of that class, refuse any
    attribute.
    """
    cls: Any = _who_has(method, its, type(changed))
    if type(changed) is cls or name in cls.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what}")


def _replace(self: Any, /, **changes: Any) -> Any:
    return dataclasses.replace(self, **changes)


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    # the pickle may be from another version of the class, with other fields
    for field, value in zip(dataclasses.fields(self), state, strict=False):
        object.__setattr__(self, field.name, value)
