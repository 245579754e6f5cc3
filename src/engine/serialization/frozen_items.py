"""Pickling of the items of a map when they arrive.

An iterator may change an item before the item's task is packed, for example if it yields the same list again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import PosixPath
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from ..api.pending_base import Pickled
from ..wire import pickler, reducers
from ..wire.values import INLINE_BYTES

if TYPE_CHECKING:
    from .stored_objects import StoredObject

FIXED = frozenset({type(None), bool, bytes, complex, float, int, str, range, PosixPath})  # types without mutable parts
# maximum number of classes, modules and functions in a list of named objects; then the pickler begins a new list
_MOST_NAMED = 64
_NESTED = 3  # depth to which nested tuples are inspected


def is_fixed_value(value: object, depth: int = _NESTED) -> bool:
    """Return whether a value is certainly immutable.

    False if a quick check cannot prove it. This function may be called in any thread.
    """
    kind = type(value)
    if kind in FIXED:
        return True
    if kind is not tuple or not depth:
        return False
    return all(is_fixed_value(each, depth - 1) for each in value)  # type: ignore[attr-defined]  # it is a tuple


class FrozenItem:
    """An item of a map, pickled when it arrived.

    It replaces the item in the task's arguments, and unpickles as the item.
    """

    __slots__ = ("_head", "_named", "_objects")

    def __init__(self, head: bytes, named: list[Any] | None, objects: tuple[StoredObject, ...]) -> None:
        """Store the pickle ``head`` of an item.

        Args:
            head: The pickle.
            named: The list of classes, modules and functions to which the pickle refers by their index.
            objects: The stored objects to which the item refers.
        """
        self._head, self._named, self._objects = head, named, objects

    @property
    def is_large(self) -> bool:
        return len(self._head) > INLINE_BYTES

    def __reduce__(self) -> tuple[Any, ...]:
        if self._objects:
            from .stored_objects import packing  # imported here, because nodes unpickle items without it

            for stored in self._objects:
                packing.reference(stored)
        return (pickle.loads, (self._head,)) if self._named is None else (thawed, (self._head, self._named))

    def __repr__(self) -> str:
        try:
            return repr(thawed(self._head, self._named or []))
        except Exception:  # noqa: BLE001  its class or an object may exist only on nodes
            return "<item>"


class ItemPickler:
    """The pickler for the items of one map. It may be used in any thread, but only in one thread at a time."""

    def __init__(self, objects: object, *, by_reference: bool) -> None:
        """Create the pickler.

        ``objects``: the pool's stored objects, to which items may refer. ``by_reference``: see `wire.values.dump`.
        """
        from .stored_objects import packing  # imported here, because nodes do not need it

        self._objects, self._by_reference, self._packing = objects, by_reference, packing
        self._file, self._named = io.BytesIO(), list[Any]()
        self._picklers: list[Any] = []  # a `_PlainPickler` and a `_CopyPickler`, which are created at first use
        self._size_bytes = 0  # total size of the current item's buffers

    def __call__(self, item: object) -> FrozenItem | None:
        """Pickle the item as it is now.

        Returns:
            None if the item is large, such as an array, or if it can only be pickled together with its call.
        """
        packing = self._packing
        if len(self._named) >= _MOST_NAMED:  # begin a new list, because each item's pickle contains the whole list
            self._named, self._picklers = [], []
        before, self._size_bytes = Pickled.latest, 0
        objects: tuple[StoredObject, ...] = ()
        named: list[Any] | None = None
        if packing.ever:
            packing.begin(self._objects)
        try:
            head = self._plainly(item) if self._by_reference else None
            if head is None and self._size_bytes <= INLINE_BYTES:
                head, named = self._by_value(item), self._named
        except Exception:  # noqa: BLE001  a __reduce__ may raise anything: `pack` raises it again, with the item's place
            return None
        finally:
            if packing.ever:
                objects = packing.end()
        if head is None or self._size_bytes > INLINE_BYTES or Pickled.latest is not before:
            return None
        return FrozenItem(head, named, objects)

    def _plainly(self, item: object) -> bytes | None:
        with io.BytesIO() as file:
            plain = pickle.Pickler(file, 5, buffer_callback=self.is_small)
            plain.dispatch_table = reducers.plain_table()
            try:
                self._write(file, plain, item)
            except Exception:  # noqa: BLE001  lambdas, local classes: the other pickler tries them
                return None
            head = file.getvalue()
        return None if b"__main__" in head else head

    def _write(self, file: io.BytesIO, chosen: Any, item: object) -> None:
        def again() -> None:
            chosen.clear_memo()
            self._size_bytes = 0

        pickler.write(file, lambda: chosen.dump(item), again)

    def _by_value(self, item: object) -> bytes:
        try:
            return self._pickled(item, 0)
        except Exception:  # noqa: BLE001  as in `_plainly`
            self._size_bytes = 0
            return self._pickled(item, 1)

    def _pickled(self, item: object, number: int) -> bytes:
        if not self._picklers:
            self._picklers = [kind(self._file, self._named, self.is_small) for kind in (_PlainPickler, _CopyPickler)]
        chosen = self._picklers[number]
        self._file.seek(0)
        self._file.truncate()
        chosen.clear_memo()
        self._write(self._file, chosen, item)
        return self._file.getvalue()

    def is_small(self, buffer: pickle.PickleBuffer) -> bool:
        """Return whether the buffer is stored inside the pickle.

        This is so if all buffers of the item together are small.
        """
        self._size_bytes += buffer.raw().nbytes
        return self._size_bytes <= INLINE_BYTES


class _Naming:
    """A mixin for picklers that replaces classes, modules and functions by numbers.

    A task's pickle then contains each of them only once for all items of the task. Copying a class of `__main__` for
    each item would take 0.2 ms. Functions with closures are not replaced.
    """

    _named: list[Any]
    _numbers: dict[int, int]

    def persistent_id(self, obj: Any) -> int | None:
        kind = type(obj)
        if kind is FunctionType:
            if obj.__closure__ is not None:
                return None
        elif (kind is not ModuleType and not isinstance(obj, type)) or getattr(obj, "__module__", "") == "builtins":
            return None
        number = self._numbers.get(id(obj))
        if number is None:
            self._numbers[id(obj)] = number = len(self._named)
            self._named.append(obj)
        return number


class _PlainPickler(_Naming, pickle.Pickler):
    def __init__(self, file: io.BytesIO, named: list[Any], is_small: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, 5, buffer_callback=is_small)
        self.dispatch_table = reducers.plain_table()
        self._named, self._numbers = named, {}


class _CopyPickler(_Naming, pickler.Pickler):
    def __init__(self, file: io.BytesIO, named: list[Any], is_small: Callable[[pickle.PickleBuffer], bool]) -> None:
        super().__init__(file, is_small)
        self._named, self._numbers = named, {}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, named: list[Any]) -> None:
        super().__init__(file)
        self._named = named

    def persistent_load(self, pid: Any) -> Any:
        return self._named[pid]


def thawed(head: bytes, named: list[Any]) -> Any:
    """Return the item that was pickled as ``head``.

    ``named``: the classes, modules and functions to which it refers by index.
    """
    return _Unpickler(io.BytesIO(head), named).load()
