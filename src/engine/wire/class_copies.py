"""Classes that are sent as copies: the receiver creates each class only once per process.

If the program that defines a class receives it back, for example in a result, it gets its own class. A number
identifies the class. If the program defines a metaclass, or a hook such as ``__init_subclass__``, only the program
calls them: the receiver creates the class without them.
"""

from __future__ import annotations

import threading
import types
import weakref
from typing import Any

from . import script_modules

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
