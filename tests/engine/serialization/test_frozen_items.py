"""An item of a map is pickled when it comes, and unpickles as it was then."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest

from outrider import compute
from outrider.engine.serialization.frozen_items import FrozenItem, ItemPickler, is_fixed_value
from outrider.engine.serialization.stored_objects import StoredObject, Whereabouts, packing
from outrider.engine.wire.values import INLINE_BYTES


@dataclass
class Row:
    cells: list[int] = field(default_factory=list)


@compute
def same(value: object) -> object:
    return value


def through_a_task(*items: FrozenItem | None) -> list[Any]:
    loaded: list[Any] = pickle.loads(cloudpickle.dumps(list(items), 5))
    return loaded


@pytest.mark.parametrize(
    ("value", "fixed"),
    [
        (None, True),
        (3, True),
        ("text", True),
        (b"bytes", True),
        (Path("a"), True),
        ((1, ("a", (2.5,))), True),
        ((1, ("a", (2.5, (3,)))), False),  # nested further than is looked at
        ([1], False),
        ((1, [2]), False),
        ({}, False),
        (bytearray(), False),
        (np.ones(1), False),
        (type("Own", (int,), {})(3), False),  # it may have attributes
    ],
)
def test_only_plain_values_are_fixed(value: object, fixed: bool) -> None:
    assert is_fixed_value(value) is fixed


def closure_of(cells: list[int]) -> Callable[[], list[int]]:
    return lambda: list(cells)


@pytest.mark.parametrize("by_reference", [True, False])
@pytest.mark.parametrize(
    ("wrap", "read"),
    [
        (lambda cells: cells, list),
        (lambda cells: {"a": (cells,)}, lambda item: item["a"][0]),
        (lambda cells: Row(cells), lambda item: item.cells),
        (closure_of, lambda item: item()),
    ],
    ids=["list", "nested", "object", "closure"],
)
def test_an_item_stays_as_it_was(wrap: Callable[[Any], Any], read: Callable[[Any], Any], by_reference: bool) -> None:
    freeze, cells, items = ItemPickler(None, by_reference=by_reference), [0], []
    for number in range(3):
        cells[0] = number
        items.append(freeze(wrap(cells)))
    assert [read(item) for item in through_a_task(*items)] == [[0], [1], [2]]


def test_a_small_array_stays_as_it_was_and_is_writable() -> None:
    freeze, array = ItemPickler(None, by_reference=True), np.zeros(10)
    frozen = freeze(array)
    array[:] = 1
    (item,) = through_a_task(frozen)
    assert not item.any()
    item[0] = 2


@pytest.mark.parametrize("by_reference", [True, False])
@pytest.mark.parametrize(
    "item",
    [np.zeros(INLINE_BYTES), [np.zeros(INLINE_BYTES // 16), np.zeros(INLINE_BYTES // 8)], threading.Lock(), same(3)],
    ids=["large array", "arrays", "lock", "pending call"],
)
def test_large_and_unpicklable_items_are_left_to_their_own_task(item: object, by_reference: bool) -> None:
    assert ItemPickler(None, by_reference=by_reference)(item) is None


def test_a_class_of_main_is_pickled_once_for_all_items(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    exec("class Mine:\n    def __init__(self, n):\n        self.n = n\n", main.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", main)
    mine = main.Mine
    freeze = ItemPickler(None, by_reference=True)
    few, many = (cloudpickle.dumps([freeze(mine(n)) for n in range(count)], 5) for count in (1, 101))
    assert len(many) - len(few) < 100 * 100
    assert [each.n for each in pickle.loads(many)] == list(range(101))
    assert "Mine" in repr(freeze(mine(3)))


def test_an_item_has_the_objects_that_it_refers_to() -> None:
    owner = object()
    freeze = ItemPickler(owner, by_reference=True)
    stored = StoredObject(owner, Whereabouts("name", None, 100_000), lambda _: None)
    frozen = freeze([stored])
    packing.begin(owner)
    pickle.dumps([frozen], 5)
    assert packing.end() == (stored,)


def test_an_item_is_shown_as_it_was() -> None:
    cells = [1]
    frozen = ItemPickler(None, by_reference=True)(cells)
    cells.append(2)
    assert repr(frozen) == "[1]"
