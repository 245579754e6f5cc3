"""The client's side of `Ref`: objects that a pool stores separately from the calls that refer to them.

A `Ref`, the payload of a running call, and the outcome of a job hold references to an object. When the last reference
is gone, all copies of its bytes are freed. A lost object that is recomputed keeps its name, but has other bytes in
other places.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, Protocol

from ...lazy_dataclass import dataclass
from ..api.errors import SerializationError
from ..node import blobs
from ..wire import values

if TYPE_CHECKING:
    from ...actors.interfaces import NodeId
    from .payload import Blob, Received


class Home(Protocol):
    """The node that keeps an object produced on it."""

    node: NodeId

    async def bring(self, at: Whereabouts) -> Received:
        """Return the bytes. Raise a ConnectionError if the node is lost."""
        ...

    def let_go(self, name: str) -> None: ...

    def forget(self, name: str) -> None:
        """Drop a copy of an object that another node keeps."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Whereabouts:
    """The places of an object's bytes: ``blob`` on the client, ``kept_as`` at ``home``, or both.

    Without either it is lost.
    """

    name: str  # name of the bytes on nodes
    sizes: tuple[int, ...] | None
    size_bytes: int
    small: bytes | None = None  # the bytes, if they fit in a frame
    blob: Blob | None = None
    home: Home | None = None
    kept_as: str = ""
    producer: str = ""  # the task and node that produced it, to show
    # (node, name) of copies that were brought from ``home``
    copies: list[tuple[Home, str]] = field(default_factory=list)
    fetching: Any = field(default=None)  # the task that fetches the bytes for nodes that cannot get them from ``home``

    @property
    def lost(self) -> bool:
        return self.home is None and self.blob is None and self.small is None

    @property
    def story(self) -> str:
        return f"what {self.producer} has returned, and was kept there, is lost with that node"

    def lose(self, home: Home) -> None:
        """Note that a node that kept the bytes is lost, unless another node keeps them now."""
        if self.home is home:
            self.home = None


class StoredObject:
    """An object that references share. When the last reference is gone, the object is freed."""

    __slots__ = ("__weakref__", "_at", "_successor", "name", "not_again", "origin", "owner")

    is_long_to_load = False  # a job's outcome of this kind is never unpickled here: see `Received`

    def __init__(self, owner: object, at: Whereabouts, free: Callable[[Whereabouts], None]) -> None:
        """Refer to an object. ``owner``: the pool's objects. ``free``: called in any thread."""
        packing.ever = True
        self.owner, self._at = owner, at
        self.name = at.name  # the object's name in pickles
        self.origin: Any = None  # the call that produced it, if it may run again: see `client.lineage`
        self.not_again = ""  # why that call may not run again
        self._successor: StoredObject | None = None
        weakref.finalize(self, free, at).atexit = False

    @property
    def at(self) -> Whereabouts:
        return self._at if self._successor is None else self._successor.at

    def is_now(self, successor: StoredObject) -> None:
        """Take over the bytes of another object, which is freed together with this one."""
        self._successor = successor

    def drop(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return packing.reference(self)


class Keeps(Protocol):
    """The interface of a pool's objects for code that receives results of tasks."""

    def keep(self, at: Whereabouts) -> StoredObject: ...

    def result(self, outcome: Received | StoredObject, producer: str, /) -> object:
        """Return the `Ref` of a task's result."""
        ...


class InThread(threading.local):
    owner: object = None  # owner of the call that is being pickled in this thread
    references: tuple[StoredObject, ...] = ()  # stored objects that this call refers to


class Packing:
    """The calls that are being pickled, one per thread, and the objects that they refer to."""

    ever = False  # whether any stored object was ever created; until then, calls need no check

    def __init__(self) -> None:
        self._here = InThread()

    def begin(self, owner: object) -> None:
        self._here.owner = owner

    def end(self) -> tuple[StoredObject, ...]:
        """Return the objects that the call refers to, without duplicates."""
        here = self._here
        here.owner = None
        if not here.references:
            return ()
        references, here.references = here.references, ()
        return tuple(dict.fromkeys(references))

    def reference(self, stored: StoredObject) -> tuple[Any, ...]:
        here = self._here
        if here.owner is None:
            raise SerializationError(
                "A Ref is an argument of calls of its pool and cannot be pickled otherwise, as with a function that "
                "uses it as a global: give it to the call, or get its value.",
                kind="outrider.Ref",
            )
        if here.owner is not stored.owner:
            raise SerializationError(
                "This Ref is of another pool, whose nodes have the value: get it there, and put it into this one.",
                kind="outrider.Ref",
            )
        at = stored.at
        if at.small is not None:
            return values.load, (at.small, at.sizes)
        here.references += (stored,)
        return blobs.resolve_object, (stored.name,)


packing = Packing()
