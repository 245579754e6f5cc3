"""The objects of a node: whatever happens, its bounds hold, and nothing goes that is used or kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from outrider.engine.objects.object_memory import DropObject, HeldObject, MoveToDisk, ObjectMemory

SIZES = st.integers(1, 40)


class Model(RuleBasedStateMachine):
    kind = ObjectMemory
    names: Bundle[str] = Bundle("names")
    uses: Bundle[str] = Bundle("uses")

    @initialize(memory=st.integers(0, 100), disk=st.integers(0, 100), most=st.integers(0, 4))
    def begin(self, memory: int, disk: int, most: int) -> None:
        self.limits, self.most = (memory, disk), most
        self.memory = self.kind(memory, disk, most)
        self.there: dict[str, int] = {}
        self.kept: set[str] = set()
        self.used: dict[str, int] = {}
        self.disk: set[str] = set()
        self.idle: list[str] = []  # used longest ago first
        self.full = False
        self.count = 0
        self.failing = ""

    def carry_out(self) -> None:
        decided, self.memory.decisions = self.memory.decisions, []
        for each in decided:
            name = each.name
            assert name in self.there, "OBJECT-6"
            assert not self.used.get(name), "OBJECT-1"
            if isinstance(each, MoveToDisk):
                assert not self.full, "OBJECT-3"
                older = self.idle[: self.idle.index(name)]
                assert all(other in self.disk or other in self.kept for other in older), "OBJECT-4"
                self.disk.add(name)
            else:
                assert isinstance(each, DropObject)
                assert name not in self.kept, "OBJECT-1"
                if name in self.idle and name.startswith("sent") and name != self.failing:
                    older = [other for other in self.idle[: self.idle.index(name)] if other not in self.kept]
                    assert all((other in self.disk) is not (name in self.disk) for other in older), "OBJECT-4"
                self.forget(name)
        for name in self.there:
            assert self.memory.has(name), "OBJECT-6"

    def forget(self, name: str) -> None:
        del self.there[name]
        self.disk.discard(name)
        self.used.pop(name, None)
        if name in self.idle:
            self.idle.remove(name)

    def new(self, how: str, size: int) -> str:
        self.count += 1
        name = f"{how}{self.count}"
        self.there[name] = size
        return name

    @rule(target=uses, size=SIZES)
    def send(self, size: int) -> str:
        name = self.new("sent", size)
        self.used[name] = 1
        self.memory.sent(name, size, f"key of {name}")
        self.carry_out()
        return name

    @rule(target=names, size=SIZES)
    def make(self, size: int) -> str:
        name = self.new("made", size)
        self.kept.add(name)
        self.idle.append(name)
        self.memory.created(name, size)
        self.carry_out()
        return name

    @rule(target=uses, number=st.integers(1, 30))
    def use_again(self, number: int) -> Any:
        name = self.memory.find(f"key of sent{number}")
        assert (name is not None) == (f"sent{number}" in self.there), "OBJECT-6"
        return multiple() if name is None else self.use(name)

    @rule(target=uses, name=names)
    def use_kept(self, name: str) -> Any:
        return self.use(name) if name in self.kept else multiple()

    def use(self, name: str) -> str:
        if name in self.idle:
            self.idle.remove(name)
        self.used[name] = self.used.get(name, 0) + 1
        self.memory.used(name)
        self.carry_out()
        return name

    @rule(name=consumes(uses))
    def unuse(self, name: str) -> None:
        if name in self.used:
            self.used[name] -= 1
            if not self.used[name]:
                self.idle.append(name)
        self.memory.unused(name)
        self.carry_out()
        if name.startswith("made") and not self.used.get(name):
            assert (name in self.there) == (name in self.kept), "OBJECT-7"

    @rule(name=consumes(names))
    def let_go(self, name: str) -> None:
        self.kept.discard(name)
        self.memory.let_go(name)
        self.carry_out()
        assert (name in self.there) == (self.used.get(name, 0) > 0), "OBJECT-7"

    @rule(name=uses)
    def fail(self, name: str) -> None:
        if name in self.there and name not in self.kept and self.memory.find(f"key of {name}") == name:
            self.used.pop(name, None)
            self.failing = name
            self.memory.failed(name)
            self.carry_out()
            assert name not in self.there

    @rule(data=st.data())
    def refuse(self, data: st.DataObject) -> None:
        if self.disk:
            name = data.draw(st.sampled_from(sorted(self.disk)))
            self.full = True
            self.disk.discard(name)
            if name in self.idle:
                self.idle.remove(name)
                self.idle.insert(0, name)
            self.memory.not_moved(name)
            self.carry_out()

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "memory"):
            return
        in_memory = sum(size for name, size in self.there.items() if name not in self.disk)
        on_disk = sum(size for name, size in self.there.items() if name in self.disk)
        assert (in_memory, on_disk) == (self.memory.memory_bytes, self.memory.disk_bytes)
        assert len(self.memory) == len(self.there)
        may_go = [name for name in self.idle if name not in self.disk and name not in self.kept]
        assert in_memory <= self.limits[0] or not may_go, "OBJECT-2"
        assert on_disk <= self.limits[1], "OBJECT-3"
        assert sum(name not in self.kept for name in self.idle) <= self.most, "OBJECT-5"


QUICK = settings(max_examples=50, stateful_step_count=30, deadline=None)
Model.TestCase.settings = QUICK
TestModel = Model.TestCase


class DropsWhatIsKept(ObjectMemory):
    def created(self, name: str, size_bytes: int) -> None:
        super().created(name, size_bytes)
        if name in self._idle_in_memory:
            self._idle_in_memory[name].kept = False
            self._remembered += 1
            self._settle()


class HasNoBounds(ObjectMemory):
    def _make_room_in_memory(self, held: HeldObject) -> None:
        pass


class MovesToAFullDisk(ObjectMemory):
    def not_moved(self, name: str) -> None:
        super().not_moved(name)
        self._disk_is_full = False


class TakesTheNewest(ObjectMemory):
    def unused(self, name: str) -> None:
        super().unused(name)
        self._idle_in_memory = OrderedDict(reversed(self._idle_in_memory.items()))


class RemembersAll(ObjectMemory):
    def __init__(self, memory_bytes: int, disk_bytes: int, most: int) -> None:
        super().__init__(memory_bytes, disk_bytes, 10**9)


class ForgetsTheKey(ObjectMemory):
    def used(self, name: str) -> None:
        super().used(name)
        self._by_key.pop(self._objects[name].key or "", None)


class KeepsForEver(ObjectMemory):
    def let_go(self, name: str) -> None:
        pass


@pytest.mark.parametrize(
    ("broken", "invariant"),
    [
        (DropsWhatIsKept, "OBJECT-1"),
        (HasNoBounds, "OBJECT-2"),
        (MovesToAFullDisk, "OBJECT-3"),
        (TakesTheNewest, "OBJECT-4"),
        (RemembersAll, "OBJECT-5"),
        (ForgetsTheKey, "OBJECT-6"),
        (KeepsForEver, "OBJECT-7"),
    ],
)
def test_the_invariant_falls_without_its_guard(broken: type[ObjectMemory], invariant: str) -> None:
    class Machine(Model):
        kind = broken

    once = settings(QUICK, max_examples=2000, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError, match=invariant):
        run_state_machine_as_test(Machine, settings=once)


def test_what_was_used_longest_ago_goes_to_the_disk_and_from_there_away() -> None:
    memory = ObjectMemory(100, 100)
    for name in ("a", "b", "c"):
        memory.sent(name, 60, name)
        memory.unused(name)
    assert memory.decisions == [MoveToDisk("a"), DropObject("a"), MoveToDisk("b")]
    assert (memory.find("a"), memory.find("b"), memory.find("c")) == (None, "b", "c")


def test_a_kept_object_stays_in_memory_where_the_disk_is_full() -> None:
    memory = ObjectMemory(100, 100)
    memory.created("a", 60)
    memory.created("b", 60)
    assert memory.decisions == [MoveToDisk("a")]
    memory.not_moved("a")
    memory.created("c", 60)
    assert memory.decisions == [MoveToDisk("a")]
    assert memory.memory_bytes == 180


def test_what_is_forgotten_is_dropped_when_it_is_used_no_more_and_is_not_found() -> None:
    memory = ObjectMemory(100, 0)
    for name in ("idle", "used"):
        memory.sent(name, 10, f"key of {name}")
        memory.unused(name)
    memory.used("used")
    memory.forget("idle")
    memory.forget("used")
    memory.forget("another")
    assert memory.decisions == [DropObject("idle")]
    assert memory.find("key of used") is None
    memory.unused("used")
    assert memory.decisions == [DropObject("idle"), DropObject("used")]
    assert memory.memory_bytes == len(memory) == 0
