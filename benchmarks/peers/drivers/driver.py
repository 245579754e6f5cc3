"""What each system has to do, and the loop that has it do that. It needs the standard library and NumPy alone.

A driver is a process of its own. It says ``{"first": 4.2}`` when the first result is there, and then answers each line
``{"measure": "noop", "count": 200}`` with ``{"value": 0.0001}``: seconds, but tasks per second for ``burst``.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TextIO

import numpy as np

WORKERS = 4
ARRAY_BYTES = 100 * 1_000_000


def noop(number: int) -> int:
    return number


def first_of(data: Any) -> float:
    return float(data[0])


def array_of(value: float) -> Any:
    return np.full(ARRAY_BYTES // 8, value)


class Driver(Protocol):
    """One system with `WORKERS` processes that run functions. Methods return, or can be awaited, for the results."""

    version: str

    def start(self) -> Any: ...

    def call(self, function: Callable[[Any], Any], argument: Any) -> Any:
        """Run a function on some worker."""

    def burst(self, count: int) -> Any:
        """Run `noop` on the numbers below ``count``, all submitted at once."""

    def broadcast(self, number: int) -> Any:
        """Run `noop` once on every worker at the same time; return the list of results."""

    def stop(self) -> Any: ...


def main(driver: Driver) -> None:
    """Serve orders until the input ends. A driver with methods that return at once is not run in an event loop."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the system prints is no answer
    if inspect.iscoroutinefunction(driver.start):
        asyncio.run(_serve(driver, out, lambda: asyncio.to_thread(sys.stdin.readline)))
        return
    try:
        _serve(driver, out, sys.stdin.readline).send(None)
    except StopIteration:
        pass


async def _serve(driver: Driver, out: TextIO, read: Callable[[], Any]) -> None:
    await _result(driver.start())
    try:
        _same(await _result(driver.call(noop, 7)), 7)
        print(json.dumps({"first": time.time(), "version": driver.version}), file=out)
        while line := await _result(read()):
            order = json.loads(line)
            value = await MEASURES[order["measure"]](driver, order["count"])
            print(json.dumps({"value": value}), file=out)
    finally:
        await _result(driver.stop())


async def _result(returned: Any) -> Any:
    return await returned if inspect.isawaitable(returned) else returned


async def _noop(driver: Driver, count: int) -> float:
    return await _median(count, lambda number: driver.call(noop, number), lambda number: number)


async def _broadcast(driver: Driver, count: int) -> float:
    return await _median(count, driver.broadcast, lambda number: [number] * WORKERS)


async def _burst(driver: Driver, count: int) -> float:
    began = time.perf_counter()
    results = await _result(driver.burst(count))
    lasted_s = time.perf_counter() - began
    _same(results, [*range(count)])
    return count / lasted_s


async def _to_worker(driver: Driver, count: int) -> float:
    arrays = [array_of(number + 0.5) for number in range(count)]  # another one each time: none is known already
    return await _median(count, lambda number: driver.call(first_of, arrays[number]), lambda number: number + 0.5)


async def _from_worker(driver: Driver, count: int) -> float:
    async def last(number: int) -> float:
        return float((await _result(driver.call(array_of, number + 0.5)))[-1])

    return await _median(count, last, lambda number: number + 0.5)


async def _median(count: int, run: Callable[[int], Any], wanted: Callable[[int], Any]) -> float:
    times: list[float] = []
    for number in range(count):
        began = time.perf_counter()
        result = await _result(run(number))
        times.append(time.perf_counter() - began)
        _same(result, wanted(number))
    return statistics.median(times)


def _same(result: object, wanted: object) -> None:
    if result != wanted:
        raise AssertionError(f"{result!r} instead of {wanted!r}")


MEASURES: dict[str, Callable[[Driver, int], Awaitable[float]]] = {
    "noop": _noop,
    "burst": _burst,
    "broadcast": _broadcast,
    "to": _to_worker,
    "from": _from_worker,
}
