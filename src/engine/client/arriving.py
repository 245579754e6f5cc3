"""Pickling of items of maps and of calls of `as_completed`, as soon as the caller's iterator yields them.

The caller's iterator may change an item when it is advanced, so each item is pickled before the next is requested.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...lazy_dataclass import dataclass
from ..api.calls import Call, pending
from ..api.errors import NotACall, SerializationError
from ..serialization.frozen_items import FrozenItem, is_fixed_value

if TYPE_CHECKING:
    from ..api.task_options import Options
    from ..serialization.frozen_items import ItemPickler
    from ..serialization.task_payload import Payload
    from .job_intake import JobIntake

Arrival = tuple[Any, Callable[[], None] | None]  # the type `Arrival` of `client_streams.Freezer`


@dataclass(frozen=True, slots=True)
class LoneItem:
    """A large item of a map, which gets a task of its own, already packed."""

    kind: type
    payload: Payload

    def __repr__(self) -> str:
        return f"<{self.kind.__name__}>"


@dataclass(frozen=True, slots=True)
class ArrivedCall:
    """A packed call of `as_completed`."""

    payload: Payload
    options: Options


@dataclass(frozen=True, slots=True)
class Refused:
    """An item that cannot be pickled, or a value that was passed where a call is required."""

    kind: type
    error: Exception

    def __repr__(self) -> str:
        return f"<{self.kind.__name__}>"


class ItemFreezer:
    """Implements `Freezer` for the items of a map."""

    def __init__(self, core: JobIntake, call_of: Callable[[list[Any]], Call[Any]]) -> None:
        """``call_of`` returns the call of a task that runs these items."""
        self._core, self._call_of = core, call_of
        self._pickler: ItemPickler | None = None

    def freeze(self, item: Any) -> Any:
        if is_fixed_value(item):
            return item
        return None if self._pickler is None else self._pickler(item)

    def pack(self, item: Any) -> Arrival:
        call, packer = self._call_of([item]), self._core.packer
        if self._pickler is None:
            self._pickler = packer.item_pickler(call.function)
            if (frozen := self._pickler(item)) is not None:
                return frozen, None
        try:
            payload = packer.pack(call)
        except (SerializationError, NotACall) as error:
            return Refused(type(item), error), None
        return LoneItem(type(item), payload), _copying(payload)


class CallFreezer:
    """Implements `Freezer` for the calls of `as_completed`."""

    def __init__(self, core: JobIntake) -> None:
        self._core = core

    def freeze(self, call: Any) -> Any:
        if type(call) is not Call:
            return None
        is_fixed = all(map(is_fixed_value, call.args)) and all(map(is_fixed_value, call.kwargs.values()))
        return call if is_fixed else None

    def pack(self, call: Any) -> Arrival:
        try:
            packed = pending(call)
            payload = self._core.packer.pack(packed)
        except (SerializationError, NotACall) as error:
            return Refused(type(call), error), None
        return ArrivedCall(payload, packed.options), _copying(payload)


def _copying(payload: Payload) -> Callable[[], None] | None:
    return payload.own if payload.borrowed_bytes else None


_APART = frozenset({LoneItem, Refused, FrozenItem})  # types of the items that may need a task of their own


def by_task(items: Sequence[Any]) -> list[list[Any]]:
    """Split items into one list for each task. A large item gets a task of its own."""
    if _APART.isdisjoint(map(type, items)):
        return [list(items)]
    tasks: list[list[Any]] = []
    joins = False  # True if the next item may be added to the last task
    for item in items:
        alone = type(item) in (LoneItem, Refused) or (type(item) is FrozenItem and item.is_large)
        if joins and not alone:
            tasks[-1].append(item)
        else:
            tasks.append([item])
        joins = not alone
    return tasks
