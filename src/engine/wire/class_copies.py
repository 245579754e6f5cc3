"""Classes that are sent as copies: each is created once per process, and keeps its identity in its own program.

A number identifies a class. Its metaclass and the hooks of its base classes, if the program defines them, ran when the
program created the class, and do not run again.
"""

from __future__ import annotations

import threading
import types
import weakref
from typing import Any

from . import script_modules

_making = threading.RLock()  # tasks in several threads may receive classes at the same time

known_classes: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()  # number of a class -> the class
received_classes: weakref.WeakKeyDictionary[type, object] = weakref.WeakKeyDictionary()  # received class -> its version


def make_class(number: str, make: Any, args: tuple[Any, ...], qualname: str) -> type:
    """Return the class with this number: the existing one, or a new one."""
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
    """Create a class whose metaclass the program defines, without calling the metaclass: it ran in the program."""
    resolved = types.resolve_bases(bases)
    if resolved is not bases:
        attributes["__orig_bases__"] = bases
    make = next(each for each in metaclass.__mro__ if each not in received_classes).__new__
    return _subclass(make, (metaclass, name, resolved, attributes))


def _subclass(make: Any, args: tuple[Any, ...]) -> type:
    """Create a class without the hooks of the program's base classes: they ran in the program, with their arguments."""
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
    """Set a class's attributes, unless this program defines the class or the class already has them.

    ``state``: the function that sets the attributes; its argument; whether the attributes come from the program that
    created the class; the version; and (module, name, object) of the place that contains the class, or None.
    """
    set_attributes, attributes, is_from_its_program, version, place = state
    if kind in received_classes:
        before = received_classes[kind]
        if before is None or (is_from_its_program and (version is None or version != before)):
            _set(kind, (set_attributes, attributes))
            received_classes[kind] = version if version is not None else 0
        # without a version, later changes cannot be detected: set the attributes again after another program
        if is_from_its_program and version is None:
            script_modules.note((lambda values: _set(kind, values), (set_attributes, attributes)))
    if place is not None:
        module, name, outermost = place
        script_modules.place(kind if outermost is None else outermost, module, name)


# class -> names of its attributes when they were last set
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
    """Set the attributes of an enumeration and of its members."""
    (set_attributes, members, attributes), *others = state
    set_attributes(kind, (attributes, *others))
    for name, values in members.items():
        vars(kind[name]).update(values)
