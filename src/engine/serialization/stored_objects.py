"""The client's side of `Ref`: objects that a pool stores separately from the calls that refer to them.

`Ref` objects, the payloads of running calls and the outcomes of jobs refer to a stored object. When the last of these
references is gone, all copies of the object's bytes are freed. If a lost object is computed again, it keeps its name,
but its bytes are new and in other places.
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
    """The node that keeps an object, because a task there produced the object."""

    node: NodeId

    async def fetch(self, at: Whereabouts) -> Received:
        """Return the bytes of the object. Raises ConnectionError if the node is lost."""
        ...

    def let_go(self, name: str) -> None: ...

    def forget(self, name: str) -> None:
        """Drop the copy of an object that this node has. Another node keeps the object."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Whereabouts:
    """The places where an object's bytes are: in ``blob`` on the client, as ``kept_as`` on the node ``home``, or both.

    If the object is in none of these places, it is lost.
    """

    name: str  # name under which nodes have the bytes
    sizes: tuple[int, ...] | None
    size_bytes: int
    small: bytes | None = None  # the bytes themselves, if they fit in a frame
    blob: Blob | None = None
    home: Home | None = None
    kept_as: str = ""
    producer: str = ""  # the task and node that produced the object, for display
    # (node, name) of the copies that other nodes have fetched from ``home``
    copies: list[tuple[Home, str]] = field(default_factory=list)
    # asyncio task that fetches the bytes to the client, for nodes that cannot get them from ``home``
    fetching: Any = field(default=None)

    @property
    def lost(self) -> bool:
        return self.home is None and self.blob is None and self.small is None

    @property
    def story(self) -> str:
        return f"what {self.producer} has returned, and was kept there, is lost with that node"

    def lose(self, home: Home) -> None:
        """Record that the node ``home`` is lost. No effect if another node keeps the bytes now."""
        if self.home is home:
            self.home = None


class StoredObject:
    """A stored object, to which several `Ref` objects and calls may refer.

    It is freed when the last reference is gone.
    """

    __slots__ = ("__weakref__", "_at", "_successor", "name", "not_again", "origin", "owner")

    # always False: if a job's outcome is a stored object, the client does not unpickle it (see `Received`)
    is_long_to_load = False

    def __init__(self, owner: object, at: Whereabouts, free: Callable[[Whereabouts], None]) -> None:
        """Create the entry for the object whose bytes are at ``at``.

        ``owner``: the pool's collection of stored objects. ``free``: frees the bytes when the last reference is gone;
        may be called in any thread.
        """
        packing.ever = True
        self.owner, self._at = owner, at
        self.name = at.name  # the name that stands for the object in pickles
        self.origin: Any = None  # the call that produced the object, if the call may run again: see `objects.lineage`
        self.not_again = ""  # the reason why that call may not run again
        self._successor: StoredObject | None = None
        weakref.finalize(self, free, at).atexit = False

    @property
    def at(self) -> Whereabouts:
        return self._at if self._successor is None else self._successor.at

    def is_now(self, successor: StoredObject) -> None:
        """Use the bytes of another object from now on. That object is freed together with this object."""
        self._successor = successor

    def drop(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return packing.reference(self)


class Keeps(Protocol):
    """The interface through which code that receives results of tasks uses a pool's stored objects."""

    def keep(self, at: Whereabouts) -> StoredObject: ...

    def result(self, outcome: Received | StoredObject, producer: str, /) -> object:
        """Return the `Ref` for a task's result."""
        ...


class InThread(threading.local):
    owner: object = None  # the pool's stored objects, while this thread pickles a call; else None
    references: tuple[StoredObject, ...] = ()  # stored objects to which the call that this thread pickles refers


class Packing:
    """The state of pickling calls, one call per thread: the stored objects to which the call refers."""

    ever = False  # whether a stored object was ever created; before that, calls need not be searched for references

    def __init__(self) -> None:
        self._here = InThread()

    def begin(self, owner: object) -> None:
        self._here.owner = owner

    def end(self) -> tuple[StoredObject, ...]:
        """Return the stored objects to which the pickled call refers, without duplicates."""
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
