"""The large objects that a node has: what it uses, keeps or remembers, in its memory or on its disk. No I/O, no clock.

A node remembers what it was sent, so that it is not sent again, within bounds: what was used longest ago goes from its
memory to its disk, and from there it is dropped. Only the client decides this, and so each end knows what is there.

OBJECT-1: what an attempt uses, or is on its way, is neither dropped nor moved to the disk; what is kept is not dropped.
OBJECT-2: objects in memory take at most ``memory_bytes``, but for those in use, and kept ones for which the disk has no
    room.
OBJECT-3: objects on the disk take at most ``disk_bytes``; none are moved there after the node has said that it is full.
OBJECT-4: of those that may go, the one that was used longest ago goes first.
OBJECT-5: at most ``most`` objects are there that are neither in use nor kept: each takes a descriptor of the node.
OBJECT-6: an object is told to be there until it is dropped or has failed to come, and each is dropped once.
OBJECT-7: a kept object that is let go is dropped when no attempt uses it any more.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice

from ...lazy_dataclass import dataclass
from ...lazy_named_tuple import NamedTuple

MOST = 128  # objects that are only remembered: a process has 1024 descriptors, as a rule


class MoveToDisk(NamedTuple):
    name: str


class DropObject(NamedTuple):
    name: str


@dataclass(slots=True, eq=False)
class HeldObject:
    name: str
    size_bytes: int
    key: str | None  # by which it is found again; None: it is not remembered
    kept: bool  # there is no other copy of it, and somebody refers to it
    uses: int = 0  # by attempts, and by its own transfer
    on_disk: bool = False
    idle_since: int = 0  # counted, and not timed


class ObjectMemory:
    """The objects of one node. What must be done gathers in ``decisions`` until the caller takes it."""

    def __init__(self, memory_bytes: int, disk_bytes: int, most: int = MOST) -> None:
        self.decisions: list[MoveToDisk | DropObject] = []
        self._limits, self._most = (memory_bytes, disk_bytes), most
        self._disk_is_full = False
        self._objects: dict[str, HeldObject] = {}
        self._by_key: dict[str, str] = {}
        self._turn = 0
        self._idle_in_memory: OrderedDict[str, HeldObject] = OrderedDict()  # used longest ago first
        self._idle_on_disk: OrderedDict[str, HeldObject] = OrderedDict()
        self._remembered = 0  # idle ones that are not kept
        self._bytes = [0, 0]  # in memory, on disk

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def memory_bytes(self) -> int:
        return self._bytes[0]

    @property
    def disk_bytes(self) -> int:
        return self._bytes[1]

    def limit(self, memory_bytes: int, disk_bytes: int) -> None:
        """Set the bounds anew, as the node has said how large it is."""
        self._limits = memory_bytes, disk_bytes
        self._settle()

    def find(self, key: str) -> str | None:
        """Return the name of a remembered object that is there, or on its way."""
        return self._by_key.get(key)

    def has(self, name: str) -> bool:
        return name in self._objects

    def sent(self, name: str, size_bytes: int, key: str) -> None:
        """Note an object that is being sent, and is in use meanwhile: once by its transfer, which `unused` ends."""
        self._objects[name] = HeldObject(name, size_bytes, key, kept=False, uses=1)
        self._by_key[key] = name
        self._bytes[0] += size_bytes
        self._settle()

    def rekeyed(self, before: str, key: str) -> None:
        """Note that an object is found by another key from now on, unless another is found by that."""
        if before in self._by_key and key not in self._by_key:
            name = self._by_key[key] = self._by_key.pop(before)
            self._objects[name].key = key

    def made(self, name: str, size_bytes: int) -> None:
        """Note an object that a task has made there, and that is kept until it is let go."""
        self._objects[name] = made = HeldObject(name, size_bytes, None, kept=True)
        self._bytes[0] += size_bytes
        self._idle_in_memory[name] = made
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
        """Note that nobody refers to a kept object any more."""
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
        """Note that a remembered object will not be asked for any more: it is dropped when no attempt uses it."""
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
        """Note that an object has not come; what came of it is dropped."""
        if (held := self._objects.get(name)) is not None:
            if not held.uses:
                self._no_longer_idle(held)
            self._drop(held)

    def not_moved(self, name: str) -> None:
        """Note that the node's disk has no room: the object stays in memory, and no other is moved from now on."""
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
            self._idle_in_memory.move_to_end(name, last=False)  # it was the one to go
        self._settle()

    # --- bounds ---------------------------------------------------------------------------------------------------

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
        """Return whether an object may be moved to the disk, after older ones there that may go were dropped."""
        room = self._limits[1] - self._bytes[1]
        if self._disk_is_full or size_bytes > room + sum(
            each.size_bytes for each in self._idle_on_disk.values() if not each.kept
        ):
            return False
        while size_bytes > self._limits[1] - self._bytes[1]:
            self._let_one_go(next(each for each in self._idle_on_disk.values() if not each.kept))
        return True

    def _droppable(self) -> Iterator[HeldObject]:
        """Give the oldest of those on the disk, and of those in memory, that are only remembered."""
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
