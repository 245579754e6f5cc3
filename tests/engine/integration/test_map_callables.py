"""`pool.map` takes whatever an executor's ``map`` takes: classes, builtins, objects with a ``__call__``."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from outrider import Pool, compute

pytestmark = pytest.mark.anyio


@dataclass
class Scale:
    factor: int

    def times(self, number: int) -> int:
        return self.factor * number

    def __call__(self, number: int) -> int:
        return self.factor * number

    @staticmethod
    def doubled(number: int) -> int:
        return 2 * number

    @classmethod
    def made(cls, number: int) -> Scale:
        return cls(number)

    @compute
    def computed(self, number: int) -> int:
        return self.factor * number


class AwaitedScale(Scale):
    async def __call__(self, number: int) -> int:  # type: ignore[override]
        return self.factor * number


class Unequal(Scale):
    """Cannot be compared with other things."""

    def __eq__(self, other: object) -> bool:
        raise AttributeError(other)

    __hash__ = Scale.__hash__


class Colour(Enum):
    RED = 1


CASES: list[tuple[Any, Any, Any]] = [
    (int, "1", 1),
    (Path, "a", Path("a")),
    (Fraction, "1/2", Fraction(1, 2)),
    (Counter, "aab", Counter("aab")),
    (range, 3, range(3)),
    (type, 1, int),
    (Scale, 3, Scale(3)),
    (Colour, 1, Colour.RED),
    (list[int], "1", ["1"]),
    (len, "ab", 2),
    (str.upper, "a", "A"),
    (math.sqrt, 4, 2.0),
    ("abc".index, "b", 1),
    (bytes.fromhex, "ff", b"\xff"),
    (operator.itemgetter(0), "ab", "a"),
    (functools.partial(int, base=2), "101", 5),
    (Scale(3).times, 2, 6),
    (Scale(3), 2, 6),
    (AwaitedScale(3), 2, 6),
    (Unequal(3), 2, 6),
    (Scale.doubled, 2, 4),
    (Scale.made, 2, Scale(2)),
    (Scale(3).computed, 2, 6),
]


@pytest.mark.parametrize(("function", "item", "result"), CASES, ids=[f"{number}" for number in range(len(CASES))])
async def test_map_takes_any_callable(pool: Pool, function: Any, item: Any, result: Any) -> None:
    assert await pool.map(function, [item]) == [result]


async def test_map_takes_callables_of_numpy_and_torch(pool: Pool) -> None:
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    assert await pool.map(numpy.sqrt, [4.0]) == [2.0]
    assert await pool.map(numpy.float32, [4]) == [numpy.float32(4)]
    assert await pool.map(torch.nn.Identity(), [1]) == [1]
