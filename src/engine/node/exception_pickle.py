"""Pickle an exception so that loading it does not run its class's ``__init__``, which may take other arguments."""

from __future__ import annotations

import pickle
from io import BytesIO
from types import MethodDescriptorType, WrapperDescriptorType
from typing import Any

import cloudpickle


class PortableException:
    """An exception on its way to a client. Unpickling this gives the exception itself."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def __reduce__(self) -> tuple[Any, ...]:
        file = BytesIO()
        _Pickler(file, 5).dump(self._error)
        return pickle.loads, (file.getvalue(),)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException) and _inherits_pickling(type(obj)):
            reduced: tuple[Any, ...] = obj.__reduce__()  # type: ignore[assignment]  # no name: it is inherited
            make, args, *given = reduced
            if make is type(obj):
                return rebuilt, (make, args), _slots(obj) | dict(*filter(None, given)), None, None, restore
        return super().reducer_override(obj)


def _inherits_pickling(kind: type[BaseException]) -> bool:
    """Return whether the class has an ``__init__`` written in Python, and is pickled as the interpreter does it."""
    own_init = not isinstance(kind.__init__, WrapperDescriptorType)
    pickling = (getattr(kind, name, None) for name in ("__reduce__", "__reduce_ex__", "__setstate__"))
    return own_init and all(isinstance(each, MethodDescriptorType) for each in pickling)


def _slots(error: BaseException) -> dict[str, Any]:
    names = []
    for kind in type(error).__mro__:
        declared = kind.__dict__.get("__slots__", ())
        names += [_mangled(name, kind) for name in ((declared,) if isinstance(declared, str) else declared)]
    return {name: getattr(error, name) for name in names if name != "__dict__" and hasattr(error, name)}


def _mangled(name: str, kind: type) -> str:
    """Return the name of a slot ``__secret`` as the interpreter keeps it, with the class's own name before it."""
    private = name.startswith("__") and not name.endswith("__")
    return f"_{kind.__name__.lstrip('_')}{name}" if private and kind.__name__.strip("_") else name


def rebuilt(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Make an exception as the interpreter's own base of its class would, without the class's ``__init__``."""
    error = kind.__new__(kind, *args)
    base = next(each for each in kind.__mro__ if isinstance(each.__dict__.get("__init__"), WrapperDescriptorType))
    base.__init__(error, *args)  # type: ignore[misc]  # a base of this very class
    return error


def restore(error: BaseException, state: dict[str, Any]) -> None:
    for name, value in state.items():
        BaseException.__setattr__(error, name, value)  # its class may be frozen
