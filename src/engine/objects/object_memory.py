"""The large objects of a node: those in use, kept, or remembered, in memory or on disk. No I/O, no clock.

A node remembers objects that it was sent, so that no object is sent twice. At a limit, the least recently used object
moves from memory to disk, and is later dropped from the disk. Only the client decides this, so both sides know which
objects the node has.

OBJECT-1: an object in use by an attempt or being transferred is neither dropped nor moved. A kept object is not
    dropped.
OBJECT-2: objects in memory take at most ``memory_bytes``, not counting objects in use, and kept objects for which the
    disk has no room.
OBJECT-3: objects on disk take at most ``disk_bytes``. After the node has reported a full disk, no object is moved
    there.
OBJECT-4: the least recently used object is moved or dropped first.
OBJECT-5: at most ``most`` objects are neither in use nor kept: each takes a file descriptor of the node.
OBJECT-6: an object is reported as present until it is dropped or its transfer has failed. Each object is dropped once.
OBJECT-7: a kept object that is let go is dropped when no attempt uses it any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple

MOST = 128  # limit of objects neither in use nor kept: each takes a file descriptor, and most processes may have 1024


class MoveToDisk(NamedTuple):
    name: str


class DropObject(NamedTuple):
    name: str


@dataclass(slots=True, eq=False)
class HeldObject:
    name: str
    size_bytes: int
    key: str | None  # the key by which to find the object; None: it is not remembered
    kept: bool  # whether this is the only copy of an object to which a reference is left
    uses: int = 0  # number of attempts that use it, plus one during its transfer
    on_disk: bool = False
    idle_since: int = 0  # value of the counter `_turn` when the object was last used; not a time


class ObjectMemory:
    """The objects of one node.

    ``decisions`` collects the actions for the caller, who carries them out and clears it.
    """

    def __init__(self, memory_bytes: int, disk_bytes: int, most: int = MOST) -> None:
        self.decisions: list[MoveToDisk | DropObject] = []
        self._limits, self._most = (memory_bytes, disk_bytes), most
        self._disk_is_full = False
        self._objects: dict[str, HeldObject] = {}
        self._by_key: dict[str, str] = {}
        self._turn = 0
        self._idle_in_memory: OrderedDict[str, HeldObject] = OrderedDict()  # least recently used first
        self._idle_on_disk: OrderedDict[str, HeldObject] = OrderedDict()
        self._remembered = 0  # number of objects that no attempt uses, and that are not the only copy of a value
        self._bytes = [0, 0]  # bytes of all objects: in memory, and on disk

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def memory_bytes(self) -> int:
        return self._bytes[0]

    @property
    def disk_bytes(self) -> int:
        return self._bytes[1]

    def limit(self, memory_bytes: int, disk_bytes: int) -> None:
        """Change the limits. The caller knows the final limits only when the node has reported its memory size."""
        self._limits = memory_bytes, disk_bytes
        self._settle()

    def find(self, key: str) -> str | None:
        """Return the name of a remembered object that the node has or is receiving."""
        return self._by_key.get(key)

    def has(self, name: str) -> bool:
        return name in self._objects

    def sent(self, name: str, size_bytes: int, key: str) -> None:
        """Note that an object is being sent. Its transfer counts as one use, which `unused` ends."""
        self._objects[name] = HeldObject(name, size_bytes, key, kept=False, uses=1)
        self._by_key[key] = name
        self._bytes[0] += size_bytes
        self._settle()

    def rekeyed(self, before: str, key: str) -> None:
        """Change an object's key, unless another object has the new key."""
        if before in self._by_key and key not in self._by_key:
            name = self._by_key[key] = self._by_key.pop(before)
            self._objects[name].key = key

    def created(self, name: str, size_bytes: int) -> None:
        """Note an object that a task has created on the node. It is kept until `let_go`."""
        self._objects[name] = created = HeldObject(name, size_bytes, None, kept=True)
        self._bytes[0] += size_bytes
        self._idle_in_memory[name] = created
        self._settle()

    def used(self, name: str) -> None:
        """Note that an attempt uses the object until `unused`."""
        held = self._objects[name]
        if not held.uses:
            self._no_longer_idle(held)
        held.uses += 1

    def unused(self, name: str) -> None:
        held = self._objects.get(name)
        if held is None:
            return
        held.uses -= 1
        if not held.uses:
            if not held.kept and held.key is None:
                self._drop(held)
            else:
                self._turn += 1
                held.idle_since = self._turn
                self._idle(held)[name] = held
                self._remembered += not held.kept
            self._settle()

    def let_go(self, name: str) -> None:
        """Note that no reference to a kept object is left."""
        held = self._objects.get(name)
        if held is None or not held.kept:
            return
        if held.uses:
            held.kept = False
        else:
            self._no_longer_idle(held)
            self._drop(held)
            self._settle()

    def forget(self, name: str) -> None:
        """Note that a remembered object will not be requested again. Drop it when no attempt uses it."""
        held = self._objects.get(name)
        if held is None or held.key is None:
            return
        if self._by_key.get(held.key) == name:
            del self._by_key[held.key]
        held.key = None
        if not held.uses:
            self._no_longer_idle(held)
            self._drop(held)
            self._settle()

    def failed(self, name: str) -> None:
        """Note that the transfer of an object has failed, and drop its received part."""
        if (held := self._objects.get(name)) is not None:
            if not held.uses:
                self._no_longer_idle(held)
            self._drop(held)

    def not_moved(self, name: str) -> None:
        """Note that the node's disk is full: this object stays in memory, and no further object is moved."""
        self._disk_is_full = True
        held = self._objects.get(name)
        if held is None or not held.on_disk:
            return
        if not held.uses:
            del self._idle_on_disk[name]
        held.on_disk = False
        self._bytes[1] -= held.size_bytes
        self._bytes[0] += held.size_bytes
        if not held.uses:
            self._idle_in_memory[name] = held
            self._idle_in_memory.move_to_end(name, last=False)  # this object stays the least recently used one
        self._settle()

    # --- limits ---------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        memory_limit, disk_limit = self._limits
        while self._remembered > self._most:
            self._let_one_go(min(self._droppable(), key=lambda held: held.idle_since))
        if self._bytes[0] > memory_limit:
            for held in [*self._idle_in_memory.values()]:
                self._make_room_in_memory(held)
                if self._bytes[0] <= memory_limit:
                    break
        while self._bytes[1] > disk_limit:
            oldest = next((held for held in self._idle_on_disk.values() if not held.kept), None)
            if oldest is None:
                break
            self._let_one_go(oldest)

    def _make_room_in_memory(self, held: HeldObject) -> None:
        if self._has_room_on_disk(held.size_bytes):
            del self._idle_in_memory[held.name]
            held.on_disk = True
            self._idle_on_disk[held.name] = held
            self._bytes[0] -= held.size_bytes
            self._bytes[1] += held.size_bytes
            self.decisions.append(MoveToDisk(held.name))
        elif not held.kept:
            self._let_one_go(held)

    def _has_room_on_disk(self, size_bytes: int) -> bool:
        """Return whether an object may move to the disk. If needed, drop older objects there to make room."""
        room = self._limits[1] - self._bytes[1]
        if self._disk_is_full or size_bytes > room + sum(
            each.size_bytes for each in self._idle_on_disk.values() if not each.kept
        ):
            return False
        while size_bytes > self._limits[1] - self._bytes[1]:
            self._let_one_go(next(each for each in self._idle_on_disk.values() if not each.kept))
        return True

    def _droppable(self) -> Iterator[HeldObject]:
        """Yield the least recently used objects that are neither in use nor kept: first on disk, then in memory."""
        for idle in (self._idle_on_disk, self._idle_in_memory):
            yield from islice((held for held in idle.values() if not held.kept), 1)

    def _let_one_go(self, held: HeldObject) -> None:
        self._no_longer_idle(held)
        self._drop(held)

    def _drop(self, held: HeldObject) -> None:
        del self._objects[held.name]
        if held.key is not None and self._by_key.get(held.key) == held.name:
            del self._by_key[held.key]
        self._bytes[held.on_disk] -= held.size_bytes
        self.decisions.append(DropObject(held.name))

    def _no_longer_idle(self, held: HeldObject) -> None:
        del self._idle(held)[held.name]
        self._remembered -= not held.kept

    def _idle(self, held: HeldObject) -> OrderedDict[str, HeldObject]:
        return self._idle_on_disk if held.on_disk else self._idle_in_memory
