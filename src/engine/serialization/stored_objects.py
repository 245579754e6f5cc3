"""Objects that a pool stores apart from calls, which refer to them: what `Ref` stands for, at its client.

An object is referred to by whoever has it: a `Ref`, the payload of a call that is not over, the outcome of a job. When
Python has no use for it any more, its bytes are freed, wherever they are. One that was lost, and is made again, has
other bytes in other places from then on, and the same name.
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
    """The node that keeps an object which was made there."""

    node: NodeId

    async def bring(self, at: Whereabouts) -> Received:
        """Return the bytes. A ConnectionError: the node is lost."""
        ...

    def let_go(self, name: str) -> None: ...

    def forget(self, name: str) -> None:
        """Drop a copy of what another node keeps."""
        ...


@dataclass(slots=True, eq=False, weakref_slot=True)
class Whereabouts:
    """The places of an object's bytes: ``blob`` here, ``kept_as`` at ``home``, or both. With neither it is lost."""

    name: str  # by which nodes find the bytes
    sizes: tuple[int, ...] | None
    size_bytes: int
    small: bytes | None = None  # the bytes, where they travel in frames
    blob: Blob | None = None
    home: Home | None = None
    kept_as: str = ""
    made_by: str = ""  # for people: which task, on which node
    copies: list[tuple[Home, str]] = field(default_factory=list)  # on other nodes, brought there from ``home``
    fetching: Any = field(default=None)  # a task that brings the bytes here, for nodes that have no other way to them

    @property
    def lost(self) -> bool:
        return self.home is None and self.blob is None and self.small is None

    @property
    def story(self) -> str:
        return f"what {self.made_by} has returned, and was kept there, is lost with that node"

    def lose(self, home: Home) -> None:
        """Note that a node which kept the bytes is lost, unless others are kept elsewhere meanwhile."""
        if self.home is home:
            self.home = None


class StoredObject:
    """A reference to an object, which many may have; when the last of them goes, the object is freed."""

    __slots__ = ("__weakref__", "_at", "_made_again", "name", "not_again", "origin", "owner")

    is_long_to_load = False  # as a job's outcome it is not loaded: see `Received`

    def __init__(self, owner: object, at: Whereabouts, free: Callable[[Whereabouts], None]) -> None:
        """``owner``: its pool's. ``free`` is called in any thread."""
        packing.ever = True
        self.owner, self._at = owner, at
        self.name = at.name  # by which pickles refer to it
        self.origin: Any = None  # the call that made it, if it may run again: see `client.lineage`
        self.not_again = ""  # why it may not
        self._made_again: StoredObject | None = None
        weakref.finalize(self, free, at).atexit = False

    @property
    def at(self) -> Whereabouts:
        return self._at if self._made_again is None else self._made_again.at

    def is_now(self, made: StoredObject) -> None:
        """Have it be what another one is, which is freed with it."""
        self._made_again = made

    def drop(self) -> None:
        pass

    def __reduce__(self) -> tuple[Any, ...]:
        return packing.reference(self)


class Keeps(Protocol):
    """A pool's objects, as whoever hears of a task's result needs them."""

    def keep(self, at: Whereabouts) -> StoredObject: ...

    def result(self, outcome: Received | StoredObject, made_by: str, /) -> object:
        """Return the `Ref` of a task's result."""
        ...


class InThread(threading.local):
    owner: object = None  # of the call that is being pickled in this thread
    found: tuple[StoredObject, ...] = ()  # what it refers to


class Packing:
    """The calls that are being pickled, one in a thread, and what they refer to."""

    ever = False  # whether there has been any object: until then calls need not be looked at

    def __init__(self) -> None:
        self._here = InThread()

    def begin(self, owner: object) -> None:
        self._here.owner = owner

    def end(self) -> tuple[StoredObject, ...]:
        """Return the objects that the call refers to, each once."""
        here = self._here
        here.owner = None
        if not here.found:
            return ()
        found, here.found = here.found, ()
        return tuple(dict.fromkeys(found))

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
        here.found += (stored,)
        return blobs.resolve_object, (stored.name,)


packing = Packing()
