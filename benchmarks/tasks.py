"""What both sides run: plain functions for the executor pool, and the same ones for ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from outrider import compute

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

ARRAY_LENGTH = 12_500_000  # float64: 100 MB
ARRAY_BYTES = 8 * ARRAY_LENGTH


def noop(x: int) -> int:
    return x


def rest(x: int) -> int:
    time.sleep(0.01)
    return x


def look(array: Array) -> tuple[float, float, int]:
    """Reads every element: a mapping that is never touched must not look free."""
    total = float(array.sum())
    if total != float(array[0]) * array.size:
        raise AssertionError(f"the array does not hold what was sent: {total}")
    return float(array[0]), float(array[-1]), array.nbytes


def make(value: float) -> Array:
    import numpy as np

    return np.full(ARRAY_LENGTH, value)


noop_there = compute(noop)
look_there = compute(look)
make_there = compute(make)
