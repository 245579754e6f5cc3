"""100 MB of float64 to four nodes and back from one, every element read where it arrives."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ProcessPoolExecutor

from outrider import Pool

from .calls import same
from .figures import Bar, Figure, interleaved, summarize
from .tasks import ARRAY_BYTES, look, look_there, make, make_there


async def arrays(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """e: a new array each time, so that nothing can be remembered from the last."""
    values = itertools.count(1.0)

    async def ours_there() -> float:
        value = next(values)
        array = make(value)
        began = time.perf_counter()
        results = await pool.broadcast(look_there(array))
        took = time.perf_counter() - began
        same(results, [(value, value, ARRAY_BYTES)] * 4)
        return took

    def theirs_there() -> float:
        value = next(values)
        array = make(value)
        began = time.perf_counter()
        results = [future.result() for future in [executor.submit(look, array) for _ in range(4)]]
        took = time.perf_counter() - began
        same(results, [(value, value, ARRAY_BYTES)] * 4)
        return took

    async def ours_back() -> float:
        value = next(values)
        began = time.perf_counter()
        array = await pool.run(make_there(value))
        same(look(array), (value, value, ARRAY_BYTES))
        return time.perf_counter() - began

    def theirs_back() -> float:
        value = next(values)
        began = time.perf_counter()
        array = executor.submit(make, value).result()
        same(look(array), (value, value, ARRAY_BYTES))
        return time.perf_counter() - began

    there = await interleaved(rounds, ours_there, theirs_there)
    back = await interleaved(rounds, ours_back, theirs_back)
    return [
        summarize(
            "e-there",
            "100 MB to 4, all read there",
            "s",
            *there,
            ratio="theirs/ours",
            bar=Bar("ratio", "at least", 4, 10),
        ),
        summarize(
            "e-back", "100 MB back, all read here", "s", *back, ratio="theirs/ours", bar=Bar("ratio", "at least", 1.5)
        ),
    ]
