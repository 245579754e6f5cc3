"""Items that come from an iterator are divided into tasks: large ones are alone."""

from __future__ import annotations

from typing import Any

import pytest

from outrider.engine.client.mapping import LoneItem, Refused, by_task
from outrider.engine.serialization.frozen_items import FrozenItem
from outrider.engine.serialization.task_payload import Payload
from outrider.engine.wire.messages import Value
from outrider.engine.wire.values import INLINE_BYTES

SMALL = FrozenItem(b"small", None, ())
LONG = FrozenItem(bytes(INLINE_BYTES + 1), None, ())
LONE = LoneItem(list, Payload("f", b"", b"", Value(b"")))
REFUSED = Refused(list, ValueError())


@pytest.mark.parametrize(
    ("items", "tasks"),
    [
        ([1, 2, 3], [[1, 2, 3]]),
        ([1, SMALL, 2], [[1, SMALL, 2]]),
        ([1, LONG, 2], [[1], [LONG], [2]]),
        ([LONE, LONE], [[LONE], [LONE]]),
        ([1, 2, LONE, 3, REFUSED, 4, 5], [[1, 2], [LONE], [3], [REFUSED], [4, 5]]),
    ],
)
def test_large_items_are_alone(items: list[Any], tasks: list[list[Any]]) -> None:
    assert by_task(items) == tasks


def test_what_stands_for_an_item_is_shown_by_its_type() -> None:
    assert (repr(LONE), repr(REFUSED)) == ("<list>", "<list>")


def test_items_whose_class_cannot_be_hashed_share_a_task() -> None:
    class Kind(type):  # noqa: PLW1641  it cannot be hashed
        def __eq__(cls, other: object) -> bool:
            return cls is other

    class Item(metaclass=Kind):
        pass

    items = [Item(), Item()]
    assert by_task(items) == [items]
