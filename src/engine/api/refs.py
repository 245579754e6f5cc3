"""`Ref`: the reference that `Pool.put` and ``keep=True`` return in place of a value."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from .pending_base import awaited_as

T = TypeVar("T")


class Stored(Protocol):
    """A value that is stored on nodes: `serialization.stored_objects.StoredObject`."""

    @property
    def at(self) -> Any: ...


class Reference(Generic[T]):
    """The base class of `Ref` and `SyncRef`: stands for a value in the arguments of its pool's calls."""

    __slots__ = ("_stored", "_within")

    def __init__(self, stored: Stored, within: Any) -> None:
        """``stored``: the stored object. ``within``: the `Objects` or the pool whose `get` fetches the value."""
        self._stored, self._within = stored, within

    @property
    def typed(self) -> T:
        """The reference itself, typed as its value for type checkers: ``f(ref.typed)`` is ``f(ref)``."""
        return self  # type: ignore[return-value]  # what a task gets for it is of that type

    def __reduce__(self) -> tuple[Any, ...]:
        return self._stored.__reduce__()  # type: ignore[return-value]

    def __repr__(self) -> str:
        at = self._stored.at
        where = " (lost)" if at.lost else f" on node {at.home.node}" if at.home is not None else ""
        made_by = f" of {at.producer.partition(' on node ')[0]}" if at.producer else ""
        return f"<{type(self).__name__}{made_by}: {at.size_bytes:,} bytes{where}>"


class Ref(Reference[T]):
    """A reference to a value on the nodes of a pool: from `Pool.put`, or from a call with ``keep=True``.

    Pass a ref as an argument to a call of the same pool, directly or within lists, dicts and objects: the function
    receives the value. The value is freed when no reference to it is left.
    """

    __slots__ = ()

    @awaited_as("await ref.get()")
    async def get(self) -> T:
        """Return the value, a new copy each time.

        Raises:
            NodeLost: The node with the value is lost, and the value cannot be computed again.
            PoolClosed: The pool has ended.
        """
        objects: Any = self._within
        return await objects.get(self._stored)  # type: ignore[no-any-return]


class SyncRef(Reference[T]):
    """A `Ref` of a pool that was opened by `with`."""

    __slots__ = ()

    def get(self) -> T:
        """Return the value, as `Ref.get` does."""
        pool: Any = self._within
        return pool._wait(pool._get, self._stored)  # type: ignore[no-any-return]
