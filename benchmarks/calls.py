"""Small calls: one at a time, many at once, a map, a broadcast."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from outrider import Pool, compute

from .figures import Bar, Figure, Ours, Theirs, interleaved, summarize
from .tasks import noop, noop_there, rest

CALLS = 400
BROADCASTS = 200
SUBMITS = 10_000
RESTS = 1_000
ITEMS = 100_000


async def latency(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """b: one no-op after another."""
    tails: list[float] = []

    async def ours() -> float:
        times = []
        for number in range(CALLS):
            began = time.perf_counter()
            result = await pool.run(noop_there(number))
            times.append(time.perf_counter() - began)
            same(result, number)
        tails.append(1e6 * sorted(times)[int(0.99 * CALLS)])
        return 1e6 * statistics.median(times)

    def theirs() -> float:
        times = []
        for number in range(CALLS):
            began = time.perf_counter()
            result = executor.submit(noop, number).result()
            times.append(time.perf_counter() - began)
            same(result, number)
        return 1e6 * statistics.median(times)

    a, b = await interleaved(rounds, ours, theirs)
    return [
        summarize("b", "no-op, median", "us", a, b, bar=Bar("ratio", "at most", 1)),
        summarize("b99", "no-op, 99th percentile", "us", tails[1:]),
    ]


async def burst(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """c: all submitted at once, all awaited."""
    a, b = await at_once(pool, executor, rounds, noop, SUBMITS)
    return [summarize("c", f"{SUBMITS:,} no-ops at once", "/s", a, b, bar=Bar("ratio", "at least", 2, goal=3))]


async def brief(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """t: tasks of 10 ms, asleep, so that workers and not cores are what there is too little of."""
    a, b = await at_once(pool, executor, rounds, rest, RESTS)
    return [summarize("t", f"{RESTS:,} tasks of 10 ms at once", "/s", a, b, bar=Bar("ratio", "at least", 0.95))]


async def at_once(
    pool: Pool,
    executor: ProcessPoolExecutor,
    rounds: int,
    function: Callable[[int], int],
    count: int,
) -> tuple[list[float], list[float]]:
    """Submit all and await all; return the rates."""
    there = compute(function)

    async def ours() -> float:
        began = time.perf_counter()
        jobs = [pool.submit(there(number)) for number in range(count)]
        results = [await job for job in jobs]
        took = time.perf_counter() - began
        same(results, list(range(count)))
        return count / took

    def theirs() -> float:
        began = time.perf_counter()
        futures = [executor.submit(function, number) for number in range(count)]
        results = [future.result() for future in futures]
        took = time.perf_counter() - began
        same(results, list(range(count)))
        return count / took

    return await interleaved(rounds, ours, theirs)


async def mapped(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """map: cheap items, chunked by us as we see fit, by the executor pool as told."""

    async def ours() -> float:
        began = time.perf_counter()
        results = await pool.map(noop_there, range(ITEMS))
        took = time.perf_counter() - began
        same(results, list(range(ITEMS)))
        return ITEMS / took

    def theirs() -> float:
        began = time.perf_counter()
        results = list(executor.map(noop, range(ITEMS), chunksize=16))
        took = time.perf_counter() - began
        same(results, list(range(ITEMS)))
        return ITEMS / took

    a, b = await interleaved(rounds, ours, theirs)
    name = f"map of {ITEMS:,} (theirs: chunksize=16)"
    return [summarize("map", name, "/s", a, b, bar=Bar("ratio", "at least", 0.5))]


async def broadcast(pool: Pool, executor: ProcessPoolExecutor, rounds: int) -> list[Figure]:
    """d: every node, against as many submits."""
    a, b = await interleaved(rounds, *broadcast_times(pool, executor))
    return [summarize("d", "broadcast to 4 (theirs: 4 submits)", "us", a, b, bar=Bar("ratio", "at most", 1.4))]


def broadcast_times(pool: Pool, executor: ProcessPoolExecutor) -> tuple[Ours, Theirs]:
    """Return the two sides of `broadcast`, each of which measures the median of a round in microseconds."""

    async def ours() -> float:
        times = []
        for number in range(BROADCASTS):
            began = time.perf_counter()
            results = await pool.broadcast(noop_there(number))
            times.append(time.perf_counter() - began)
            same(results, [number] * 4)
        return 1e6 * statistics.median(times)

    def theirs() -> float:
        times = []
        for number in range(BROADCASTS):
            began = time.perf_counter()
            results = [future.result() for future in [executor.submit(noop, number) for _ in range(4)]]
            times.append(time.perf_counter() - began)
            same(results, [number] * 4)
        return 1e6 * statistics.median(times)

    return ours, theirs


def same(got: object, expected: object) -> None:
    if got != expected:
        raise AssertionError(f"wrong result: {got!r:.200}, expected {expected!r:.200}")
