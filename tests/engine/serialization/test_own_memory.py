"""A buffer is copied unless nothing can change it."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
import pytest

from outrider.engine.serialization.payload import OwnMemory, Part, is_fixed


def read_only_array() -> memoryview:
    array = np.ones(10)
    array.flags.writeable = False  # which its owner can take back
    return memoryview(array).cast("B")


def read_only_view_of_a_writable_array() -> memoryview:
    return memoryview(np.broadcast_to(np.ones(10), 10)).cast("B")


@pytest.mark.parametrize(
    ("make", "fixed"),
    [
        (lambda: b"abc", True),
        (lambda: memoryview(b"abc")[1:], True),
        (lambda: memoryview(np.frombuffer(b"abc", np.uint8)[1:]), True),
        (lambda: memoryview(OwnMemory(-1, 10))[3:], True),
        (lambda: bytearray(b"abc"), False),
        (lambda: memoryview(bytearray(b"abc")).toreadonly(), False),
        (lambda: memoryview(np.frombuffer(bytearray(b"abc"), np.uint8)), False),
        (lambda: mmap.mmap(-1, 10), False),
        (lambda: memoryview(np.frombuffer(mmap.mmap(-1, 10), np.uint8)), False),
        (lambda: memoryview(np.ones(10)).cast("B"), False),
        (read_only_array, False),
        (read_only_view_of_a_writable_array, False),
    ],
)
def test_only_bytes_and_copies_are_fixed(make: Callable[[], Part], fixed: bool) -> None:
    assert is_fixed(make()) is fixed
